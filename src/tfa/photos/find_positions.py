"""Find photo positions in a CSV file, a GPX track, file names or metadata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.errors import BadPositions
from tfa.photos.metadata import read_embedded_position, read_photo_time
from tfa.photos.positions import match_positions, pluralize, position_from_name, read_gpx, to_degrees, utm_code
from tfa.types import Position

GPX_GAP = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class PositionSources:
    """Sources of photo positions, in addition to file names and metadata.

    Args:
        csv: Table with columns file,lat,lon or file,x,y, and optionally alt,heading.
        gpx: GPX track; photos are placed by their time.
        gpx_offset: Seconds to add to the camera's clock.
        gpx_gap: Do not interpolate across track gaps longer than this many seconds.
        utm: UTM zone of x and y, such as 33N; positions are converted to degrees.
    """

    csv: str | Path | None = None
    gpx: str | Path | None = None
    gpx_offset: float = 0.0
    gpx_gap: float = GPX_GAP
    utm: str | None = None

    def __post_init__(self) -> None:
        if self.utm is not None:
            utm_code(self.utm)
        if not math.isfinite(self.gpx_offset):
            raise BadPositions(f"GPX offset {self.gpx_offset} is not allowed; use a finite number of seconds")
        if not self.gpx_gap > 0:
            raise BadPositions(f"GPX gap {self.gpx_gap} is not allowed; use more than 0 seconds")


PositionsLike = str | Path | PositionSources | None


def as_sources(positions: PositionsLike) -> PositionSources:
    """Convert to PositionSources; a path is a CSV file."""
    return positions if isinstance(positions, PositionSources) else PositionSources(csv=positions)


def read_photo_position(photo: Path | bytes, name: str) -> Position | None:
    """Read a position from the file name, XMP or EXIF, in this order."""
    return position_from_name(name) or read_embedded_position(photo)


def find_positions(
    paths: Sequence[Path], root: Path | None, positions: PositionsLike
) -> tuple[list[Position | None], list[str]]:
    """Return the position of each photo, or None, and notes for the user.

    CSV takes precedence over the track, then file name, XMP and EXIF. A CSV row names a photo by its path relative to
    `root`, or by any unique ending of its path: `a.jpg` works if there is only one `a.jpg`.
    """
    sources = as_sources(positions)
    listed, notes = ({}, []) if sources.csv is None else match_positions(paths, root, Path(sources.csv))
    if sources.gpx is not None:
        tracked, more = _along_track(paths, sources, Path(sources.gpx))
        listed, notes = tracked | listed, notes + more
    found = [listed.get(index) or read_photo_position(path, path.name) for index, path in enumerate(paths)]
    if sources.utm is not None:
        found = to_degrees(found, sources.utm)
    if (sources.csv is not None or sources.gpx is not None) and None in found:
        bare = [path for path, position in zip(paths, found, strict=True) if position is None]
        notes.append(f"{pluralize(len(bare), 'image')} without a position (first: {bare[0]})")
    kinds = [position.is_global for position in found if position is not None]
    if any(kinds) and not all(kinds):
        notes.append(
            f"{sum(kinds)} photos have lat/lon and {len(kinds) - sum(kinds)} have x/y: "
            "the two kinds cannot be compared; if x/y are UTM, convert them with --utm ZONE"
        )
    return found, notes


def _along_track(paths: Sequence[Path], sources: PositionSources, gpx: Path) -> tuple[dict[int, Position], list[str]]:
    """Return positions of photos taken during the track, by index, and notes for the user."""
    track = read_gpx(gpx)
    times = [read_photo_time(path) for path in paths]
    placed = {
        index: position
        for index, time in enumerate(times)
        if time is not None and (position := track.at(time.utc + sources.gpx_offset, sources.gpx_gap)) is not None
    }
    timed = [time for time in times if time is not None]
    if not timed:
        raise BadPositions(
            f"{gpx} cannot place photos: none of {len(paths):,} has a time (EXIF DateTimeOriginal); "
            "pass positions in a CSV file instead"
        )
    if not placed:
        early = track.times[0] - max(time.utc for time in timed)
        late = min(time.utc for time in timed) - track.times[-1]
        lag = f"they end {early:,.0f} s before it" if early > 0 else f"they begin {late:,.0f} s after it"
        lag = lag if max(early, late) > 0 else f"they are in gaps longer than {sources.gpx_gap:g} s"
        raise BadPositions(
            f"{gpx}: no photo was taken during the track ({lag}); correct the camera's clock with --gpx-offset "
            "SECONDS, or allow longer gaps with --gpx-gap (tfa build: --set gpx.offset=SECONDS, gpx.gap)"
        )
    notes = []
    outside = len(timed) - len(placed)
    if outside:
        notes.append(f"{pluralize(outside, 'photo')} taken outside the track {gpx.name} or in a gap")
    if len(timed) < len(paths):
        notes.append(f"{pluralize(len(paths) - len(timed), 'photo')} without a time (EXIF DateTimeOriginal)")
    if not all(time.zoned for time in timed):
        local = sum(not time.zoned for time in timed)
        notes.append(
            f"{pluralize(local, 'photo')} without a time zone: assuming UTC"
            + (
                f" {sources.gpx_offset:+g} s"
                if sources.gpx_offset
                else "; correct it with --gpx-offset SECONDS (tfa build: --set gpx.offset=SECONDS)"
            )
        )
    return placed, notes

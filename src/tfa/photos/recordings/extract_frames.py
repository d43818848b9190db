"""Keyframes of recordings as a folder of photos, whole or absent, and used again if it was made of the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from tfa.base.files import explain_disk_errors, hash_file, make_folder, sync_folder, write_json
from tfa.base.locks import LockedFolder, tidy
from tfa.base.progress import Progress, as_progress
from tfa.base.reading import read_json
from tfa.errors import BadRecording, BadSpec
from tfa.photos.find_positions import PositionSources
from tfa.photos.images import find_images
from tfa.photos.recordings.keyframes import DEFAULT_INTERVAL, KeyframeInterval
from tfa.photos.recordings.kinds import NO_TOPIC
from tfa.photos.recordings.open_recording import open_recording
from tfa.photos.recordings.write_frames import FRAME_POSITIONS, FrameWriter, parse_frame_time
from tfa.version import __version__

NOTES = "frames.json"  # says that a folder is ours, and what it was made of
NEW, REPLACED = "frames-new", "frames-replaced"  # in a hidden folder beside the output, until that is whole


@dataclass(frozen=True)
class ExtractedFrames:
    """A folder of photos made of recordings. `PlaceMap.build(frames.folder, positions=frames.positions)` maps it."""

    folder: Path
    photos: list[Path]  # in the order of time
    positions: Path | None  # positions.csv; None if no frame has one
    seen: int  # frames that the recordings have
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def time_ns(self, photo: Path) -> int | None:
        """When a photo was taken, in nanoseconds since 1970; of a video that does not say, since its start."""
        return parse_frame_time(photo)


@dataclass(frozen=True, kw_only=True)
class FrameSpec:
    """Which frames of a recording are taken, and what says where they were taken.

    `every` is 10 (one frame in ten), "0.5s", "2m" or "new" (what looks unlike the last one kept). A bag with one topic
    of images, or of positions, needs no name of it; the position topic "none" takes no positions. `gpx` places frames
    along a track, by its fields of that name.
    """

    topic: str | None = None
    position_topic: str | None = None
    every: str | int = DEFAULT_INTERVAL
    gpx: PositionSources | None = None

    def __post_init__(self) -> None:
        KeyframeInterval.parse(self.every)

    def to_dict(self) -> dict[str, Any]:
        """What the frames of a recording depend on, in JSON."""
        track = None
        if self.gpx is not None and self.gpx.gpx is not None:
            track = [hash_file(Path(self.gpx.gpx)), self.gpx.gpx_offset, self.gpx.gpx_gap]
        every = str(KeyframeInterval.parse(self.every))
        return {"topic": self.topic, "position_topic": self.position_topic, "every": every, "gpx": track}


def extract_frames(
    recordings: str | Path | Sequence[str | Path],
    out: str | Path,
    spec: FrameSpec | None = None,
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> ExtractedFrames:
    """Write the keyframes of bags or videos as photos into the folder `out`, with `positions.csv`.

    Compressed images are written byte for byte, raw ones as PNG, those of videos as JPEG. A folder that was made of the
    same in the same way is used as it is; another one is replaced only with `overwrite`. `skip_bad` leaves out frames
    that cannot be read. What an extraction to the same folder left when it was killed is removed, after an hour.
    """
    paths = [Path(recordings)] if isinstance(recordings, (str, os.PathLike)) else [Path(one) for one in recordings]
    if not paths:
        raise BadRecording("no recording was given; give a bag or a video")
    spec, out = spec or FrameSpec(), Path(out)
    asked: dict[str, Any] = {"version": __version__, "recordings": [_identify_recording(path) for path in paths]}
    asked |= {"spec": spec.to_dict(), "skip_bad": skip_bad}
    parent = out.absolute().parent
    tidy(parent, f".{escape(out.name)}.frames-*", lambda name: name in (NEW, REPLACED))
    known = _there_already(out, asked, overwrite=overwrite)
    if known is not None:
        return _extracted(out, known, used_again=True)
    with explain_disk_errors(out):
        make_folder(parent)
        own = LockedFolder(parent, f".{out.name}.frames-")
        try:
            made = own.path / NEW
            made.mkdir()
            parts = _write_all(paths, made, spec, skip_bad, as_progress(progress))
            write_json(made / NOTES, {"asked": asked, "recordings": parts})
            made.chmod(0o755)
            _put_in_place(made, out)
        finally:
            own.remove()
    return _extracted(out, {"asked": asked, "recordings": parts})


def _there_already(out: Path, request: dict[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
    """What a folder of the same frames says; None if there is nothing, or what may be replaced. Others are refused."""
    if out.exists() and not out.is_dir():
        raise BadSpec(f"{out} is a file; give a folder for the frames")
    if not out.is_dir() or not any(out.iterdir()):
        return None
    known = _read_notes(out)
    if known is None:
        raise BadSpec(f"{out} exists already and is not empty; choose another folder")
    if known["asked"] != request and not overwrite:
        raise BadSpec(
            f"{out} exists already and holds other frames; choose another folder, or replace it with --force "
            "(overwrite=True)"
        )
    return known if known["asked"] == request else None


def _write_all(
    paths: Sequence[Path], folder: Path, spec: FrameSpec, skip_bad: bool, progress: Progress
) -> list[dict[str, Any]]:
    """Frames of every recording; those of several in a folder each."""
    writer, parts = FrameWriter(folder, KeyframeInterval.parse(spec.every), spec.gpx, skip_bad), []
    tracked = spec.gpx is not None and spec.gpx.gpx is not None
    placed_by = NO_TOPIC if tracked and spec.position_topic is None else spec.position_topic
    for path, inside in zip(paths, _folders(paths), strict=True):
        with open_recording(path, spec.topic, placed_by) as recording:
            written = writer.write(recording, inside, progress)
            parts.append({"file": str(path), **recording.facts(), **written.to_dict()})
    writer.positions.sync()
    return parts


def _folders(paths: Sequence[Path]) -> list[str]:
    """A name for each of several recordings; the frames of one alone need none."""
    if len(paths) == 1:
        return [""]
    return [f"{number:03d}-{path.stem}" for number, path in enumerate(paths)]


def _put_in_place(made: Path, out: Path) -> None:
    """Rename a whole folder; what was there goes beside it, and comes back if that fails."""
    replaced = made.with_name(REPLACED)
    try:
        if out.exists():
            os.rename(out, replaced)
        os.rename(made, out)
    except BaseException:
        if replaced.exists() and not out.exists():
            os.rename(replaced, out)
        raise
    sync_folder(out.absolute().parent)


def _extracted(out: Path, notes_on_disk: dict[str, Any], *, used_again: bool = False) -> ExtractedFrames:
    parts = notes_on_disk["recordings"]
    photos = find_images(out)
    if len(photos) != sum(part["kept"] for part in parts):
        raise BadSpec(f"{out} no longer holds the frames that were written there; remove it, or choose another folder")
    positions = out / FRAME_POSITIONS
    notes = [note for part in parts for note in part["notes"]]
    notes += [f"the frames that {out} holds already are used"] if used_again else []
    skipped = [(one["file"], one["reason"]) for part in parts for one in part["skipped"]]
    seen = sum(part["seen"] for part in parts)
    return ExtractedFrames(out, photos, positions if positions.exists() else None, seen, notes, skipped)


def _read_notes(folder: Path) -> dict[str, Any] | None:
    """What a folder says it was made of; None if it is not ours."""
    try:
        notes = read_json(folder / NOTES)
        whole = isinstance(notes, dict) and isinstance(notes["asked"], dict)
        return (
            notes
            if whole and all({"kept", "seen", "notes", "skipped"} <= set(one) for one in notes["recordings"])
            else None
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identify_recording(path: Path) -> dict[str, Any]:
    """A recording by its place, size and time of change: to read all of it would take as long as to extract it."""
    files = [path] if not path.is_dir() else sorted(one for one in path.iterdir() if one.is_file())
    try:
        facts = [one.stat() for one in files]
    except OSError as error:
        raise BadRecording(f"{path} cannot be read: {error.strerror}; give a bag or a video", path) from None
    size, changed = sum(one.st_size for one in facts), max((one.st_mtime_ns for one in facts), default=0)
    return {"path": str(path.resolve()), "bytes": size, "modified_ns": changed}

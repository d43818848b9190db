"""Keyframes written as photos, one after the other: names by their times, positions in a CSV file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfa.base.progress import Progress
from tfa.errors import BadImage, BadPositions, BadRecording, BadSpec
from tfa.photos.find_positions import PositionSources
from tfa.photos.gpx import read_gpx
from tfa.photos.positions import POSITION_EXTRAS, POSITION_KINDS, Position, format_count
from tfa.photos.recordings.keyframes import KeyframeInterval, Keyframes
from tfa.photos.recordings.recording import RecordedFrame, Recording

FRAME_POSITIONS = "positions.csv"
_NAME = re.compile(r"(-?\d+)\.(\d{9})(?:-\d+)?")


@dataclass
class WrittenFrames:
    """What was written of one recording."""

    written: int = 0
    seen: int = 0
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        skipped = [{"file": file, "reason": reason} for file, reason in self.skipped]
        return {"kept": self.written, "seen": self.seen, "notes": self.notes, "skipped": skipped}


def format_frame_name(time_ns: int) -> str:
    """Names in the order of time: seconds, then nanoseconds."""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{seconds:010d}.{rest:09d}"


def parse_frame_time(path: Path) -> int | None:
    """The inverse, of a photo's path; None if it is no frame."""
    given = _NAME.fullmatch(path.stem)
    return None if given is None else int(given[1]) * 10**9 + int(given[2])


class PositionsFile:
    """positions.csv, row by row. It is there if a frame had a position; degrees and metres are not mixed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FRAME_POSITIONS
        self._pair: tuple[str, str] | None = None

    def add(self, file: str, time_ns: int, position: Position) -> None:
        pair = POSITION_KINDS[0] if position.is_global else POSITION_KINDS[1]
        if pair != (self._pair or pair):
            raise BadSpec("some recordings are placed by degrees and others by metres; make a map of each")
        values = [getattr(position, name) for name in (*pair, *POSITION_EXTRAS)]
        # repr: read back, a number is the same to the last bit.
        cells = ["" if value is None else repr(float(value)) for value in values]
        with open(self._path, "a", encoding="utf-8", newline="") as file_of_rows:
            rows = csv.writer(file_of_rows)
            if self._pair is None:
                rows.writerow(["file", *pair, *POSITION_EXTRAS, "time_ns"])
            rows.writerow([file, *cells, time_ns])
        self._pair = pair

    def sync(self) -> None:
        if self._pair is not None:
            with open(self._path, "rb") as rows:
                os.fsync(rows.fileno())


class FrameWriter:
    """Writes the keyframes of one recording after the other below a folder; one of them is in memory at a time."""

    def __init__(self, folder: Path, every: KeyframeInterval, gpx: PositionSources | None, skip_bad: bool) -> None:
        self.folder, self.every, self.gpx, self.skip_bad = folder, every, gpx, skip_bad
        self.positions = PositionsFile(folder)

    def write(self, recording: Recording, inside: str, progress: Progress) -> WrittenFrames:
        """The keyframes of a recording, in `inside` of the folder."""
        placing = _Placing(recording, self.gpx)
        if self.every.unit == "metres" and not recording.placed and placing.track is None:
            raise BadSpec(
                f"{recording.path} says no positions, so frames cannot be kept every {self.every.amount:g} m; give a "
                "track with --gpx, or --every 1s"
            )
        (self.folder / inside).mkdir(exist_ok=True)
        keyframes, result = Keyframes(self.every), WrittenFrames()
        with progress.task(f"reading {recording.path.name}", recording.total, "frames") as task:
            for frame in placing.frames():
                task.advance()
                try:
                    if keyframes.keeps(frame):
                        self._keep(frame, inside)
                        result.written += 1
                except BadImage as error:
                    if not self.skip_bad:
                        raise BadImage(f"{error}; --skip-bad leaves such frames out", *error.paths) from None
                    result.skipped.append((f"{recording.path}@{format_frame_name(frame.time_ns)}", str(error)))
        result.seen, more = keyframes.seen, placing.notes()
        if not result.written:
            raise _explain_no_frames(recording, result)
        kept = f"{result.written:,} of {format_count(result.seen, 'frame')} kept, {self.every.in_words}"
        notes = [kept, *recording.notes, *more]
        if keyframes.unplaced:
            notes.append(f"{format_count(keyframes.unplaced, 'frame')} without a position, of which none was kept")
        result.notes = [f"{recording.path.name}: {note}" for note in notes]
        return result

    def _keep(self, frame: RecordedFrame, inside: str) -> None:
        name = _write(frame, self.folder / inside)
        if frame.position is not None:
            self.positions.add(f"{inside}/{name}" if inside else name, frame.time_ns, frame.position)


def _explain_no_frames(recording: Recording, result: WrittenFrames) -> BadRecording:
    if not result.seen:
        return BadRecording(f"{recording.path} has no frames; it is empty, or was cut short", recording.path)
    if result.skipped:
        why = f"none of them could be read ({result.skipped[0][1]})"
    else:
        why = "none has a position; positions begin later or end earlier than the frames"
    return BadRecording(f"{recording.path} has {format_count(result.seen, 'frame')}, and {why}", recording.path)


def _write(frame: RecordedFrame, folder: Path) -> str:
    """One photo; its name."""
    picture, stem, number = frame.picture(), format_frame_name(frame.time_ns), 1
    name = f"{stem}{picture.suffix}"
    while (folder / name).exists():  # two frames of one time
        number += 1
        name = f"{stem}-{number}{picture.suffix}"
    with open(folder / name, "wb") as file:
        file.write(picture.to_bytes())
        file.flush()
        os.fsync(file.fileno())
    return name


class _Placing:
    """Frames with the positions of a GPX track if there is one, and no others: the two may not be of one kind."""

    def __init__(self, recording: Recording, gpx: PositionSources | None) -> None:
        self.recording, self.sources = recording, gpx
        self.track = None if gpx is None or gpx.gpx is None else read_gpx(Path(gpx.gpx))
        self.placed = self.outside = 0
        self.first: float | None = None
        self.last = 0.0

    def frames(self) -> Iterator[RecordedFrame]:
        if self.track is None or self.sources is None:
            yield from self.recording.frames()
            return
        for frame in self.recording.frames():
            utc = frame.time_ns / 1e9 + self.sources.gpx_offset
            self.first, self.last = utc if self.first is None else self.first, utc
            position = self.track.at(utc, self.sources.gpx_gap)
            self.placed, self.outside = self.placed + (position is not None), self.outside + (position is None)
            yield replace(frame, position=position)

    def notes(self) -> list[str]:
        if self.track is None or self.sources is None or self.first is None:
            return []
        if not self.placed:
            early, late = self.track.times[0] - self.last, self.first - self.track.times[-1]
            lag = f"it ends {early:,.0f} s before it" if early > 0 else f"it begins {late:,.0f} s after it"
            lag = lag if max(early, late) > 0 else f"its points are more than {self.sources.gpx_gap:g} s apart there"
            raise BadPositions(
                f"{self.sources.gpx}: no frame of {self.recording.path} was taken during the track ({lag}); correct "
                "the camera's clock with --gpx-offset SECONDS, or allow longer gaps with --gpx-gap"
            )
        outside = (
            f"{format_count(self.outside, 'frame')} taken outside {Path(str(self.sources.gpx)).name} or in a gap of it"
        )
        return [outside] if self.outside else []

"""Extract keyframes from recordings into a folder of photos with a positions file.

One frame is in memory at a time. The folder appears only when it is complete; an identical extraction is reused.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tfa.core.files import (
    LockedFolder,
    explain_disk_errors,
    hash_file,
    make_folder,
    read_json,
    sync_folder,
    tidy,
    write_json,
    write_text,
)
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage, BadPositions, BadRecording, BadSpec
from tfa.photos.find_positions import PositionSources
from tfa.photos.images import find_images
from tfa.photos.positions import meters_between, pluralize, read_gpx
from tfa.photos.recordings.recording import (
    ALLOWED_RECORDINGS,
    BAGS,
    NO_TOPIC,
    VIDEOS,
    RecordedFrame,
    detect_bag,
    is_bag_folder,
)
from tfa.types import POSITION_EXTRAS, POSITION_KINDS, Position
from tfa.version import __version__

if TYPE_CHECKING:
    from tfa.photos.recordings.ros_bags import BagRecording
    from tfa.photos.recordings.videos import VideoRecording

    Recording = BagRecording | VideoRecording


@contextmanager
def open_recording(path: Path, topic: str | None = None, position_topic: str | None = None) -> Iterator[Recording]:
    """Open a bag or video. A bag with several topics of a kind needs `topic` or `position_topic` (or "none")."""
    from tfa.photos.recordings.ros_bags import open_bag
    from tfa.photos.recordings.videos import open_video

    if not path.is_file() and not path.is_dir():
        said = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise BadRecording(f"{path} {said}; pass {ALLOWED_RECORDINGS}", path)
    is_bag = is_bag_folder(path) or (not path.is_dir() and (path.suffix in BAGS or detect_bag(path) is not None))
    if is_bag:
        with open_bag(path, topic, position_topic) as bag:
            yield bag
    elif path.suffix.lower() in VIDEOS and not path.is_dir():
        if topic is not None or position_topic not in (None, NO_TOPIC):
            raise BadSpec(f"{path} is a video, which has no topics; remove --topic and --position-topic")
        with open_video(path) as video:
            yield video
    else:
        raise BadRecording(f"{path} is not a recording; pass {ALLOWED_RECORDINGS}", path)


DEFAULT_INTERVAL = "1s"
NOVELTY = 0.2  # default threshold of `new`
_SMALL = (32, 24)  # width and height in pixels for comparing frames
_INTERVAL_PATTERN = re.compile(r"(?:(?P<number>\d+(?:\.\d+)?)(?P<unit>m|s)?|new(?::(?P<novelty>\d+(?:\.\d+)?))?)")
_ALLOWED_INTERVALS = (
    "use 10 (every tenth frame), 0.5s (seconds), 2m (meters), or new (frames that differ from the last one kept)"
)


@dataclass(frozen=True)
class KeyframeInterval:
    """Interval between keyframes."""

    unit: str  # frames, seconds, meters or novelty
    amount: float

    @classmethod
    def parse(cls, text: str | int) -> KeyframeInterval:
        given = _INTERVAL_PATTERN.fullmatch(str(text).strip())
        if given is None:
            raise BadSpec(f"--every {str(text)[:80]!r} is not allowed; {_ALLOWED_INTERVALS}")
        if given["number"] is None:
            amount = NOVELTY if given["novelty"] is None else float(given["novelty"])
            if not 0 < amount < 2:
                raise BadSpec(f"--every {text!r} is not allowed; novelty must be between 0 and 2 [default: {NOVELTY}]")
            return cls("novelty", amount)
        unit, amount = {"m": "meters", "s": "seconds", None: "frames"}[given["unit"]], float(given["number"])
        if not amount > 0 or (unit == "frames" and amount != int(amount)):
            raise BadSpec(f"--every {text!r} is not allowed; {_ALLOWED_INTERVALS}")
        return cls(unit, amount)

    def __str__(self) -> str:
        if self.unit == "novelty":
            return "new" if self.amount == NOVELTY else f"new:{self.amount:g}"
        return f"{self.amount:g}" + {"frames": "", "seconds": "s", "meters": "m"}[self.unit]

    @property
    def in_words(self) -> str:
        return {
            "frames": "every frame" if self.amount == 1 else f"one in {self.amount:g}",
            "seconds": f"one every {self.amount:g} s",
            "meters": f"one every {self.amount:g} m",
            "novelty": "those that differ from the last one kept",
        }[self.unit]


class Keyframes:
    """Keyframe selection by count, time, distance or novelty; the first frame is always kept.

    By distance, frames without a position are dropped. By time, the frame nearest to the due time is kept, so that a
    camera with one frame per second loses none to jitter.
    """

    def __init__(self, every: KeyframeInterval) -> None:
        self.every = every
        self.seen = 0
        self.unplaced = 0  # frames without a position
        self._last: RecordedFrame | None = None
        self._before: int | None = None
        self._shown: np.ndarray | None = None

    def keeps(self, frame: RecordedFrame) -> bool:
        try:
            kept = self._is_due(frame)
        finally:  # undecodable frames count as seen
            self.seen += 1
            self._before = frame.time_ns
        if kept:
            self._last = frame
        return kept

    def _is_due(self, frame: RecordedFrame) -> bool:
        last, amount = self._last, self.every.amount
        if self.every.unit == "frames":
            return self.seen % int(amount) == 0
        if self.every.unit == "seconds":
            if last is None or self._before is None:
                return True
            passed, step = frame.time_ns - last.time_ns, frame.time_ns - self._before
            # Restart if the clock was set back.
            return passed < 0 or passed + max(step, 0) / 2 > amount * 1e9
        if self.every.unit == "meters":
            if frame.position is None:
                self.unplaced += 1
                return False
            return last is None or last.position is None or meters_between(last.position, frame.position) >= amount
        try:
            shown = shrink_frame(frame.picture().image(_SMALL))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # Pillow's errors
            raise BadImage(f"the frame at {frame.time_ns / 1e9:.3f} cannot be decoded: {error}") from None
        new = self._shown is None or measure_novelty(self._shown, shown) > amount
        if new:
            self._shown = shown
        return new


def shrink_frame(image: Image.Image) -> np.ndarray:
    """Reduce an image to 32 × 24 gray values with mean 0 and length 1; zeros for a uniform image."""
    gray = image.convert("L") if image.mode != "I;16" else Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    values = np.asarray(gray.resize(_SMALL, Image.Resampling.BOX), np.float64)
    values = values - values.mean()
    length = math.sqrt(float((values**2).sum()))
    return values / length if length > 1e-9 else np.zeros_like(values)


def measure_novelty(one: np.ndarray, other: np.ndarray) -> float:
    """Return 1 − correlation of two shrunken frames: 0 for equal ones at any exposure, 1 for unrelated ones."""
    if not one.any() and not other.any():
        return 0.0
    return 1.0 - float((one * other).sum())


FRAME_POSITIONS = "positions.csv"
_NAME = re.compile(r"(-?\d+)\.(\d{9})(?:-\d+)?")


@dataclass
class WrittenFrames:
    """Frames written from one recording."""

    written: int = 0
    seen: int = 0
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        skipped = [{"file": file, "reason": reason} for file, reason in self.skipped]
        return {"kept": self.written, "seen": self.seen, "notes": self.notes, "skipped": skipped}


def format_frame_name(time_ns: int) -> str:
    """Return a file name that sorts by time: seconds, then nanoseconds."""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{seconds:010d}.{rest:09d}"


def parse_frame_time(path: Path) -> int | None:
    """Read the time from the path of a frame; None if it is not one."""
    given = _NAME.fullmatch(path.stem)
    return None if given is None else int(given[1]) * 10**9 + int(given[2])


def write_positions(folder: Path, rows: Sequence[tuple[str, int, Position]]) -> None:
    """Write the file name, time and position of frames to positions.csv, if there are any."""
    if not rows:
        return
    names = (*POSITION_KINDS[not rows[0][2].is_global], *POSITION_EXTRAS)
    written = io.StringIO(newline="")
    table = csv.writer(written)
    table.writerow(["file", *names, "time_ns"])
    for file, time_ns, position in rows:
        values = [getattr(position, name) for name in names]
        # repr preserves every bit.
        table.writerow([file, *("" if value is None else repr(float(value)) for value in values), time_ns])
    write_text(folder / FRAME_POSITIONS, written.getvalue())


class FrameWriter:
    """Writer of keyframes into a folder; one frame is in memory at a time."""

    def __init__(self, folder: Path, every: KeyframeInterval, gpx: PositionSources | None, skip_bad: bool) -> None:
        self.folder, self.every, self.gpx, self.skip_bad = folder, every, gpx, skip_bad
        self.positions: list[tuple[str, int, Position]] = []

    def write(self, recording: Recording, inside: str, progress: Progress) -> WrittenFrames:
        """Write the keyframes of a recording into the subfolder `inside`."""
        tracked = None if self.gpx is None or self.gpx.gpx is None else _TrackedFrames(recording, self.gpx)
        if self.every.unit == "meters" and not recording.placed and tracked is None:
            raise BadSpec(
                f"{recording.path} has no positions, so --every {self.every.amount:g}m is not possible; pass a track "
                "with --gpx, or use --every 1s"
            )
        (self.folder / inside).mkdir(exist_ok=True)
        keyframes, result = Keyframes(self.every), WrittenFrames()
        with progress.task(f"reading {recording.path.name}", recording.total, "frames") as task:
            for frame in (tracked or recording).frames():
                task.advance()
                try:
                    if keyframes.keeps(frame):
                        self._keep(frame, inside)
                        result.written += 1
                except BadImage as error:
                    if not self.skip_bad:
                        raise BadImage(f"{error}; skip such frames with --skip-bad", *error.paths) from None
                    result.skipped.append((f"{recording.path}@{format_frame_name(frame.time_ns)}", str(error)))
        result.seen, more = keyframes.seen, [] if tracked is None else tracked.notes()
        if not result.written:
            raise _explain_no_frames(recording, result)
        kept = f"{result.written:,} of {pluralize(result.seen, 'frame')} kept, {self.every.in_words}"
        notes = [kept, *recording.notes, *more]
        if keyframes.unplaced:
            notes.append(f"{pluralize(keyframes.unplaced, 'frame')} dropped because of a missing position")
        result.notes = [f"{recording.path.name}: {note}" for note in notes]
        return result

    def _keep(self, frame: RecordedFrame, inside: str) -> None:
        name = _write(frame, self.folder / inside)
        if frame.position is not None:
            if self.positions and self.positions[0][2].is_global != frame.position.is_global:
                raise BadSpec("some recordings have positions in degrees, others in meters; build separate maps")
            self.positions.append((f"{inside}/{name}" if inside else name, frame.time_ns, frame.position))


def _explain_no_frames(recording: Recording, result: WrittenFrames) -> BadRecording:
    if not result.seen:
        return BadRecording(f"{recording.path} has no frames; it is empty or truncated", recording.path)
    if result.skipped:
        why = f"none can be read ({result.skipped[0][1]})"
    else:
        why = "none has a position; positions begin later or end earlier than the frames"
    return BadRecording(f"{recording.path} has {pluralize(result.seen, 'frame')}, but {why}", recording.path)


def _write(frame: RecordedFrame, folder: Path) -> str:
    """Write a frame and return its file name."""
    picture, stem, number = frame.picture(), format_frame_name(frame.time_ns), 1
    name = f"{stem}{picture.suffix}"
    while (folder / name).exists():  # two frames with the same time
        number += 1
        name = f"{stem}-{number}{picture.suffix}"
    with open(folder / name, "wb") as file:
        file.write(picture.to_bytes())
        file.flush()
        os.fsync(file.fileno())
    return name


class _TrackedFrames:
    """Frames with positions from a GPX track instead of the recording, which may be of another kind."""

    def __init__(self, recording: Recording, sources: PositionSources) -> None:
        self.recording, self.sources, self.gpx = recording, sources, Path(str(sources.gpx))
        self.track = read_gpx(self.gpx)
        self.placed = self.outside = 0
        self.first: float | None = None
        self.last = 0.0

    def frames(self) -> Iterator[RecordedFrame]:
        for frame in self.recording.frames():
            utc = frame.time_ns / 1e9 + self.sources.gpx_offset
            self.first, self.last = utc if self.first is None else self.first, utc
            position = self.track.at(utc, self.sources.gpx_gap)
            self.placed, self.outside = self.placed + (position is not None), self.outside + (position is None)
            yield replace(frame, position=position)

    def notes(self) -> list[str]:
        if self.first is None:
            return []
        if not self.placed:
            early, late = self.track.times[0] - self.last, self.first - self.track.times[-1]
            lag = f"it ends {early:,.0f} s before it" if early > 0 else f"it begins {late:,.0f} s after it"
            lag = lag if max(early, late) > 0 else f"it is in a gap longer than {self.sources.gpx_gap:g} s"
            raise BadPositions(
                f"{self.sources.gpx}: no frame of {self.recording.path} was taken during the track ({lag}); correct "
                "the camera's clock with --gpx-offset SECONDS, or allow longer gaps with --gpx-gap "
                "(tfa build: --set gpx.offset=SECONDS, gpx.gap)"
            )
        outside = f"{pluralize(self.outside, 'frame')} outside the track {self.gpx.name} or in a gap"
        return [outside] if self.outside else []


NOTES = "frames.json"  # marks a folder of extracted frames and records its sources
NEW, REPLACED = "frames-new", "frames-replaced"  # in a hidden folder next to the output until it is complete


@dataclass(frozen=True)
class ExtractedFrames:
    """Photos extracted from recordings. `PlaceMap.build(frames.folder, positions=frames.positions)` maps them."""

    folder: Path
    photos: list[Path]  # in order of time
    positions: Path | None  # positions.csv; None if no frame has a position
    seen: int  # frames in the recordings
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def time_ns(self, photo: Path) -> int | None:
        """Return the time of a photo in nanoseconds since 1970; since the start for a video without a date."""
        return parse_frame_time(photo)


@dataclass(frozen=True, kw_only=True)
class FrameSpec:
    """Selection of frames from a recording and the source of their positions.

    Args:
        topic: Image topic to read from a bag. Optional if there is only one.
        position_topic: Position topic to read from a bag, or "none". Optional if there is only one.
        every: Keep every Nth frame (10), one per time ("0.5s") or distance ("2m"), or frames that differ from the last
            one kept ("new").
        gpx: GPX track that places the frames; only its gpx fields are used.
    """

    topic: str | None = None
    position_topic: str | None = None
    every: str | int = DEFAULT_INTERVAL
    gpx: PositionSources | None = None

    def __post_init__(self) -> None:
        KeyframeInterval.parse(self.every)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings that the frames depend on, for JSON."""
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
    """Write the keyframes of bags or videos as photos, with `positions.csv`.

    Compressed images are written byte for byte, raw images as PNG, video frames as JPEG. An existing folder with the
    same frames is reused. Leftovers of a killed extraction are removed after an hour.

    Args:
        recordings: Bags or videos.
        out: Output folder.
        spec: Which frames to keep. [default: one per second]
        skip_bad: Skip and list unreadable frames instead of stopping.
        overwrite: Replace a folder of other frames.
        progress: True to show progress.

    Returns:
        The folder, its photos and their positions file.
    """
    paths = [Path(recordings)] if isinstance(recordings, (str, os.PathLike)) else [Path(one) for one in recordings]
    if not paths:
        raise BadRecording("no recordings given; pass a bag or a video")
    spec, out = spec or FrameSpec(), Path(out)
    request: dict[str, Any] = {"version": __version__, "recordings": [_identify_recording(path) for path in paths]}
    request |= {"spec": spec.to_dict(), "skip_bad": skip_bad}
    parent = out.absolute().parent
    tidy(parent, f".{escape(out.name)}.frames-*", lambda name: name in (NEW, REPLACED))
    known = _there_already(out, request, overwrite=overwrite)
    if known is not None:
        return _extracted(out, known, used_again=True)
    with explain_disk_errors(out):
        make_folder(parent)
        own = LockedFolder(parent, f".{out.name}.frames-")
        try:
            made = own.path / NEW
            made.mkdir()
            parts = _write_all(paths, made, spec, skip_bad, as_progress(progress))
            write_json(made / NOTES, {"asked": request, "recordings": parts})
            _put_in_place(made, out)
        finally:
            own.remove()
    return _extracted(out, {"asked": request, "recordings": parts})


def _there_already(out: Path, request: dict[str, Any], *, overwrite: bool) -> dict[str, Any] | None:
    """Return the notes of a folder with the same frames, or None if `out` is free; raise BadSpec otherwise."""
    if out.exists() and not out.is_dir():
        raise BadSpec(f"{out} is a file; choose a folder for the frames")
    if not out.is_dir() or not any(out.iterdir()):
        return None
    known = _read_notes(out)
    if known is None:
        raise BadSpec(f"{out} exists and is not empty; choose another folder")
    if known["asked"] != request and not overwrite:
        raise BadSpec(
            f"{out} exists and contains other frames; choose another folder, or replace it with --force "
            "(overwrite=True)"
        )
    return known if known["asked"] == request else None


def _write_all(
    paths: Sequence[Path], folder: Path, spec: FrameSpec, skip_bad: bool, progress: Progress
) -> list[dict[str, Any]]:
    """Write the frames of all recordings, each of several in its own subfolder."""
    writer, parts = FrameWriter(folder, KeyframeInterval.parse(spec.every), spec.gpx, skip_bad), []
    tracked = spec.gpx is not None and spec.gpx.gpx is not None
    placed_by = NO_TOPIC if tracked and spec.position_topic is None else spec.position_topic
    for number, path in enumerate(paths):
        inside = "" if len(paths) == 1 else f"{number:03d}-{path.stem}"
        with open_recording(path, spec.topic, placed_by) as recording:
            written = writer.write(recording, inside, progress)
            parts.append({"file": str(path), **recording.facts(), **written.to_dict()})
    write_positions(folder, writer.positions)
    return parts


def _put_in_place(made: Path, out: Path) -> None:
    """Rename a complete folder into place; an existing folder is moved aside and restored on failure."""
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
        raise BadSpec(f"frames in {out} were added or removed; delete the folder, or choose another one")
    positions = out / FRAME_POSITIONS
    notes = [note for part in parts for note in part["notes"]]
    notes += [f"reusing the frames in {out}"] if used_again else []
    skipped = [(one["file"], one["reason"]) for part in parts for one in part["skipped"]]
    seen = sum(part["seen"] for part in parts)
    return ExtractedFrames(out, photos, positions if positions.exists() else None, seen, notes, skipped)


def _read_notes(folder: Path) -> dict[str, Any] | None:
    """Read the sources of a folder of frames; None if it is not one."""
    try:
        notes = read_json(folder / NOTES)
        whole = isinstance(notes, dict) and isinstance(notes["asked"], dict)
        whole = whole and all({"kept", "seen", "notes", "skipped"} <= set(one) for one in notes["recordings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return notes if whole else None


def _identify_recording(path: Path) -> dict[str, Any]:
    """Identify a recording by path, size and modification time; hashing would take as long as extracting."""
    files = [path] if not path.is_dir() else sorted(one for one in path.iterdir() if one.is_file())
    try:
        facts = [one.stat() for one in files]
    except OSError as error:
        raise BadRecording(f"{path} cannot be read: {error.strerror}; pass a bag or a video", path) from None
    size, changed = sum(one.st_size for one in facts), max((one.st_mtime_ns for one in facts), default=0)
    return {"path": str(path.resolve()), "bytes": size, "modified_ns": changed}

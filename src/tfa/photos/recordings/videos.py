"""Read videos with PyAV (extra `video`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from tfa.errors import BadRecording, MissingExtra, from_os_error
from tfa.photos.recordings.recording import (
    FramePicture,
    RecordedFrame,
    iterate_limited,
    limit_reading,
    measure_recording,
)

_EARLIEST = 631_152_000  # 1990 in seconds since 1970; earlier dates mean a clock that was never set
# A playlist in a file that is named as a video would read other files and addresses.
_OPENED = {"protocol_whitelist": "file", "format_whitelist": "mov,matroska,avi"}
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


@contextmanager
def open_video(path: Path) -> Iterator[VideoRecording]:
    try:
        import av
    except ImportError:
        raise MissingExtra("videos need PyAV; install with: pip install 'tfa-vpr[video]'") from None
    with _explain_errors(path), limit_reading(path):
        container: Any = av.open(f"file:{path.absolute()}", options=_OPENED)
    try:
        if not container.streams.video:
            raise BadRecording(f"{path} has no video stream (audio only, or truncated); pass a video", path)
        yield VideoRecording(path, container)
    finally:
        container.close()


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    from av.error import FFmpegError

    try:
        yield
    except (FFmpegError, ValueError) as error:  # ValueError if a demuxer is not built in
        if isinstance(error, OSError) and (known := from_os_error(error, path)) is not None:
            raise known from error
        said = getattr(error, "strerror", None) or str(error)
        raise BadRecording(
            f"{path} cannot be read: {said}; it is not a video, or is truncated. Copy it again, or convert it with: "
            f"ffmpeg -i {path.name} whole.mp4",
            path,
        ) from None


class VideoRecording:
    """Frames of the first video stream of an open video."""

    placed = False

    def __init__(self, path: Path, container: Any) -> None:
        self.path, self.notes, self._container = path, list[str](), container
        self._size = measure_recording(path)
        self._stream = container.streams.video[0]
        self._stream.thread_type = "AUTO"
        rate = self._stream.average_rate or self._stream.guessed_rate
        self._rate = Fraction(rate) if rate else Fraction(25)
        length = self._stream.duration
        seconds = length * self._stream.time_base if length else (container.duration or 0) / 1_000_000
        self.total = int(self._stream.frames or seconds * self._rate)
        self._start_ns = _recorded_at(container.metadata.get("creation_time", "")) * 10**9

    def facts(self) -> dict[str, Any]:
        return {"topic": None, "position_topic": None}

    def frames(self) -> Iterator[RecordedFrame]:
        first: int | None = None
        with _explain_errors(self.path):
            for number, frame in enumerate(iterate_limited(self.path, self._container.decode(self._stream))):
                if frame.width * frame.height > 2 * (Image.MAX_IMAGE_PIXELS or math.inf):
                    said = f"{self.path} has frames of {frame.width} × {frame.height} pixels"
                    raise BadRecording(f"{said}; at most 179 million are allowed, scale it down", self.path)
                if frame.pts is None or frame.time_base is None:
                    seconds = number / self._rate
                else:
                    first = frame.pts if first is None else first
                    seconds = (frame.pts - first) * Fraction(frame.time_base)
                yield RecordedFrame(self._start_ns + round(seconds * 10**9), partial(self._picture, frame))

    def _picture(self, frame: Any) -> FramePicture:
        """Return a frame as JPEG at full size; video compression has already lost more than JPEG does."""
        with limit_reading(self.path, self._size):
            image = frame.to_image()
            turn = _TURNS.get(int(frame.rotation) % 360)
            return FramePicture(".jpg", pixels=image if turn is None else image.transpose(turn))


def _recorded_at(text: str) -> int:
    """Parse the date of a video to seconds since 1970; 0 if it is missing or invalid."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        return 0
    seconds = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
    return seconds if seconds >= _EARLIEST else 0

"""Recordings: recognize bags and videos by name or content, and their frames."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tfa.types import Position

BAGS = (".bag", ".db3", ".mcap")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
BAG_BYTES = {b"#ROSBAG V": ".bag", b"SQLite format 3\0": ".db3", b"\x89MCAP0\r\n": ".mcap"}
NO_TOPIC = "none"  # position topic that disables positions
METADATA = "metadata.yaml"  # file in the folder of a ROS 2 bag
_SIGN = b"rosbag2_bagfile_information"
ALLOWED_RECORDINGS = (
    "a ROS 1 bag (.bag), a ROS 2 bag (.db3, .mcap or its folder), or a video (.mp4, .mkv, .avi, .mov, .webm)"
)


def is_recording(path: Path) -> bool:
    """Return True if a path is a bag or video, by its name or first bytes."""
    if path.suffix.lower() in (*BAGS, *VIDEOS):
        return not path.is_dir() or is_bag_folder(path)
    return is_bag_folder(path) or detect_bag(path) is not None


def is_bag_folder(path: Path) -> bool:
    """Return True if a folder is a ROS 2 bag, by the content of its metadata file."""
    try:
        with open(path / METADATA, "rb") as file:
            return _SIGN in file.read(4096)
    except OSError:
        return False


def detect_bag(path: Path) -> str | None:
    """Return the suffix for the content of a bag; None if it is not a bag."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return None
    return next((suffix for sign, suffix in BAG_BYTES.items() if start.startswith(sign)), None)


_QUALITY = 95  # JPEG quality of video frames


@dataclass(frozen=True)
class FramePicture:
    """A frame as a photo: recorded image bytes, or pixels and the format to write them in."""

    suffix: str  # .jpg, .png or .webp
    content: bytes | None = None
    pixels: Image.Image | None = None

    def image(self, size: tuple[int, int] | None = None) -> Image.Image:
        """Decode the frame; `size` allows a JPEG to be decoded smaller, to at least that size."""
        if self.pixels is not None:
            return self.pixels
        assert self.content is not None, "it has bytes or pixels"
        image = Image.open(io.BytesIO(self.content))
        if size is not None:
            image.draft("L", size)
        return image

    def to_bytes(self) -> bytes:
        """Return an image file; recorded bytes are unchanged."""
        if self.content is not None:
            return self.content
        assert self.pixels is not None, "it has bytes or pixels"
        written = io.BytesIO()
        if self.suffix == ".png":
            self.pixels.save(written, "PNG", compress_level=1)  # lossless for raw images
        else:
            self.pixels.save(written, "JPEG", quality=_QUALITY, subsampling=0)
        return written.getvalue()


@dataclass(frozen=True)
class RecordedFrame:
    """One image of a recording. `picture` decodes it and raises BadImage on failure."""

    time_ns: int  # since 1970; since the start for a video without a date
    picture: Callable[[], FramePicture]
    position: Position | None = None

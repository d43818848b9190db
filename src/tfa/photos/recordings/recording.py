"""What a recording is: bags and videos by their names or contents, and the frames read from them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from tfa.types import Position

# --- kinds ----------------------------------------------------------------------------------------

BAGS = (".bag", ".db3", ".mcap")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
BAG_BYTES = {b"#ROSBAG V": ".bag", b"SQLite format 3\0": ".db3", b"\x89MCAP0\r\n": ".mcap"}
NO_TOPIC = "none"  # a position topic that is none
METADATA = "metadata.yaml"  # of a ROS 2 bag, which is a folder
_SIGN = b"rosbag2_bagfile_information"
ALLOWED_RECORDINGS = (
    "a ROS 1 bag (.bag), a ROS 2 bag (.db3, .mcap or its folder), or a video (.mp4, .mkv, .avi, .mov, .webm)"
)


def is_recording(path: Path) -> bool:
    """Is it a bag or a video, by its name or, whatever it is called, by its first bytes?"""
    if path.suffix.lower() in (*BAGS, *VIDEOS):
        return not path.is_dir() or is_bag_folder(path)
    return is_bag_folder(path) or detect_bag(path) is not None


def is_bag_folder(path: Path) -> bool:
    """Is it a ROS 2 bag, and not a folder of photos with a file of that name in it?"""
    try:
        with open(path / METADATA, "rb") as file:
            return _SIGN in file.read(4096)
    except OSError:
        return False


def detect_bag(path: Path) -> str | None:
    """The suffix that a bag of this content has; None if it is no bag."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return None
    return next((suffix for sign, suffix in BAG_BYTES.items() if start.startswith(sign)), None)


# --- recording ------------------------------------------------------------------------------------

_QUALITY = 95  # of JPEGs that are made of a video


@dataclass(frozen=True)
class FramePicture:
    """A frame as a photo: the bytes of an image file as they were recorded, or pixels and how to keep them."""

    suffix: str  # .jpg, .png or .webp
    content: bytes | None = None
    pixels: Image.Image | None = None

    def image(self, size: tuple[int, int] | None = None) -> Image.Image:
        """The pixels; if `size` is given, at least as many, which is quicker for a JPEG."""
        if self.pixels is not None:
            return self.pixels
        assert self.content is not None, "it has bytes or pixels"
        image = Image.open(io.BytesIO(self.content))
        if size is not None:
            image.draft("L", size)
        return image

    def to_bytes(self) -> bytes:
        """An image file: recorded bytes as they are."""
        if self.content is not None:
            return self.content
        assert self.pixels is not None, "it has bytes or pixels"
        written = io.BytesIO()
        if self.suffix == ".png":
            self.pixels.save(written, "PNG", compress_level=1)  # of raw images nothing is lost
        else:
            self.pixels.save(written, "JPEG", quality=_QUALITY, subsampling=0)
        return written.getvalue()


@dataclass(frozen=True)
class RecordedFrame:
    """One image of a recording. `picture` decodes it, and raises BadImage where it cannot."""

    time_ns: int  # since 1970; of a video that does not say when it was recorded, since its start
    picture: Callable[[], FramePicture]
    position: Position | None = None


class Recording(Protocol):
    """An open bag or video."""

    path: Path
    total: int  # frames, as far as is known before they are read
    notes: list[str]

    @property
    def placed(self) -> bool:
        """Does it say positions?"""
        ...

    def frames(self) -> Iterator[RecordedFrame]:
        """All frames, in the order of time; they cannot be read after the next one was asked for."""
        ...

    def facts(self) -> dict[str, Any]:
        """Where frames and positions come from, in JSON."""
        ...

"""What a recording is to whoever reads it: frames in the order of time, each decoded when it is wanted."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from tfa.photos.positions import Position

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

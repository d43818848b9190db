"""What may be given as a photo, a path, bytes, a PIL image or an array of pixels; and why something else may not."""

from __future__ import annotations

import os
import reprlib
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tfa.errors import BadSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

Source = str | os.PathLike[str]
Photo = Source | bytes | Image.Image | np.ndarray[Any, np.dtype[np.uint8]]  # an array is H×W×3 in RGB

ALLOWED_PHOTOS = "a path, the bytes of an image file, a PIL image, or a uint8 array of height × width × 3 in RGB"
A_FILE = "give the path of an image file"
EMPTY_FILE = "it is not an image: it has no bytes; give the whole file"
_LONGEST_NAME = 200  # letters of a name that an error quotes


def name_photo(photo: Photo) -> str:
    """What an answer or an error calls a photo."""
    if isinstance(photo, bytes):
        return "bytes"
    if isinstance(photo, Image.Image):
        return str(getattr(photo, "filename", "")) or "PIL image"
    if isinstance(photo, np.ndarray):
        return "array"
    return os.fspath(photo)


def shorten_photo_name(photo: Photo) -> str:
    """The same for an error: what was no path at all, such as a picture in base64, may be very long."""
    name = name_photo(photo)
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}… ({len(name):,} letters)"


def check_kind(photo: object) -> None:
    """Refuse what is no photo, before it is looked into."""
    if isinstance(photo, np.ndarray):
        check_array(photo)
    elif not isinstance(photo, (str, os.PathLike, bytes, Image.Image)):
        kind = type(photo).__name__
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got {kind} {reprlib.repr(photo)}; {_suggest_instead(photo)}")


def check_array(array: NDArray[Any]) -> None:
    """Refuse pixels that would have to be guessed at, and say how they become a photo."""
    shape = " × ".join(map(str, array.shape)) or "no axes"
    advice = None
    if array.ndim == 2:
        advice = "grey becomes RGB by numpy.repeat(array[..., None], 3, axis=2)"
    elif array.ndim == 4:
        advice = "give the photos of a batch one by one, or all of them to query_many"
    elif array.ndim != 3:
        advice = "a photo has three axes"
    elif array.shape[0] == 3 != array.shape[2]:
        advice = "colours come last: array.transpose(1, 2, 0)"
    elif array.shape[2] == 4:
        advice = "leave out alpha: array[..., :3]"
    elif array.shape[2] == 1:
        advice = "grey becomes RGB by numpy.repeat(array, 3, axis=2)"
    elif array.shape[2] != 3:
        advice = "three colours come last"
    elif not array.size:
        advice = "it has no pixels"
    elif array.dtype != np.uint8:
        floats = np.issubdtype(array.dtype, np.floating)
        scaled = "of values from 0 to 1: (array * 255).round().astype('uint8')"
        advice = scaled if floats else "of values from 0 to 255: array.astype('uint8')"
    if advice is not None:
        raise BadSpec(f"a photo must be {ALLOWED_PHOTOS}, got an array of {array.dtype}, {shape}; {advice}")


def _suggest_instead(photo: object) -> str:
    """What to do with something that is nearly a photo."""
    if isinstance(photo, (bytearray, memoryview)):
        return "give bytes(…) of it"
    if hasattr(photo, "read"):
        return "give what it reads: file.read()"
    if isinstance(photo, (list, tuple)):
        return "give several photos to query_many, one by one"
    if hasattr(photo, "__array__"):
        return "give numpy.asarray(…) of it, colours last"
    return "give one of these"

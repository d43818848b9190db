"""Photos of strangers: of a few formats, with a bounded number of pixels, decoded whole or refused."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from tfa.errors import BadImage
from tfa.photos.images import as_rgb, image_extensions

# What cameras, phones and screens write. Pillow reads many more, whose decoders fewer people have attacked.
EXTENSIONS = {
    "JPEG": ".jpg",
    "MPO": ".jpg",
    "PNG": ".png",
    "WEBP": ".webp",
    "TIFF": ".tif",
    "BMP": ".bmp",
    "GIF": ".gif",
}
_ALLOWED_FORMATS = "JPEG, PNG, WebP, TIFF, BMP or GIF"


class UnknownFormat(BadImage):
    """A file that is no photo, or of a format that is not taken from strangers."""


class TooManyPixels(BadImage):
    """A photo that would take more memory than one may."""


def decode_untrusted(content: bytes, name: str, most_pixels: int) -> tuple[Image.Image, str]:
    """The photo upright and in RGB, and Pillow's name of its format; pixels are counted before they are decoded."""
    kind = _format(content, name, most_pixels)
    try:
        return as_rgb(content, name), kind
    except BadImage as error:
        raise BadImage(f"{error}; it may be truncated, send the whole file", name) from None


def _format(content: bytes, name: str, most_pixels: int) -> str:
    """From the header alone."""
    image_extensions()  # Pillow knows its formats by name only once all of them are registered
    formats = [kind for kind in EXTENSIONS if kind in Image.OPEN]  # the reader of JPEG recognises MPO
    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            (width, height), kind = image.size, str(image.format)
    except UnidentifiedImageError:
        raise UnknownFormat(
            f"{name} is no whole photo of a kind this service reads; send {_ALLOWED_FORMATS}", name
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(name, "far", most_pixels) from None
    except MemoryError:
        raise
    except Exception:  # decoders of damaged headers raise whatever they stumble on
        raise BadImage(f"{name} is damaged: its header cannot be read; send the whole file", name) from None
    if width * height > most_pixels:
        raise _too_many(name, f"{width} × {height},", most_pixels)
    return kind


def _too_many(name: str, size: str, most_pixels: int) -> TooManyPixels:
    allowed = f"more than the {most_pixels:,} allowed"
    return TooManyPixels(f"{name} has too many pixels: {size} {allowed}; send a smaller copy", name)

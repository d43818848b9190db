"""Photos that clients send: read from a form or from JSON, checked before they are decoded."""

from __future__ import annotations

import base64
import binascii
import io
import re
import unicodedata
from dataclasses import dataclass
from pathlib import PurePosixPath

from PIL import Image, UnidentifiedImageError

from tfa.errors import BadImage
from tfa.photos.images import as_rgb, image_extensions
from tfa.service.middleware import megabytes
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

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
ALLOWED = "JPEG, PNG, WebP, TIFF, BMP or GIF"
LONGEST_NAME = 100


@dataclass(frozen=True)
class Upload:
    """A photo as it arrived; `name` is what its sender calls it, made safe to be a file's name."""

    name: str
    content: bytes


def safe_name(given: str | None) -> str:
    """The last part of a name without anything a path or a shell could stumble on."""
    name = unicodedata.normalize("NFC", given or "").replace("\\", "/").rsplit("/", 1)[-1]
    name = re.sub(r"[^\w.@+-]+", "_", name).lstrip(".-_")
    # Cut in bytes, as file systems count, and keep the ending.
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    ending = ending.encode()[:10].decode("utf-8", "ignore")
    stem = stem.encode()[: LONGEST_NAME - len(ending.encode())].decode("utf-8", "ignore")
    return f"{stem}{dot}{ending}" if stem else "photo"


def upload_of(name: str | None, content: bytes, settings: ServiceSettings) -> Upload:
    """Refuse what is empty or too large."""
    upload, most = Upload(safe_name(name), content), settings.max_upload
    if not content:
        raise Refused(422, f"{upload.name} is empty; send the bytes of a photo")
    if len(content) > most:
        allowed = f"{megabytes(most)}, the most a photo may have"
        raise Refused(413, f"{upload.name} is larger than {allowed}; send a smaller copy")
    return upload


def from_base64(text: str, number: int, settings: ServiceSettings) -> Upload:
    """A photo written in base64, with or without the head of a data URL."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        sentence = f"image {number + 1} is not base64; encode the bytes of the photo file, in one line"
        raise Refused(422, sentence) from None
    return upload_of(f"image-{number + 1}", content, settings)


def format_of(upload: Upload, settings: ServiceSettings) -> str:
    """Pillow's name of the photo's format; refuses other files and too many pixels, from the header alone."""
    image_extensions()  # Pillow knows its formats by name only once all of them are registered
    formats = [name for name in EXTENSIONS if name in Image.OPEN]  # the reader of JPEG recognises MPO
    try:
        with Image.open(io.BytesIO(upload.content), formats=formats) as image:
            (width, height), kind = image.size, str(image.format)
    except UnidentifiedImageError:
        raise Refused(415, f"{upload.name} is no whole photo of a kind this service reads; send {ALLOWED}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Refused(413, _too_many(upload.name, "far", settings)) from None
    except Exception:  # decoders of damaged headers raise whatever they stumble on
        raise Refused(422, f"{upload.name} is damaged: its header cannot be read; send the whole file") from None
    if width * height > settings.max_pixels:
        raise Refused(413, _too_many(upload.name, f"{width} × {height},", settings))
    return kind


def _too_many(name: str, size: str, settings: ServiceSettings) -> str:
    return f"{name} has too many pixels: {size} more than the {settings.max_pixels:,} allowed; send a smaller copy"


def picture_of(upload: Upload, settings: ServiceSettings) -> Image.Image:
    """The decoded photo, upright and in RGB; refuses what is no whole photo."""
    format_of(upload, settings)
    try:
        return as_rgb(upload.content, upload.name)
    except BadImage as error:
        raise Refused(422, f"{error}; it may be truncated, send the whole file") from None


def file_name(upload: Upload, settings: ServiceSettings) -> str:
    """The upload's name, with an ending that says what it is; refuses as `format_of` does."""
    kind = format_of(upload, settings)
    known = PurePosixPath(upload.name).suffix.lower() in image_extensions()
    return upload.name if known else f"{upload.name}{EXTENSIONS[kind]}"

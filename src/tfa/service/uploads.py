"""Photos that clients send: read from a form or from JSON, checked and named."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from dataclasses import dataclass
from pathlib import PurePosixPath

from tfa.photos.images import EXTENSIONS, image_extensions
from tfa.service.middleware import megabytes
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

LONGEST_NAME = 100


@dataclass(frozen=True)
class Upload:
    """A photo as it arrived; `name` is what its sender calls it, made safe to be a file's name."""

    name: str
    content: bytes


def safe_name(text: str | None) -> str:
    """The last part of a name without anything a path or a shell could stumble on."""
    name = unicodedata.normalize("NFC", text or "").replace("\\", "/").rsplit("/", 1)[-1]
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


def file_name(upload: Upload, kind: str) -> str:
    """The upload's name, with an ending that says what it is; `kind` is Pillow's name of its format."""
    known = PurePosixPath(upload.name).suffix.lower() in image_extensions()
    return upload.name if known else f"{upload.name}{EXTENSIONS[kind]}"

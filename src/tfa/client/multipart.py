"""Photos of a client as files, files as the body of a form, and answers as hits."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.errors import BadImage
from tfa.photos.images import Photo, as_rgb

if TYPE_CHECKING:
    from tfa.client.connections import Reply
    from tfa.maps import Hit

QUERY_BATCH = 16  # photos sent at a time
BATCH_BYTES = 100_000_000  # and so many bytes at most
PICTURE_BYTES = 3  # a pixel; PNG takes less


def photo_file(photo: Photo) -> tuple[str, bytes]:
    """Name and content of a photo; a PIL image is written as PNG, which loses nothing."""
    if isinstance(photo, bytes):
        return "photo", photo
    if not isinstance(photo, (str, os.PathLike)):  # a PIL image
        written = io.BytesIO()
        as_rgb(photo).save(written, "PNG")
        return "photo.png", written.getvalue()
    path = Path(photo)
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise BadImage(f"{path} cannot be read: {error.strerror or error}") from None


def size_of(photo: Photo) -> int:
    """How many bytes it will be, about."""
    if isinstance(photo, bytes):
        return len(photo)
    if not isinstance(photo, (str, os.PathLike)):
        return int(PICTURE_BYTES * photo.width * photo.height)
    try:
        return Path(photo).stat().st_size
    except OSError:
        return 0


def form_of(key: str, files: Sequence[tuple[str, bytes]], fields: Mapping[str, str]) -> tuple[str, bytes]:
    """Content type and body of a multipart form."""
    # A boundary must not occur in the files: 128 random bits do not.
    boundary = f"tfa-{secrets.token_hex(16)}"
    pieces: list[bytes] = []
    for name, value in fields.items():
        pieces += [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode(), value.encode()]
        pieces.append(b"\r\n")
    for name, content in files:
        shown = name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
        head = f'Content-Disposition: form-data; name="{key}"; filename="{shown}"'
        pieces.append(f"--{boundary}\r\n{head}\r\nContent-Type: application/octet-stream\r\n\r\n".encode())
        pieces += [content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(pieces)


def batches(photos: Sequence[Photo]) -> Iterator[list[Photo]]:
    """Photos in pieces that one request can carry."""
    piece: list[Photo] = []
    size = 0
    for photo in photos:
        more = size_of(photo)
        if piece and (len(piece) == QUERY_BATCH or size + more > BATCH_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(photo)
        size += more
    if piece:
        yield piece


def fields_of(**given: Any) -> dict[str, str]:
    """Form fields of what was given; None is left out, so that the service's defaults hold."""
    shown = {key: value for key, value in given.items() if value is not None}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in shown.items()}


def sentence_of(reply: Reply) -> str:
    """The service's own words for a refusal."""
    try:
        return str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):  # a proxy in between, perhaps
        return f"the service answered {reply.status} {reply.reason}"


def hits_of(answer: dict[str, Any]) -> list[Hit]:
    """The hits of one answer."""
    from tfa.maps import Hit
    from tfa.photos.positions import Position

    return [
        Hit(
            one["id"],
            one["image"],
            one["score"],
            one["confidence"],
            None if one["position"] is None else Position.from_dict(one["position"]),
            one["matches"],
        )
        for one in answer["hits"]
    ]

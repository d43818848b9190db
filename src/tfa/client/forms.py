"""Photos of a client as files of a form, and answers as hits."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.errors import BadImage
from tfa.photos.images import Photo, as_rgb

if TYPE_CHECKING:
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


def fields_of(**given: Any) -> dict[str, Any]:
    """Form fields of what was given; None is left out, so that the service's defaults hold."""
    return {key: value for key, value in given.items() if value is not None}


def skipped_of(reply: dict[str, Any]) -> list[tuple[str, str]]:
    """Photos that were left out, and why."""
    return [(one["image"], one["reason"]) for one in reply["skipped"]]


def hits_of(answer: dict[str, Any]) -> list[Hit]:
    """The hits of one answer."""
    from tfa.maps import Hit
    from tfa.photos.positions import Position

    keys = ("id", "image", "score", "confidence", "matches")
    return [
        Hit(**{key: one[key] for key in keys}, position=one["position"] and Position.from_dict(one["position"]))
        for one in answer["hits"]
    ]

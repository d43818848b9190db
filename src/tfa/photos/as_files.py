"""Photos of any kind as files: what a service is sent, and what a map is calibrated with."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.errors import BadImage, from_os_error
from tfa.photos.images import as_rgb, find_images
from tfa.photos.photo_source import A_FILE, EMPTY_FILE, Photo, check_kind, shorten_photo_name

PhotoFile = tuple[str, bytes]  # name and content
PhotosLike = Photo | Sequence[Photo]  # one photo, several, or a folder of them


def read_photo_file(photo: Photo) -> PhotoFile:
    """Name and content of a photo; pixels are written as PNG, which loses nothing."""
    check_kind(photo)
    if isinstance(photo, bytes):
        if not photo:
            raise BadImage(f"{shorten_photo_name(photo)} cannot be sent: {EMPTY_FILE}")
        return "photo", photo
    if isinstance(photo, (Image.Image, np.ndarray)):
        written = io.BytesIO()
        as_rgb(photo).save(written, "PNG")
        return "photo.png", written.getvalue()
    path = Path(photo)
    try:
        return path.name, path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path has a zero byte in it
        reason = getattr(error, "strerror", None) or error
        name = shorten_photo_name(photo)
        raise BadImage(f"{name} cannot be read: {reason}; {A_FILE}", name) from None


def expand_photos(photos: PhotosLike) -> list[Photo]:
    """Several photos one by one: a photo is a list of one, a folder is the photos in it."""
    one_alone = isinstance(photos, (str, os.PathLike, bytes, Image.Image, np.ndarray)) or hasattr(photos, "read")
    several: list[Any] = [photos] if one_alone or not isinstance(photos, Iterable) else list(photos)
    found: list[Photo] = []
    for one in several:
        is_folder = isinstance(one, (str, os.PathLike)) and os.path.isdir(one)
        found += find_images(one) if is_folder else [one]
    return found


@contextmanager
def photo_paths(photos: PhotosLike) -> Iterator[list[Path]]:
    """Their paths; of photos in memory those of files that are there as long as the context is."""
    given = expand_photos(photos)
    for one in given:
        check_kind(one)
    if all(isinstance(one, (str, os.PathLike)) for one in given):
        yield find_images([Path(one) for one in given if isinstance(one, (str, os.PathLike))])
        return
    try:
        with tempfile.TemporaryDirectory(prefix="tfa-photos-") as folder:
            yield find_images([_as_path(photo, number, folder) for number, photo in enumerate(given)])
    except OSError as error:
        raise from_os_error(error) or error from None


def _as_path(photo: Photo, number: int, folder: str) -> Path:
    if isinstance(photo, (str, os.PathLike)):
        return Path(photo)
    name, content = read_photo_file(photo)
    path = Path(folder, f"{number:06d}-{name}")
    path.write_bytes(content)
    return path

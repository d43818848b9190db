"""Small pictures of queries and answers: inside the page, or in a folder beside it where they are many."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tfa.core.arrays import map_in_threads
from tfa.core.files import write_atomically
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage
from tfa.photos.images import as_rgb

SIDE = 256  # pixels of the longer side
QUALITY = 72
INSIDE = 16_000_000  # bytes of pictures that a page holds itself; more go into a folder
OURS = re.compile(r"[0-9a-f]{20}\.jpg")


def small_pictures(
    files: Mapping[str, Path], names: Sequence[str], progress: bool | Progress | None = None
) -> dict[str, bytes]:
    """A small JPEG of each name that has a photo; one that is missing or broken has none."""
    wanted = [name for name in dict.fromkeys(names) if name in files]
    with as_progress(progress).task("drawing small pictures", len(wanted), "photos") as task:
        made = map_in_threads(lambda name: _small(files[name]), wanted, task=task)
    return {name: content for name, content in zip(wanted, made, strict=True) if content is not None}


def _small(path: Path) -> bytes | None:
    try:
        photo = as_rgb(path)
    except (BadImage, OSError):
        return None
    photo.thumbnail((SIDE, SIDE))
    held = io.BytesIO()
    photo.save(held, format="JPEG", quality=QUALITY)
    return held.getvalue()


def addresses(pictures: Mapping[str, bytes], page: Path) -> dict[str, str]:
    """Where the page finds each picture: in itself, or in the folder `PAGE_files` that is written beside it."""
    if sum(map(len, pictures.values())) <= INSIDE:
        return {
            name: f"data:image/jpeg;base64,{base64.b64encode(content).decode('ascii')}"
            for name, content in pictures.items()
        }
    folder = page.with_name(f"{page.stem}_files")
    kept = {name: f"{hashlib.sha256(content).hexdigest()[:20]}.jpg" for name, content in pictures.items()}
    for name, file in kept.items():
        if not (folder / file).is_file():  # named by their content: one that is there is the same
            write_atomically(folder / file, partial(_put, pictures[name]))
    for old in folder.iterdir():  # of an earlier page of this name
        if OURS.fullmatch(old.name) and old.name not in kept.values():
            old.unlink()
    return {name: f"{folder.name}/{file}" for name, file in kept.items()}


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)

"""Retrieval pairs in hloc's text format: a line for each query and map image, two names and a space between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tfa.base.files import write_text
from tfa.errors import TfaError
from tfa.maps import Answer

Pair = tuple[str, str]


def retrieval_pairs(answers: Sequence[Answer], query_root: Path, map_root: Path) -> list[Pair]:
    """(query, map image) for every hit of every answer, best first, as names below the two folders.

    A query that is in the map itself is not paired with itself.
    """
    pairs = []
    for answer in answers:
        photo = Path(answer.query)
        query = relative_name(photo, query_root)
        for hit in answer.hits:
            image = Path(hit.image)
            if image.resolve() == photo.resolve():
                continue
            pairs.append((query, relative_name(image, map_root)))
    return pairs


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    write_text(Path(path), "".join(f"{query} {image}\n" for query, image in pairs))


def relative_name(photo: Path, root: Path) -> str:
    """The photo's name below a folder, with forward slashes."""
    whole, below = photo.resolve(), root.resolve()
    if not whole.is_relative_to(below):
        raise TfaError(f"{photo} is not below {root}; give a folder that holds all photos with --root")
    name = whole.relative_to(below).as_posix()
    if any(letter.isspace() for letter in name):
        raise TfaError(f"{name!r} has white space in its name, which pairs are separated by; rename it")
    return name


def common_folder(photos: Sequence[Path]) -> Path:
    """The deepest folder that holds all photos."""
    return Path(os.path.commonpath([photo.resolve().parent for photo in photos]))

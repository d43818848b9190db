"""Retrieval pairs as names below a folder; in hloc's text format a line each, two names and a space between."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tfa.base.files import write_text
from tfa.errors import TfaError
from tfa.maps import Answer

Pair = tuple[str, str]
WHITE_SPACE = "white space"


class PhotoPair(NamedTuple):
    """A query and an image of the map that it is to be matched with."""

    query: Path
    image: Path
    confidence: float


def pair_photos(answers: Sequence[Answer]) -> list[PhotoPair]:
    """Every hit of every answer, best first. A query that is in the map itself is not paired with itself."""
    return [
        PhotoPair(Path(answer.query), Path(hit.image), hit.confidence)
        for answer in answers
        for hit in answer.hits
        if Path(hit.image).resolve() != Path(answer.query).resolve()
    ]


def named_pairs(
    pairs: Sequence[PhotoPair], query_root: Path, map_root: Path, separator: str = WHITE_SPACE
) -> list[Pair]:
    """The pairs as names below the two folders."""
    return [
        (relative_name(one.query, query_root, separator), relative_name(one.image, map_root, separator))
        for one in pairs
    ]


def retrieval_pairs(answers: Sequence[Answer], query_root: Path, map_root: Path) -> list[Pair]:
    """(query, map image) for every hit of every answer, best first, as names below the two folders.

    A query that is in the map itself is not paired with itself.
    """
    return named_pairs(pair_photos(answers), query_root, map_root)


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    write_text(Path(path), "".join(f"{query} {image}\n" for query, image in pairs))


def roots_without_collisions(
    queries: Sequence[Path], images: Sequence[Path], query_root: Path, map_root: Path
) -> tuple[Path, Path, str | None]:
    """The two folders, if no name means one photo below one of them and another below the other.

    If one does, the folder that holds all photos takes the place of both, and a sentence says so.
    """
    below = {_below(photo, query_root): photo.resolve() for photo in queries}
    for image in images:
        name = _below(image, map_root)
        if name is not None and below.get(name, image.resolve()) != image.resolve():
            both = find_common_folder([*queries, *images])
            return both, both, f"{name} names a query and another photo of the map: all names are below {both}"
    return query_root, map_root, None


def _below(photo: Path, root: Path) -> str | None:
    whole, folder = photo.resolve(), root.resolve()
    return whole.relative_to(folder).as_posix() if whole.is_relative_to(folder) else None


def relative_name(photo: Path, root: Path, separator: str = WHITE_SPACE) -> str:
    """The photo's name below a folder, with forward slashes; `separator` is what it must not contain."""
    name = _below(photo, root)
    if name is None:
        raise TfaError(f"{photo} is not below {root}; give a folder that holds all photos with --root")
    parts = any(map(str.isspace, name)) if separator == WHITE_SPACE else separator in name or "\n" in name
    if parts:
        raise TfaError(f"{name!r} has {separator} in its name, which pairs are separated by; rename it")
    return name


def find_common_folder(photos: Iterable[Path]) -> Path:
    """The deepest folder that holds all photos."""
    try:
        return Path(os.path.commonpath([photo.resolve().parent for photo in photos]))
    except ValueError:
        raise TfaError("the photos lie on several drives, so no folder holds all of them; copy them to one") from None

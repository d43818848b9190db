"""Export image pairs and descriptors to hloc, COLMAP, kapture and other structure-from-motion tools."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfa.core.files import read_json, write_atomically, write_text
from tfa.core.tokens import Tokens
from tfa.errors import MissingExtra, TfaError
from tfa.exports.vectors import CompiledMap
from tfa.method.scorer import Compiled
from tfa.types import Answer

# --- hloc pairs -----------------------------------------------------------------------------------

ImagePair = tuple[str, str]
WHITE_SPACE = "white space"


class PhotoPair(NamedTuple):
    """A query and an image of the map that it is to be matched with."""

    query: Path
    image: Path
    confidence: float


def list_photo_pairs(answers: Sequence[Answer]) -> list[PhotoPair]:
    """Every hit of every answer, best first. A query that is in the map itself is not paired with itself."""
    return [
        PhotoPair(Path(answer.query), Path(hit.image), hit.confidence)
        for answer in answers
        for hit in answer.hits
        if Path(hit.image).resolve() != Path(answer.query).resolve()
    ]


def name_pairs(
    pairs: Sequence[PhotoPair], query_root: Path, map_root: Path, separator: str = WHITE_SPACE
) -> list[ImagePair]:
    """The pairs as names below the two folders."""
    return [
        (relative_name(one.query, query_root, separator), relative_name(one.image, map_root, separator))
        for one in pairs
    ]


def rank_pairs(answers: Sequence[Answer], query_root: Path, map_root: Path) -> list[ImagePair]:
    """(query, map image) for every hit of every answer, best first, as names below the two folders.

    A query that is in the map itself is not paired with itself.
    """
    return name_pairs(list_photo_pairs(answers), query_root, map_root)


def write_pairs(path: Path, pairs: Sequence[ImagePair]) -> None:
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
            both = find_photo_root([*queries, *images])
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


def find_photo_root(photos: Iterable[Path]) -> Path:
    """The deepest folder that holds all photos."""
    try:
        return Path(os.path.commonpath([photo.resolve().parent for photo in photos]))
    except ValueError:
        raise TfaError("the photos lie on several drives, so no folder holds all of them; copy them to one") from None


# --- hloc features --------------------------------------------------------------------------------

DATASET = "global_descriptor"


def query_vectors(compiled: CompiledMap, tokens: Tokens) -> np.ndarray:
    """What queries are searched with, `q D+1`: Ψ(q) and a 1."""
    psi = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(tokens).astype(np.float32)
    return np.concatenate([psi, np.ones((len(psi), 1), np.float32)], axis=1)


def write_hloc_features(path: Path, photos: Sequence[Path], vectors: np.ndarray, root: Path) -> None:
    """The vectors `b D` of photos, by their names below `root`."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("descriptors for hloc need h5py; install with: pip install 'tfa-vpr[hloc]'") from None
    names = [relative_name(photo, root) for photo in photos]
    inner = {str(parent) for name in names for parent in Path(name).parents}
    for name in names:
        if name in inner or DATASET in Path(name).parts:
            raise TfaError(f"{name} cannot be a name in hloc's file beside the others; rename it")

    def write(temporary: Path) -> None:
        with h5py.File(str(temporary), "w", locking=False) as file:  # whoever writes atomically holds it
            for name, vector in zip(names, vectors, strict=True):
                file.require_group(name).create_dataset(DATASET, data=vector)

    write_atomically(Path(path), write)


# --- pair files -----------------------------------------------------------------------------------


def write_match_list(path: Path, pairs: Sequence[ImagePair]) -> int:
    """COLMAP's list of images to match, by name: each two once, whichever comes first. How many they are."""
    once = {frozenset(pair): pair for pair in reversed(pairs)}
    kept = list(once.values())[::-1]
    write_text(Path(path), "".join(f"{one} {other}\n" for one, other in kept))
    return len(kept)


def write_kapture_pairs(path: Path, pairs: Sequence[PhotoPair], root: Path) -> int:
    """kapture's pairs file: query, image of the map and a score, the confidence. How many they are."""
    names = name_pairs(pairs, root, root, ",")
    lines = [f"{query}, {image}, {one.confidence:.6f}\n" for (query, image), one in zip(names, pairs, strict=True)]
    write_text(Path(path), "".join(["# kapture format: 1.1\n", "# query_image, map_image, score\n", *lines]))
    return len(lines)


def write_view_pairs(path: Path, pairs: Sequence[PhotoPair], views: Mapping[Path, int]) -> int:
    """AliceVision's image pairs: in a line a view and the later views it is matched with. How many pairs they are."""
    found: dict[int, set[int]] = {}
    for one in pairs:
        ends = []
        for photo in (one.query, one.image):
            view = views.get(photo.resolve())
            if view is None:
                raise TfaError(f"{photo} is no view of the sfm file; import all photos, of queries and map, into it")
            ends.append(view)
        found.setdefault(min(ends), set()).add(max(ends))
    lines = [" ".join(map(str, [first, *sorted(found[first])])) + "\n" for first in sorted(found)]
    write_text(Path(path), "".join(lines))
    return sum(map(len, found.values()))


def read_views(path: Path) -> dict[Path, int]:
    """The views of an sfm file in JSON, as AliceVision's cameraInit writes it: photos and their numbers."""
    try:
        views = read_json(path)["views"]
        found = {Path(one["path"]).resolve(): int(one["viewId"]) for one in views}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TfaError(
            f"{path} is no sfm file with views ({error}); give what cameraInit wrote as JSON", path
        ) from None
    if len(set(found.values())) < len(views):
        raise TfaError(
            f"{path} has several views of one photo, or one number for several; import each photo once", path
        )
    return found

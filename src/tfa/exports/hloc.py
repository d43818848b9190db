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

ImagePair = tuple[str, str]
WHITE_SPACE = "white space"


class PhotoPair(NamedTuple):
    """A query and a map image to match it with."""

    query: Path
    image: Path
    confidence: float


def list_photo_pairs(answers: Sequence[Answer]) -> list[PhotoPair]:
    """List every hit of every answer, best first. A query that is a map image is not paired with itself."""
    return [
        PhotoPair(Path(answer.query), Path(hit.image), hit.confidence)
        for answer in answers
        for hit in answer.hits
        if Path(hit.image).resolve() != Path(answer.query).resolve()
    ]


def name_pairs(
    pairs: Sequence[PhotoPair], query_root: Path, map_root: Path, separator: str = WHITE_SPACE
) -> list[ImagePair]:
    """Return the pairs as file names relative to the two folders."""
    return [
        (relative_name(one.query, query_root, separator), relative_name(one.image, map_root, separator))
        for one in pairs
    ]


def write_pairs(path: Path, pairs: Sequence[ImagePair]) -> None:
    """Write hloc's pairs file: a query and a map image per line."""
    write_text(Path(path), "".join(f"{query} {image}\n" for query, image in pairs))


def roots_without_collisions(
    queries: Sequence[Path], images: Sequence[Path], query_root: Path, map_root: Path
) -> tuple[Path, Path, str | None]:
    """Return the two folders if no name means different photos below them.

    Otherwise return the common folder of all photos twice, and a sentence that says so.
    """
    below = {_below(photo, query_root): photo.resolve() for photo in queries}
    for image in images:
        name = _below(image, map_root)
        if name is not None and below.get(name, image.resolve()) != image.resolve():
            both = find_photo_root([*queries, *images])
            return both, both, f"{name} names both a query and another map image: all names are relative to {both}"
    return query_root, map_root, None


def _below(photo: Path, root: Path) -> str | None:
    whole, folder = photo.resolve(), root.resolve()
    return whole.relative_to(folder).as_posix() if whole.is_relative_to(folder) else None


def relative_name(photo: Path, root: Path, separator: str = WHITE_SPACE) -> str:
    """Return a photo's name relative to a folder, with forward slashes; it must not contain `separator`."""
    name = _below(photo, root)
    if name is None:
        raise TfaError(f"{photo} is not below {root}; pass a folder that contains all photos to --root")
    parts = any(map(str.isspace, name)) if separator == WHITE_SPACE else separator in name or "\n" in name
    if parts:
        raise TfaError(f"{name!r} contains {separator}, which separates the names of a pair; rename the file")
    return name


def find_photo_root(photos: Iterable[Path]) -> Path:
    """Return the deepest folder that contains all photos."""
    try:
        return Path(os.path.commonpath([photo.resolve().parent for photo in photos]))
    except ValueError:
        raise TfaError("the photos are on several drives, so they have no common folder; copy them to one") from None


DATASET = "global_descriptor"


def query_vectors(compiled: CompiledMap, tokens: Tokens) -> np.ndarray:
    """Return the search vectors of queries, (q, D + 1): Ψ(q) and a 1."""
    psi = Compiled(compiled.scorer, compiled.vectors, compiled.bias).query(tokens).astype(np.float32)
    return np.concatenate([psi, np.ones((len(psi), 1), np.float32)], axis=1)


def write_hloc_features(path: Path, photos: Sequence[Path], vectors: np.ndarray, root: Path) -> None:
    """Write the vectors (b, D) of photos by their names relative to `root`."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("descriptors for hloc need h5py; install with: pip install 'tfa-vpr[hloc]'") from None
    names = [relative_name(photo, root) for photo in photos]
    inner = {str(parent) for name in names for parent in Path(name).parents}
    for name in names:
        if name in inner or DATASET in Path(name).parts:
            raise TfaError(f"{name} conflicts with another name in hloc's file; rename the photo")

    def write(temporary: Path) -> None:
        with h5py.File(str(temporary), "w", locking=False) as file:  # atomic writing already locks it
            for name, vector in zip(names, vectors, strict=True):
                file.require_group(name).create_dataset(DATASET, data=vector)

    write_atomically(Path(path), write)


def write_match_list(path: Path, pairs: Sequence[ImagePair]) -> int:
    """Write a COLMAP match list with each unordered pair once. Returns the number of pairs."""
    once = {frozenset(pair): pair for pair in reversed(pairs)}
    kept = list(once.values())[::-1]
    write_text(Path(path), "".join(f"{one} {other}\n" for one, other in kept))
    return len(kept)


def write_kapture_pairs(path: Path, pairs: Sequence[PhotoPair], root: Path) -> int:
    """Write kapture's pairs file with confidences as scores. Returns the number of pairs."""
    names = name_pairs(pairs, root, root, ",")
    lines = [f"{query}, {image}, {one.confidence:.6f}\n" for (query, image), one in zip(names, pairs, strict=True)]
    write_text(Path(path), "".join(["# kapture format: 1.1\n", "# query_image, map_image, score\n", *lines]))
    return len(lines)


def write_view_pairs(path: Path, pairs: Sequence[PhotoPair], views: Mapping[Path, int]) -> int:
    """Write AliceVision's image pairs: a view and the later views it matches per line. Returns the number of pairs."""
    found: dict[int, set[int]] = {}
    for one in pairs:
        ends = []
        for photo in (one.query, one.image):
            view = views.get(photo.resolve())
            if view is None:
                raise TfaError(f"{photo} is not a view of the sfm file; import all queries and map images into it")
            ends.append(view)
        found.setdefault(min(ends), set()).add(max(ends))
    lines = [" ".join(map(str, [first, *sorted(found[first])])) + "\n" for first in sorted(found)]
    write_text(Path(path), "".join(lines))
    return sum(map(len, found.values()))


def read_views(path: Path) -> dict[Path, int]:
    """Read the photos and view numbers of a JSON sfm file of AliceVision's cameraInit."""
    try:
        views = read_json(path)["views"]
        found = {Path(one["path"]).resolve(): int(one["viewId"]) for one in views}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TfaError(
            f"{path} is not an sfm file with views ({error}); pass the JSON file that cameraInit wrote", path
        ) from None
    if len(set(found.values())) < len(views):
        raise TfaError(
            f"{path} has several views of one photo, or one number for several photos; import each photo once", path
        )
    return found

"""Retrieval pairs for other programs than hloc: COLMAP's match list, AliceVision's view pairs, kapture's pairs file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfa.base.files import write_text
from tfa.base.reading import read_json
from tfa.errors import TfaError
from tfa.exports.hloc_pairs import ImagePair, PhotoPair, name_pairs


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

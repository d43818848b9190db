"""The photos of a map looked up: by name or id, and their tokens in the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfa.core.files import hash_file
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, UnknownImage
from tfa.photos.token_cache import TokenCache
from tfa.types import ImageRecord

_LOST_ADVICE = (
    "take them out for good with tfa remove and tfa refit "
    "(a calibration needs every photo the map was fitted on, removed ones too)"
)

if TYPE_CHECKING:
    from tfa.maps.map import Map


def load_tokens(
    place_map: Map,
    records: Sequence[ImageRecord],
    progress: bool | Progress | None = None,
    otherwise: str = _LOST_ADVICE,
) -> Tokens:
    """Tokens of the map's photos; what the cache lost is encoded again from files that have not changed.

    `otherwise` is what to do about photos that are lost.
    """
    cache, (rows, columns) = place_map.cache or TokenCache(), place_map.state.encoder["grid"]
    digests, paths = [record.digest for record in records], [record.path for record in records]
    fingerprint, missing = _uncached(place_map, cache, digests)
    if missing:
        gone = [paths[i] for i in missing if not Path(paths[i]).is_file()]
        if gone:
            raise BadMap(
                f"{len(gone)} photos are neither in the token cache nor on disk (first: {gone[0]}); "
                f"restore them, or {otherwise}",
                gone[0],
            )
        again = cache.encode([Path(paths[i]) for i in missing], place_map.encoder, progress=progress)
        for path, digest, i in zip(again.paths, again.digests, missing, strict=True):
            if digest != digests[i]:
                raise BadMap(f"{path} is not the photo the map was built with; restore it, or {otherwise}", path)
    return cache.tokens(fingerprint, digests, paths, (rows, columns))


def find_lost_photos(place_map: Map, records: Sequence[ImageRecord]) -> list[str]:
    """Paths of all photos whose tokens cannot be had: in no cache, and not on disk as they were."""
    _, missing = _uncached(place_map, place_map.cache or TokenCache(), [record.digest for record in records])

    def is_there(record: ImageRecord) -> bool:
        path = Path(record.path)
        return path.is_file() and hash_file(path) == record.digest

    return [records[i].path for i in missing if not is_there(records[i])]


def _uncached(place_map: Map, cache: TokenCache, digests: Sequence[str]) -> tuple[str, list[int]]:
    """Whose tokens are taken, by the fingerprint of an encoder, and which of the photos are not among them."""
    fingerprint = place_map.state.encoder["fingerprint"]
    missing = cache.missing(fingerprint, digests)
    if missing:
        # Another arithmetic of the map's model has a shelf of its own: all tokens are taken from there, or none.
        fingerprint = place_map.encoder.fingerprint
        missing = cache.missing(fingerprint, digests)
    return fingerprint, missing


def find_image_records(records: Sequence[ImageRecord], photos: Sequence[str | Path | int]) -> list[ImageRecord]:
    """Each photo's image, by its id, its path, or the end of its path if that is unambiguous."""
    by_id: dict[int, ImageRecord] = {}
    by_path: dict[str, list[ImageRecord]] = {}
    by_name: dict[str, list[ImageRecord]] = {}  # the last part of a path: what every ending of it has in common
    for record in records:
        by_id[record.id] = record
        by_path.setdefault(record.path, []).append(record)
        by_name.setdefault(os.path.basename(record.path), []).append(record)

    def matching(photo: str | Path | int) -> list[ImageRecord]:
        if isinstance(photo, int):
            return [by_id[photo]] if photo in by_id else []
        whole, ending = str(Path(photo).resolve()), Path(photo).parts
        alike = by_name.get(Path(photo).name, [])
        return by_path.get(whole) or [one for one in alike if Path(one.path).parts[-len(ending) :] == ending]

    return [_only(photo, matching(photo)) for photo in photos]


def _only(photo: str | Path | int, records: Sequence[ImageRecord]) -> ImageRecord:
    if len(records) > 1:
        raise UnknownImage(f"{photo} may be any of {len(records)} photos of the map; give its whole path or its id")
    if not records:
        raise UnknownImage(f"{photo} is not in the map; tfa info --json lists the photos that are")
    return records[0]


def drop_repeated_files(paths: Sequence[Path]) -> list[Path]:
    """Each file once, under the first name it was given."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]

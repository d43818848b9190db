"""Upkeep of the token cache: how much there is of each encoder, and making room."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from tfa.base.files import read_tensor_header
from tfa.encoders.fingerprint import under_todays_name
from tfa.errors import BadSpec, TfaError
from tfa.photos.cache_room import DAY, Pruned, make_room, shards
from tfa.photos.token_cache import TokenCache


@dataclass(frozen=True)
class ShelfFacts:
    """The tokens of one encoder."""

    encoder: str
    fingerprint: str
    files: int
    images: int
    bytes: int


def shelves(cache: TokenCache | None = None) -> list[ShelfFacts]:
    """What the cache holds of each encoder, the largest first."""
    folder = (cache or TokenCache()).folder
    found = [_facts(shelf) for shelf in sorted(folder.glob("*")) if shelf.is_dir()] if folder.is_dir() else []
    return sorted((facts for facts in found if facts.files), key=lambda facts: -facts.bytes)


def _facts(shelf: Path) -> ShelfFacts:
    encoder, images, sizes = "unknown", 0, []
    for file in shards(shelf):
        sizes.append(file.stat().st_size)
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file only takes room
            tensors, metadata, _ = read_tensor_header(file)
            made = {"id": metadata.get("encoder", encoder), "fingerprint": metadata.get("fingerprint")}
            encoder = under_todays_name(made)["id"]
            images += sum(name.endswith(".patches") for name in tensors)
    return ShelfFacts(encoder, shelf.name, len(sizes), images, sum(sizes))


def prune(older_than: float | None = None, max_bytes: int | None = None, cache: TokenCache | None = None) -> Pruned:
    """Delete tokens that were not used for `older_than` days; then those used longest ago until `max_bytes` are left.

    What is deleted is encoded again when it is needed and the photo is still there.
    """
    if (older_than is None and max_bytes is None) or min(older_than or 0, max_bytes or 0) < 0:
        raise BadSpec(f"older_than={older_than}, max_bytes={max_bytes}: give at least one of them, 0 or more")
    seconds = None if older_than is None else older_than * DAY
    return make_room((cache or TokenCache()).folder, unused_seconds=seconds, max_bytes=max_bytes)


def clear(cache: TokenCache | None = None) -> Pruned:
    """Delete all tokens."""
    folder, before = (cache or TokenCache()).folder, shelves(cache)
    shutil.rmtree(folder, ignore_errors=True)
    return Pruned(sum(facts.files for facts in before), sum(facts.bytes for facts in before))

"""Upkeep of the token cache: how much there is of each encoder, and making room."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfa.base.files import read_tensor_header
from tfa.encoders.fingerprint import under_todays_name
from tfa.errors import BadSpec, TfaError
from tfa.photos.token_cache import TokenCache

DAY = 86_400  # seconds


@dataclass(frozen=True)
class ShelfFacts:
    """The tokens of one encoder."""

    encoder: str
    fingerprint: str
    files: int
    images: int
    bytes: int


@dataclass(frozen=True)
class Pruned:
    """What was deleted."""

    files: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def shelves(cache: TokenCache | None = None) -> list[ShelfFacts]:
    """What the cache holds of each encoder, the largest first."""
    folder = (cache or TokenCache()).folder
    found = [_facts(shelf) for shelf in sorted(folder.glob("*")) if shelf.is_dir()] if folder.is_dir() else []
    return sorted((facts for facts in found if facts.files), key=lambda facts: -facts.bytes)


def _facts(shelf: Path) -> ShelfFacts:
    encoder, images, sizes = "unknown", 0, []
    for file in _shards(shelf):
        sizes.append(file.stat().st_size)
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file only takes room
            tensors, metadata, _ = read_tensor_header(file)
            made = {"id": metadata.get("encoder", encoder), "fingerprint": metadata.get("fingerprint")}
            encoder = under_todays_name(made)["id"]
            images += sum(name.endswith(".patches") for name in tensors)
    return ShelfFacts(encoder, shelf.name, len(sizes), images, sum(sizes))


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def prune(older_than: float | None = None, max_bytes: int | None = None, cache: TokenCache | None = None) -> Pruned:
    """Delete tokens written more than `older_than` days ago; then the oldest until `max_bytes` are left.

    What is deleted is encoded again when it is needed and the photo is still there.
    """
    if (older_than is None and max_bytes is None) or min(older_than or 0, max_bytes or 0) < 0:
        raise BadSpec(f"older_than={older_than}, max_bytes={max_bytes}: give at least one of them, 0 or more")
    folder = (cache or TokenCache()).folder
    status = {file: file.stat() for shelf in folder.glob("*") for file in _shards(shelf)}
    left = sum(one.st_size for one in status.values())
    files = size = 0
    for file, one in sorted(status.items(), key=lambda item: item[1].st_mtime):
        old = older_than is not None and time.time() - one.st_mtime > older_than * DAY
        if old or (max_bytes is not None and left > max_bytes):
            file.unlink(missing_ok=True)
            left, size, files = left - one.st_size, size + one.st_size, files + 1
    return Pruned(files, size)


def clear(cache: TokenCache | None = None) -> Pruned:
    """Delete all tokens."""
    folder, before = (cache or TokenCache()).folder, shelves(cache)
    shutil.rmtree(folder, ignore_errors=True)
    return Pruned(sum(facts.files for facts in before), sum(facts.bytes for facts in before))

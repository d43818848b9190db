"""Upkeep of the user's cache: how much there is of each encoder, of the benchmark and of unfinished builds, and making
room.

The benchmark keeps what takes it long beside the tokens: SAM's masks of photos, what a learned matcher found, and the
vectors it makes up to measure engines. Builds in shards keep the shards that are done until the map is published. Only
files with the names that these give are counted and deleted: the folder is the user's, and so may be others in it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tfa.base.files import cache_folder, read_tensor_header
from tfa.encoders.fingerprint import under_todays_name
from tfa.errors import BadSpec, TfaError
from tfa.photos.cache_room import DAY, Pruned, make_room, shards
from tfa.photos.token_cache import TokenCache

# Of each kind its folder, and the names of files below it.
BENCHMARK = {
    "masks": ("masks", re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}\.safetensors")),
    "matches": ("matches", re.compile(r"[^/]+/[0-9a-f]{64}\.json")),
    "vectors": ("bench-scale", re.compile(r"places-\d+-\d+\.f32")),
}
BUILDS = ("builds", re.compile(r"[0-9a-f]{32}/[^/]+\.safetensors"))


@dataclass(frozen=True)
class ShelfFacts:
    """The tokens of one encoder."""

    encoder: str
    fingerprint: str
    files: int
    images: int
    bytes: int


@dataclass(frozen=True)
class BenchmarkFacts:
    """What the benchmark keeps of one kind."""

    kind: str
    files: int
    bytes: int


@dataclass(frozen=True)
class BuildFacts:
    """Shards that builds keep which were not finished."""

    builds: int
    files: int
    bytes: int


def benchmark() -> list[BenchmarkFacts]:
    """What the user's cache holds of each kind of results that the benchmark keeps, as far as there is any."""
    sizes = {kind: _sizes(_files(*where)) for kind, where in BENCHMARK.items()}
    return [BenchmarkFacts(kind, len(found), sum(found)) for kind, found in sizes.items() if found]


def unfinished_builds() -> BuildFacts:
    """What the user's cache holds of builds in shards that have not published their map."""
    files = _files(*BUILDS)
    sizes = _sizes(files)
    return BuildFacts(len({file.parent for file in files}), len(sizes), sum(sizes))


def _files(folder: str, names: re.Pattern[str]) -> list[Path]:
    below = cache_folder() / folder
    found = (file for pattern in ("*", "*/*") for file in below.glob(pattern))
    return sorted(file for file in found if names.fullmatch(file.relative_to(below).as_posix()))


def _sizes(files: Iterable[Path]) -> list[int]:
    sizes = []
    for file in files:
        with contextlib.suppress(OSError):  # another process makes room
            sizes.append(file.stat().st_size)
    return sizes


def _beside_the_tokens() -> list[Path]:
    return [file for where in (*BENCHMARK.values(), BUILDS) for file in _files(*where)]


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
    """Delete what was not used for `older_than` days; then what was used longest ago until `max_bytes` are left.

    Of a cache that is given, tokens; else of the user's, tokens and what benchmark and unfinished builds keep. What is
    deleted is made again when it is needed and the photo is still there.
    """
    if (older_than is None and max_bytes is None) or min(older_than or 0, max_bytes or 0) < 0:
        raise BadSpec(f"older_than={older_than}, max_bytes={max_bytes}: give at least one of them, 0 or more")
    seconds = None if older_than is None else older_than * DAY
    besides = _beside_the_tokens() if cache is None else []
    folder = (cache or TokenCache()).folder
    return make_room(folder, unused_seconds=seconds, max_bytes=max_bytes, besides=besides)


def clear(cache: TokenCache | None = None) -> Pruned:
    """Delete all tokens; of the user's own cache, what benchmark and unfinished builds keep as well."""
    folder, before = (cache or TokenCache()).folder, shelves(cache)
    kept = Pruned(0, 0)
    if cache is None:
        kept = make_room(folder / "no tokens", max_bytes=0, besides=_beside_the_tokens())
    shutil.rmtree(folder, ignore_errors=True)
    return Pruned(kept.files + sum(facts.files for facts in before), kept.bytes + sum(facts.bytes for facts in before))

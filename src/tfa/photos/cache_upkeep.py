"""Measure and prune the user's cache: tokens per encoder, benchmark files and unfinished builds.

The benchmark caches SAM masks, results of learned matchers and synthetic vectors. Sharded builds keep finished shards
until the map is published. Only files with names of these kinds are counted and deleted, since the user may store
other files in the folder.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from tfa.core.files import cache_folder, read_tensor_header
from tfa.encoders.catalogue import use_current_name
from tfa.errors import BadSpec, TfaError
from tfa.photos.token_cache import DAY, TokenCache, list_shards, make_room
from tfa.types import CachedResults, CachedTokens, DeletedFiles, UnfinishedBuilds

# Kind → folder and file name pattern.
_BENCHMARK = {
    "masks": ("masks", re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}\.safetensors")),
    "matches": ("matches", re.compile(r"[^/]+/[0-9a-f]{64}\.json")),
    "vectors": ("bench-scale", re.compile(r"places-\d+-\d+\.f32")),
}
_BUILD = re.compile(r"[0-9a-f]{32}")  # folder of a build, in builds/


def measure_benchmark() -> list[CachedResults]:
    """Measure the benchmark files in the user's cache, by kind; kinds without files are left out."""
    sizes = {kind: _sizes(_files(*where)) for kind, where in _BENCHMARK.items()}
    return [CachedResults(kind, len(found), sum(found)) for kind, found in sizes.items() if found]


def measure_unfinished_builds() -> UnfinishedBuilds:
    """Measure the unfinished builds in the user's cache."""
    builds = _builds()
    sizes = [size for build in builds for size in _sizes(_inside(build))]
    return UnfinishedBuilds(len(builds), len(sizes), sum(sizes))


def _builds() -> list[Path]:
    found = (cache_folder() / "builds").glob("*")
    return sorted(folder for folder in found if _BUILD.fullmatch(folder.name) and folder.is_dir())


def _inside(build: Path) -> list[Path]:
    return [file for file in build.rglob("*") if file.is_file()]


def _remove_builds(unused_seconds: float = 0.0) -> DeletedFiles:
    """Remove builds without a file written in the last `unused_seconds`; whole folders, as parts are useless."""
    files = size = 0
    for build in _builds():
        inside = _inside(build)
        with contextlib.suppress(OSError):  # it was just published
            if all(time.time() - file.stat().st_mtime >= unused_seconds for file in inside):
                sizes = _sizes(inside)
                shutil.rmtree(build, ignore_errors=True)
                files, size = files + len(sizes), size + sum(sizes)
    return DeletedFiles(files, size)


def _files(folder: str, names: re.Pattern[str]) -> list[Path]:
    below = cache_folder() / folder
    found = (file for pattern in ("*", "*/*") for file in below.glob(pattern))
    return sorted(file for file in found if names.fullmatch(file.relative_to(below).as_posix()))


def _sizes(files: Iterable[Path]) -> list[int]:
    sizes = []
    for file in files:
        with contextlib.suppress(OSError):  # another process deleted it
            sizes.append(file.stat().st_size)
    return sizes


def _list_benchmark_files() -> list[Path]:
    return [file for where in _BENCHMARK.values() for file in _files(*where)]


def list_shelves(cache: TokenCache | None = None) -> list[CachedTokens]:
    """Measure the cached tokens of each encoder, largest first."""
    folder = (cache or TokenCache()).folder
    found = [_facts(shelf) for shelf in sorted(folder.glob("*")) if shelf.is_dir()] if folder.is_dir() else []
    return sorted((facts for facts in found if facts.files), key=lambda facts: -facts.bytes)


def _facts(shelf: Path) -> CachedTokens:
    encoder, images, sizes = "unknown", 0, []
    for file in list_shards(shelf):
        sizes.append(file.stat().st_size)
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file has only a size
            tensors, metadata, _ = read_tensor_header(file)
            made = {"id": metadata.get("encoder", encoder), "fingerprint": metadata.get("fingerprint")}
            encoder = use_current_name(made)["id"]
            images += sum(name.endswith(".patches") for name in tensors)
    return CachedTokens(encoder, shelf.name, len(sizes), images, sum(sizes))


def prune_cache(older_than: float | None = None, max_bytes: int | None = None) -> DeletedFiles:
    """Delete entries unused for `older_than` days, then least recently used ones until `max_bytes` are left.

    Entries are tokens, benchmark files and unfinished builds of the user's cache. They are recomputed when needed.
    """
    if (older_than is None and max_bytes is None) or min(older_than or 0, max_bytes or 0) < 0:
        raise BadSpec(f"older_than={older_than}, max_bytes={max_bytes}: set at least one of them to 0 or more")
    seconds = None if older_than is None else older_than * DAY
    builds = DeletedFiles(0, 0) if seconds is None else _remove_builds(seconds)
    besides = _list_benchmark_files()
    made = make_room(TokenCache().folder, unused_seconds=seconds, max_bytes=max_bytes, besides=besides)
    return DeletedFiles(made.files + builds.files, made.bytes + builds.bytes)


def clear_cache() -> DeletedFiles:
    """Delete all tokens, benchmark files and unfinished builds of the user's cache."""
    folder = TokenCache().folder
    found = [DeletedFiles(facts.files, facts.bytes) for facts in list_shelves()]
    found += [make_room(folder / "no tokens", max_bytes=0, besides=_list_benchmark_files()), _remove_builds()]
    shutil.rmtree(folder, ignore_errors=True)
    return DeletedFiles(sum(one.files for one in found), sum(one.bytes for one in found))

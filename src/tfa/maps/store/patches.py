"""Compact tokens of a map in a store: a piece an image, read a batch at a time.

PREFIX compaction    what turns patches into compact ones, a document of the map's store
PREFIX at            where the pieces are, if that is another store (`build.patches_at`): written before them, so that
                     dropping a version, or what a killed builder left, finds them
FOLDER id            pieces: bytes `n g` of each image; FOLDER is PREFIX but in another store
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import uuid4

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps.store.header import pack_arrays, read_arrays, version_folder
from tfa.search.store import Store, open_map_store, split_map_url
from tfa.types import RerankSpec
from tfa.verification.patches import CachedPatches, Compaction, CompactTokens, SourcedTokens

_AT = "patches/at"  # how the document ends that says where pieces are
_ELSEWHERE = ("lance", "lance+s3")  # their URLs hold no password: one is kept in the header


@dataclass(frozen=True)
class _StoredPatches:
    """A `PatchSource` of pieces of `n g` bytes."""

    store: Store
    folder: str
    shape: tuple[int, int]
    dtype: type[np.int8 | np.uint8]

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted = [int(one) for one in ids]
        found = self.store.read_pieces(self.folder, sorted(set(wanted)))
        for one in wanted:
            if len(found.get(one, b"")) != self.shape[0] * self.shape[1]:
                what = "damaged" if one in found else "missing"
                raise BadMap(f"the patches of image {one} are {what} in the store; build the map again")
        if not wanted:
            return np.empty((0, *self.shape), self.dtype)
        return np.stack([np.frombuffer(found[one], self.dtype).reshape(self.shape) for one in wanted])


def check_elsewhere(url: str) -> None:
    """Refuse what cannot keep patches for another store."""
    split_map_url(url)
    if url.partition("://")[0] not in _ELSEWHERE:
        raise BadSpec(
            f"build.patches_at={url.partition('://')[0]}://… keeps no patches for another store; give "
            "lance+s3://BUCKET/PREFIX/NAME or lance:///FOLDER/NAME"
        )


def begin_patches(
    store: Store, name: str, version: int, compact: CompactTokens | None, at: str | None = None
) -> dict[str, Any] | None:
    """Once a build, before the first piece: write what describes photos. Returns what the header says of the patches.

    `at` is the URL of another store for the pieces. None if there are no patches.
    """
    if compact is None:
        return None
    prefix = f"{version_folder(name, version)}patches/"
    folder = prefix if at is None else f"{split_map_url(at)[1]}/{uuid4().hex}/"
    if at is not None:
        store.put(f"{prefix}at", json.dumps({"at": at, "folder": folder}).encode())
    store.put(f"{prefix}compaction", pack_arrays(compact.compaction_tensors()))
    return {"prefix": prefix, "at": at, "folder": folder, **compact.to_dict()}


def write_patches(store: Store, place: Mapping[str, Any], ids: Sequence[int] | np.ndarray, patches: np.ndarray) -> None:
    """Compact patches `m n g` of images; from any process, idempotent."""
    pieces = {int(one): np.ascontiguousarray(own).tobytes() for one, own in zip(ids, patches, strict=True)}
    find_holder(store, place).put_pieces(place["folder"], pieces)


def seal_patches(store: Store, place: Mapping[str, Any]) -> None:
    """After the last write of a build."""
    find_holder(store, place).seal_pieces(place["folder"])


def read_patches(
    store: Store, place: Mapping[str, Any] | None, cached_bytes: int | None = None
) -> SourcedTokens | None:
    """The patches that a header tells of; None if it tells of none."""
    if place is None:
        return None
    arrays = read_arrays(store, f"{place['prefix']}compaction")
    compaction = Compaction(arrays["mean"], arrays["projection"], arrays.get("deviations"))
    grid = (int(place["grid"][0]), int(place["grid"][1]))
    shape = (grid[0] * grid[1], compaction.bytes_per_patch)
    pieces = _StoredPatches(find_holder(store, place), place["folder"], shape, compaction.dtype)
    return SourcedTokens(compaction, grid, RerankSpec.from_dict(place["spec"]), CachedPatches(pieces, cached_bytes))


def write_added(
    store: Store, place: Mapping[str, Any], patches: SourcedTokens, ids: Sequence[int], tokens: Tokens
) -> None:
    """Patches of photos that are added."""
    [chunk] = patches.empty().grown(tokens).chunks
    write_patches(store, place, ids, np.asarray(chunk))


def erase_elsewhere(store: Store, key: str) -> None:
    """Before a document of a dropped version is erased: the pieces in another store that it tells of."""
    content = store.read(key) if key.endswith(_AT) else None
    if content is not None:
        said = json.loads(content)
        holder = _connect_once(said["at"])
        for piece in holder.keys(said["folder"]):
            holder.erase(piece)


def find_holder(store: Store, place: Mapping[str, Any]) -> Store:
    """The store that has the pieces."""
    return store if place["at"] is None else _connect_once(place["at"])


@lru_cache(maxsize=4)
def _connect_once(url: str) -> Store:
    """One connection to each in every process."""
    return open_map_store(url)[0]

"""Compact tokens in a store, as documents: blocks of images that a build wrote, and one an image that was added.

PREFIX compaction    what turns patches into compact ones
PREFIX BLOCK         images 16·BLOCK to 16·BLOCK + 15, of ids below `blocks_to`
PREFIX iID           an image that was added later: editors that work at once never write the same document
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from tfa.base.config import VerifySpec
from tfa.base.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps.engine_map.documents import arrays_of, folder_of, to_bytes
from tfa.search.store import Store
from tfa.verification.compaction import Compaction
from tfa.verification.patch_source import CachedPatches, SourcedTokens
from tfa.verification.patch_store import CompactTokens

BLOCK = 16  # images of a document


@dataclass(frozen=True)
class DocumentPatches:
    """A `PatchSource` of documents."""

    store: Store
    prefix: str
    blocks_to: int

    def rows(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        wanted = [int(one) for one in ids]
        keys = sorted({self._key(one) for one in wanted})
        found: dict[int, np.ndarray] = {}
        for key, content in zip(keys, self.store.read_many(keys), strict=True):
            found |= {} if content is None else _images(key, content)
        missing = [one for one in wanted if one not in found]
        if missing:
            raise BadMap(f"the patches of image {missing[0]} are missing in the engine; build the map again")
        return np.stack([found[one] for one in wanted])

    def _key(self, one: int) -> str:
        return f"{self.prefix}{one // BLOCK}" if one < self.blocks_to else f"{self.prefix}i{one}"

    def write_added(self, ids: Sequence[int], patches: np.ndarray) -> None:
        """int8 `m n r` of images that are added."""
        for one, own in zip(ids, patches, strict=True):
            self.store.put(f"{self.prefix}i{one}", _block([one], own[None]))


def _images(key: str, content: bytes) -> dict[int, np.ndarray]:
    try:
        arrays = load(content)
        return dict(zip(arrays["ids"].tolist(), arrays["patches"], strict=True))
    except (SafetensorError, KeyError, ValueError) as error:
        raise BadMap(f"{key} is damaged in the engine ({error}); build the map again") from None


def _block(ids: Sequence[int] | np.ndarray, patches: np.ndarray) -> bytes:
    return to_bytes({"ids": np.asarray(ids, np.int64), "patches": np.asarray(patches, np.int8)})


def patch_place(name: str, version: int, next_id: int, compact: CompactTokens) -> dict[str, Any]:
    """What the header says of patches that a build writes with `write_blocks`; ids from `next_id` on come later."""
    prefix = f"{folder_of(name, version)}patches/"
    return {"where": "store", "prefix": prefix, "blocks_to": next_id, **compact.to_dict()}


def write_compaction(store: Store, place: Mapping[str, Any], compact: CompactTokens) -> None:
    """What describes photos: once a build."""
    store.put(f"{place['prefix']}compaction", to_bytes(compact.compaction_tensors()))


def write_blocks(store: Store, place: Mapping[str, Any], ids: np.ndarray, patches: np.ndarray) -> None:
    """int8 `m n r` of images with growing ids, whole blocks of them: a block is one document."""
    blocks = np.asarray(ids, np.int64) // BLOCK
    for block in np.unique(blocks):
        own = np.flatnonzero(blocks == block)
        store.put(f"{place['prefix']}{block}", _block(ids[own], patches[own]))


def read_patches(
    store: Store, place: Mapping[str, Any] | None, cached_bytes: int | None = None
) -> SourcedTokens | None:
    """The patches that a header tells of; None if it tells of none."""
    if place is None:
        return None
    if place["where"] != "store":
        raise BadMap(f"the patches of this map are kept in {place['where']!r}, which this release does not read")
    arrays = arrays_of(store, f"{place['prefix']}compaction")
    compaction = Compaction(arrays["mean"], arrays["projection"])
    documents = DocumentPatches(store, place["prefix"], place["blocks_to"])
    source = CachedPatches(documents) if cached_bytes is None else CachedPatches(documents, cached_bytes)
    grid = (int(place["grid"][0]), int(place["grid"][1]))
    return SourcedTokens(compaction, grid, VerifySpec.from_dict(place["spec"]), source)


def write_added(
    store: Store, place: Mapping[str, Any], patches: SourcedTokens, ids: Sequence[int], tokens: Tokens
) -> None:
    """Patches of photos that are added."""
    [chunk] = patches.empty().grown(tokens).chunks
    DocumentPatches(store, place["prefix"], place["blocks_to"]).write_added(ids, np.asarray(chunk))

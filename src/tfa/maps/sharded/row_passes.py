"""The passes over images that were described, at a worker: rows as a map keeps them, and entries of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tfa.maps.folder import reader
from tfa.maps.sharded.photo_list import Shard
from tfa.maps.sharded.work_folder import Result, WorkFolder
from tfa.maps.sharded.work_items import Done, KeptPass, named
from tfa.maps.store.documents import collection_of
from tfa.maps.store.patches import write_patches
from tfa.maps.store.publish import write_entries
from tfa.maps.store.rows import SpaceRows
from tfa.maps.stored_rows import INTEGERS, stored_rows
from tfa.maps.stored_space import halves_of
from tfa.method.principal_axes import PrincipalAxes
from tfa.method.scorer import Scorer
from tfa.search.quantized import QuantizedRows
from tfa.search.reduced import Reduction
from tfa.search.store import Opener, Store


@dataclass(frozen=True)
class Project(KeptPass[Shard]):
    """Coordinates of a shard's images, as rows that a map keeps."""

    kind = "rows"

    def computed(self, shard: Shard) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        described, axes = self.folder.needed(named("descriptors", shard.number)), axes_of(self.folder)
        payload = described.facts["payload"]
        tensors: dict[str, np.ndarray] = {}
        if payload:
            halves, lengths = halves_of(axes.coordinates(described["descriptors"]), axes.eigenvalues)
            rows = stored_rows(halves.astype(np.float32), INTEGERS, wide=False)
            assert isinstance(rows, QuantizedRows)
            tensors = row_tensors(SpaceRows((rows,), (lengths,)))
        return tensors, {"payload": payload}


def row_tensors(rows: SpaceRows) -> dict[str, np.ndarray]:
    [halves], [lengths] = rows.halves, rows.lengths
    return {"levels": halves.levels, "step": halves.step, "lengths": lengths}


def axes_tensors(axes: PrincipalAxes) -> dict[str, np.ndarray]:
    return {"mean": axes.mean, "vectors": axes.vectors, "eigenvalues": axes.eigenvalues}


@lru_cache(maxsize=1)
def axes_of(folder: WorkFolder) -> PrincipalAxes:
    """The axes that the driver fitted, read once by each worker."""
    kept = folder.needed("axes")
    mean, vectors, eigenvalues = (np.array(kept[name]) for name in ("mean", "vectors", "eigenvalues"))
    return PrincipalAxes(mean, vectors, eigenvalues, kept.facts["participation"])


def rows_of_shard(kept: Result) -> SpaceRows:
    levels = kept["levels"]
    return SpaceRows((QuantizedRows(levels, kept["step"], levels.shape[1]),), (kept["lengths"],))


@lru_cache(maxsize=1)
def head_of(folder: WorkFolder, skeleton: str) -> Scorer:
    """The head that answers, from the skeleton in the work folder."""
    return reader.read(folder.path / skeleton).chosen().stored.scorer


@dataclass(frozen=True)
class WriteEntries:
    """A shard's images, and their patches, into the store. Twice is once, so nothing is kept of it."""

    folder: WorkFolder
    skeleton: str
    opener: Opener
    url: str
    name: str
    version: int
    reduction: Reduction
    ids: Sequence[int]  # of the first image of each shard, and of the first that comes after all
    patches: Mapping[str, Any] | None  # where patches are, see `store.patches`; None: nothing is verified

    def __call__(self, shard: Shard) -> Done:
        kept = self.folder.needed(named("rows", shard.number))
        payload = kept.facts["payload"]
        if payload:
            store, rows = connected(self.opener, self.url), rows_of_shard(kept)
            ids = self.ids[shard.number] + np.arange(len(payload))
            if self.patches is not None:
                patches = self.folder.needed(named("patches", shard.number))["patches"]
                write_patches(store, self.patches, ids, patches)
            entries = rows.entries(head_of(self.folder, self.skeleton), self.reduction, ids, payload)
            write_entries(store.open(collection_of(self.name, self.version)), entries)
        return Done(shard.number, len(payload))


@lru_cache(maxsize=2)
def connected(opener: Opener, url: str) -> Store:
    """One connection in each process."""
    return opener(url)

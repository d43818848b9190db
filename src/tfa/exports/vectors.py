"""A map as one vector per image: any inner-product search can use it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import write_atomically
from tfa.encoders.catalogue import use_current_name
from tfa.errors import MissingExtra, NoImages
from tfa.maps import PlaceMap
from tfa.method.scorer import Scorer


@dataclass(frozen=True)
class CompiledMap:
    """score(q, d) = ⟨Ψ(q), vectors_d⟩ + bias_d, for the images that answer."""

    ids: np.ndarray  # m, int64: ids of the map
    vectors: np.ndarray  # m D, float32
    bias: np.ndarray  # m, float32
    images: tuple[str, ...]  # paths
    scorer: Scorer  # the query side: `tfa.method.scorer.Compiled(scorer, …).query(tokens)` is Ψ(q)
    about: dict[str, Any]  # where it comes from

    @property
    def with_bias(self) -> np.ndarray:
        """`m D+1`: the bias as one more dimension; a query gets a 1 there."""
        return np.concatenate([self.vectors, self.bias[:, None]], axis=1)


def compile_map(place_map: PlaceMap, calibration: str | None = None) -> CompiledMap:
    """The head of that name (None: the active one) and the map's images under it."""
    if not len(place_map):
        raise NoImages("the map has no images left to export; add photos with: tfa add")
    head = place_map.state.chosen(calibration)
    scorer, rows = head.stored.scorer, place_map.rows
    # Copies of a photo tie to the last bit: they share the row of the first.
    rows = rows if scorer.duplicates is None else scorer.duplicates[rows]
    compiled = scorer.compile()
    return CompiledMap(
        ids=np.array([record.id for record in place_map.images], np.int64),
        vectors=compiled.database[rows].astype(np.float32),
        bias=compiled.bias[rows].astype(np.float32),
        images=tuple(record.path for record in place_map.images),
        scorer=scorer,
        about={
            "encoder": use_current_name(place_map.state.encoder)["id"],
            "fingerprint": place_map.state.encoder["fingerprint"],
            "calibration": head.name,
            "revision": place_map.state.revision,
        },
    )


def write_npz(path: Path, compiled: CompiledMap) -> None:
    """Arrays `vectors`, `bias`, `ids`, `images` (paths as text) and `about` (JSON as text); no pickled objects."""
    arrays: dict[str, Any] = {
        "vectors": compiled.vectors,
        "bias": compiled.bias,
        "ids": compiled.ids,
        "images": np.array(compiled.images, dtype=np.str_),
        "about": np.array(json.dumps(compiled.about)),
    }

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # of a name numpy would make another name
            np.savez(file, **arrays)

    write_atomically(Path(path), write)


def write_faiss(path: Path, compiled: CompiledMap) -> None:
    """An exact inner-product index (IndexFlatIP) whose answers are ids of the map.

    The bias is one more dimension: search with Ψ(q) and a 1 at its end.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtra("a faiss index needs faiss; install with: pip install 'tfa-vpr[export]'") from None
    vectors = compiled.with_bias
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(vectors, compiled.ids)
    write_atomically(Path(path), lambda temporary: faiss.write_index(index, str(temporary)))

"""A map as one vector and a bias per image, for any inner-product index; or as unit vectors without a bias.

The head of a map as one unit vector a photo, whose inner product with an image's row is the score (ours).

    vector   u(q) = [EᵀΨ'(q), Ψ°(q), 1, ρ] / c         row     u(d) = c [EᵀΨ'(d), Ψ°(d), b_d, 0]
    score    ⟨u(q), u(d)⟩  =  ⟨Ψ(q), Ψ(d)⟩ + b_d  where E is all of the space, and ≈ where it is fewer directions

Ψ° are the numbers that all images share (⟨v, μ⟩ of second-order heads), Ψ' the others. c is the largest that
‖[Ψ(q), 1]‖ can be, and ρ what is missing to it: every row is 0 there, so it makes the vector unit and changes no score.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import write_atomically
from tfa.encoders.catalogue import use_current_name
from tfa.encoders.onnx_graph import Graph
from tfa.errors import BadSpec, MissingExtra, NoImages
from tfa.maps import PlaceMap
from tfa.method.carriers import MEAN
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm, SecondOrderSide
from tfa.search.reduced import find_top_directions

# --- vectors --------------------------------------------------------------------------------------


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


# --- unit vectors ---------------------------------------------------------------------------------

_ADDED_NUMBERS = 2  # numbers of a vector that are no part of Ψ: the bias, and ρ
_MARGIN = 1.01  # of c²: axes that are stored in few bits are not quite orthonormal


@dataclass(frozen=True)
class UnitVectors:
    """What makes unit vectors of Ψ(q), and rows of a compiled map."""

    shared: np.ndarray  # D, bool: the numbers Ψ°
    axes: np.ndarray | None  # r D': Eᵀ, float32; None: all numbers are kept as they are
    length: float  # c

    @property
    def place_numbers(self) -> int:
        """Count the numbers of EᵀΨ': they come first, and two photos are compared by them alone."""
        return int((~self.shared).sum()) if self.axes is None else len(self.axes)

    @property
    def width(self) -> int:
        return self.place_numbers + int(self.shared.sum()) + _ADDED_NUMBERS

    def rows(self, compiled: CompiledMap) -> CompiledMap:
        """The map with u(d) for vectors, and no bias besides."""
        own, shared = compiled.vectors[:, ~self.shared], compiled.vectors[:, self.shared]
        own = own if self.axes is None else own @ self.axes.T
        nothing = np.zeros_like(compiled.bias)
        parts = [own, shared, compiled.bias[:, None], nothing[:, None]]
        rows = (self.length * np.concatenate(parts, axis=1)).astype(np.float32)
        return replace(compiled, vectors=rows, bias=nothing)

    def nodes(self, graph: Graph, separate: str, shared: list[str]) -> tuple[str, str]:
        """u(q) `b width` from Ψ' and the parts of Ψ°; and L2(EᵀΨ') `b place_numbers`, which compares two photos."""
        if self.axes is not None:
            separate = graph.add("MatMul", separate, graph.constant(np.ascontiguousarray(self.axes.T)))
        psi = graph.add("Concat", separate, *shared, axis=1) if shared else separate
        left = graph.add("Sub", graph.constant(np.float32(self.length**2 - 1)), _square(graph, psi))
        rest = graph.add("Sqrt", graph.add("Max", left, graph.constant(np.float32(0))))
        with_bias = graph.add("Pad", psi, graph.constant(np.array([0, 0, 0, 1])), graph.constant(np.float32(1)))
        whole = graph.add("Concat", with_bias, rest, axis=1)
        return graph.add("Div", whole, graph.constant(np.float32(self.length))), graph.unit(separate)


def fit_unit_vectors(compiled: CompiledMap, dims: int | None = None) -> UnitVectors:
    """Vectors of `dims` numbers, of all if None. Where the map has fewer directions, the numbers over are 0."""
    scorer = compiled.scorer
    shared = np.repeat([term.gamma == MEAN for term in scorer.terms], [term.gallery.width for term in scorer.terms])
    length = float(np.sqrt(1 + _MARGIN * sum(term.weight * _largest(scorer, term) for term in scorer.terms)))
    if dims is None:
        return UnitVectors(shared, None, length)
    kept = dims - _ADDED_NUMBERS - int(shared.sum())
    if kept < 1:
        raise BadSpec(f"dims={dims} is out of range: must be at least {dims - kept + 1}, better 256 to 2048")
    own = compiled.vectors[:, ~shared]
    found = find_top_directions(own, min(kept, *own.shape))
    axes = np.zeros((kept, own.shape[1]), np.float32)
    axes[: len(found)] = found
    return UnitVectors(shared, axes, length)


def _largest(scorer: Scorer, term: ScoreTerm) -> float:
    """‖f(q)‖² of any photo at most."""
    side = None if term.side == GLOBAL else scorer.sides[term.side]
    if not isinstance(side, SecondOrderSide) or isinstance(term.gamma, float):
        return 1.0  # unit vectors
    if term.gamma == MEAN:
        return float(side.mean.astype(np.float64) @ side.mean)  # ⟨v, μ⟩ of a unit v
    shift = 0.0 if side.shift is None else float(np.linalg.norm(side.shift))
    return (1 + shift) ** 2  # Uᵀv of a unit v, less the shift


def _square(graph: Graph, value: str) -> str:
    """‖x‖² `b 1`."""
    return graph.total(graph.add("Mul", value, value), -1, keep=True)

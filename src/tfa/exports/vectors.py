"""Export a map as one vector and a bias per image, for any inner-product index, or as unit vectors without a bias.

A unit vector u(q) of a query, whose inner product with an image's row u(d) is the score:

    vector   u(q) = [EᵀΨ'(q), Ψ°(q), 1, ρ] / c         row     u(d) = c [EᵀΨ'(d), Ψ°(d), b_d, 0]
    score    ⟨u(q), u(d)⟩  =  ⟨Ψ(q), Ψ(d)⟩ + b_d  if E spans the space, and ≈ with fewer directions

Ψ° are the dimensions that all images share (⟨v, μ⟩ of second-order heads), Ψ' the others. c is the largest possible
‖[Ψ(q), 1]‖, and ρ the remainder to it: rows are 0 there, so it makes the vector unit without changing a score.
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


@dataclass(frozen=True)
class CompiledMap:
    """Descriptors of map images: score(q, d) = ⟨Ψ(q), vectors_d⟩ + bias_d."""

    ids: np.ndarray  # (m,), int64: ids of the map
    vectors: np.ndarray  # (m, D), float32
    bias: np.ndarray  # (m,), float32
    images: tuple[str, ...]  # paths
    scorer: Scorer  # the query side: `tfa.method.scorer.Compiled(scorer, …).query(tokens)` is Ψ(q)
    about: dict[str, Any]  # encoder, calibration and revision

    @property
    def with_bias(self) -> np.ndarray:
        """Vectors (m, D + 1) with the bias as the last dimension; queries have a 1 there."""
        return np.concatenate([self.vectors, self.bias[:, None]], axis=1)


def compile_map(place_map: PlaceMap, calibration: str | None = None) -> CompiledMap:
    """Return the descriptors, biases, ids and paths of the map images, and the query side of a calibration."""
    if not len(place_map):
        raise NoImages("the map has no images; add photos with: tfa add")
    head = place_map.state.checked(calibration)
    scorer, rows = head.stored.scorer, place_map.rows
    # Copies of a photo share one row, so that their scores tie exactly.
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
    """Write the arrays `vectors`, `bias`, `ids`, `images` (paths) and `about` (JSON text), without pickled objects."""
    arrays: dict[str, Any] = {
        "vectors": compiled.vectors,
        "bias": compiled.bias,
        "ids": compiled.ids,
        "images": np.array(compiled.images, dtype=np.str_),
        "about": np.array(json.dumps(compiled.about)),
    }

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:  # numpy appends .npz to a name
            np.savez(file, **arrays)

    write_atomically(Path(path), write)


def write_faiss(path: Path, compiled: CompiledMap) -> None:
    """Write an exact inner-product index (IndexFlatIP) that returns ids of the map.

    The bias is the last dimension: search with Ψ(q) followed by a 1.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtra("a faiss index needs faiss; install with: pip install 'tfa-vpr[export]'") from None
    vectors = compiled.with_bias
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
    index.add_with_ids(vectors, compiled.ids)
    write_atomically(Path(path), lambda temporary: faiss.write_index(index, str(temporary)))


_ADDED_NUMBERS = 2  # dimensions of a vector that are not part of Ψ: the bias and ρ
_MARGIN = 1.01  # factor of c²: quantized axes are not quite orthonormal


@dataclass(frozen=True)
class UnitVectors:
    """Transformation of Ψ(q) to unit vectors, and of a compiled map to rows."""

    shared: np.ndarray  # (D,), bool: the dimensions of Ψ°
    axes: np.ndarray | None  # (r, D'), float32: Eᵀ; None for all dimensions
    length: float  # c

    @property
    def place_numbers(self) -> int:
        """Dimensions of EᵀΨ', which come first and compare two photos."""
        return int((~self.shared).sum()) if self.axes is None else len(self.axes)

    @property
    def width(self) -> int:
        return self.place_numbers + int(self.shared.sum()) + _ADDED_NUMBERS

    def rows(self, compiled: CompiledMap) -> CompiledMap:
        """Return the map with u(d) as vectors and without bias."""
        own, shared = compiled.vectors[:, ~self.shared], compiled.vectors[:, self.shared]
        own = own if self.axes is None else own @ self.axes.T
        nothing = np.zeros_like(compiled.bias)
        parts = [own, shared, compiled.bias[:, None], nothing[:, None]]
        rows = (self.length * np.concatenate(parts, axis=1)).astype(np.float32)
        return replace(compiled, vectors=rows, bias=nothing)

    def nodes(self, graph: Graph, separate: str, shared: list[str]) -> tuple[str, str]:
        """Add u(q) (b, width) from Ψ' and the parts of Ψ°, and L2(EᵀΨ') (b, place_numbers), which compares photos."""
        if self.axes is not None:
            separate = graph.add("MatMul", separate, graph.constant(np.ascontiguousarray(self.axes.T)))
        psi = graph.add("Concat", separate, *shared, axis=1) if shared else separate
        square = graph.total(graph.add("Mul", psi, psi), -1, keep=True)
        left = graph.add("Sub", graph.constant(np.float32(self.length**2 - 1)), square)
        rest = graph.add("Sqrt", graph.add("Max", left, graph.constant(np.float32(0))))
        with_bias = graph.add("Pad", psi, graph.constant(np.array([0, 0, 0, 1])), graph.constant(np.float32(1)))
        whole = graph.add("Concat", with_bias, rest, axis=1)
        return graph.add("Div", whole, graph.constant(np.float32(self.length))), graph.unit(separate)


def fit_unit_vectors(compiled: CompiledMap, dims: int | None = None) -> UnitVectors:
    """Fit unit vectors of `dims` dimensions (None: all). Dimensions beyond the map's rank are 0."""
    scorer = compiled.scorer
    shared = np.repeat([term.gamma == MEAN for term in scorer.terms], [term.gallery.width for term in scorer.terms])
    length = float(np.sqrt(1 + _MARGIN * sum(term.weight * _largest(scorer, term) for term in scorer.terms)))
    if dims is None:
        return UnitVectors(shared, None, length)
    kept = dims - _ADDED_NUMBERS - int(shared.sum())
    if kept < 1:
        raise BadSpec(f"dims={dims} is out of range: must be at least {dims - kept + 1}; 256 to 2048 work well")
    own = compiled.vectors[:, ~shared]
    found = find_top_directions(own, min(kept, *own.shape))
    axes = np.zeros((kept, own.shape[1]), np.float32)
    axes[: len(found)] = found
    return UnitVectors(shared, axes, length)


def _largest(scorer: Scorer, term: ScoreTerm) -> float:
    """Return the largest possible ‖f(q)‖²."""
    side = None if term.side == GLOBAL else scorer.sides[term.side]
    if not isinstance(side, SecondOrderSide) or isinstance(term.gamma, float):
        return 1.0  # unit vectors
    if term.gamma == MEAN:
        return float(side.mean.astype(np.float64) @ side.mean)  # ⟨v, μ⟩ of a unit v
    shift = 0.0 if side.shift is None else float(np.linalg.norm(side.shift))
    return (1 + shift) ** 2  # Uᵀv of a unit v, less the shift

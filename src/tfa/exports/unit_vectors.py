"""The head of a map as one unit vector a photo, whose inner product with an image's row is the score (ours).

    vector   u(q) = [EᵀΨ'(q), Ψ°(q), 1, ρ] / c         row     u(d) = c [EᵀΨ'(d), Ψ°(d), b_d, 0]
    score    ⟨u(q), u(d)⟩  =  ⟨Ψ(q), Ψ(d)⟩ + b_d  where E is all of the space, and ≈ where it is fewer directions

Ψ° are the numbers that all images share (⟨v, μ⟩ of second-order heads), Ψ' the others. c is the largest that
‖[Ψ(q), 1]‖ can be, and ρ what is missing to it: every row is 0 there, so it makes the vector unit and changes no score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tfa.encoders.onnx_graph import Graph
from tfa.errors import BadSpec
from tfa.exports.vectors import CompiledMap
from tfa.method.carriers import MEAN
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm, SecondOrderSide
from tfa.search.reduced import find_top_directions

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

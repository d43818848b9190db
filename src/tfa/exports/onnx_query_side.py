"""The query side of a head as an ONNX graph: tokens in, Ψ out. It follows `residuals` and `spectrum` step by step.

patches `b n d` (and global `b g` where the head uses it) → vector `b D`;   score = vector · vectors_d + bias_d
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import write_atomically
from tfa.base.onnx_graph import Graph
from tfa.errors import TfaError
from tfa.exports.vectors import CompiledMap
from tfa.method.carriers import Gamma
from tfa.method.query_sides import ResidualSide, residual
from tfa.method.residuals import HARD
from tfa.method.scorer import GLOBAL, Scorer
from tfa.method.spectrum import Geometry
from tfa.search.gallery import Rows
from tfa.search.quantised_rows import QuantisedRows

OPSET = 18  # the first where every reduction takes its axes as an input
LARGEST = 2_000_000_000  # bytes; a protobuf message cannot hold more


def write_onnx_head(path: Path, compiled: CompiledMap) -> None:
    """Write the graph. It takes any number of photos and of patches at once."""
    size = sum(_bytes(residual(side)) for side in compiled.scorer.sides)
    if size > LARGEST:
        raise TfaError(
            f"the query side holds {size / 1e9:.1f} GB, an ONNX file at most {LARGEST / 1e9:.0f}; fit the map with "
            "fewer anchors (pca_sample), or export it with --format npz and describe queries with tfa"
        )
    content = head_model(compiled.scorer, compiled.about)
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))


def head_model(scorer: Scorer, about: Mapping[str, Any]) -> bytes:
    """The model, serialised."""
    graph = Graph(OPSET)
    patches = graph.input("patches", ["photos", "patches", scorer.sides[0].channels])
    unit = graph.unit(patches)
    features: dict[tuple[int, Gamma], str] = {}
    for number, side in enumerate(map(residual, scorer.sides)):
        gammas = sorted({t.gamma for t in scorer.terms if t.side == number and isinstance(t.gamma, float)})
        descriptor = _descriptor(graph, side, unit)
        features[number, None] = descriptor
        if gammas:
            assert side.anchors is not None
            geometry = side.geometry_in_floats()
            anchors = np.asarray(side.anchors, np.float32) if isinstance(side.anchors, QuantisedRows) else side.anchors
            coordinates = _coordinates(graph, geometry, anchors, descriptor)
            for gamma in gammas:
                features[number, gamma] = _shaped(graph, geometry, coordinates, gamma)
    widths = {term.gallery.width for term in scorer.terms if term.side == GLOBAL}
    if widths:
        features[GLOBAL, None] = graph.unit(graph.input("global", ["photos", widths.pop()]))
    scaled = []
    for term in scorer.terms:
        feature, root = features[term.side, term.gamma], np.float32(np.sqrt(term.weight))
        scaled.append(feature if term.weight == 1 else graph.add("Mul", feature, graph.constant(root)))
    width = sum(term.gallery.width for term in scorer.terms)
    graph.output(graph.add("Concat", *scaled, axis=1), "vector", ["photos", width])
    return graph.model("tfa head", {key: str(value) for key, value in about.items()})


def _bytes(side: ResidualSide) -> int:
    """Of the constants of a side; integers are written as the float32 they stand for."""
    held: list[Rows] = [side.centers]
    if side.geometry is not None and side.anchors is not None:
        held += [side.anchors, side.geometry.vectors if side.directions is None else side.directions]
    return sum(4 * len(one) * one.shape[1] if isinstance(one, QuantisedRows) else one.nbytes for one in held)


def _descriptor(graph: Graph, side: ResidualSide, unit: str) -> str:
    """v = L2 [ L2( Σ_i w_ik (p̃_i − c_k) ) ]_k, as `residuals.normalise_blocks` has it."""
    words, channels = side.centers.shape
    centers = np.asarray(side.centers, np.float32)
    similarities = graph.add("MatMul", unit, graph.constant(np.ascontiguousarray(centers.T)))
    weights = _weights(graph, side, similarities)
    total = graph.add("Unsqueeze", graph.total(weights, 1), graph.axes(2))  # b k 1
    summed = graph.add("MatMul", graph.add("Transpose", weights, perm=[0, 2, 1]), unit)
    blocks = graph.add("Sub", summed, graph.add("Mul", total, graph.constant(centers)))
    norm = graph.norm(blocks)
    # What rounding leaves of a patch that equals its word is not a block: see residuals.residual_blocks.
    rounding = graph.add("Mul", total, graph.constant(np.float32(16 * np.finfo(np.float32).eps)))
    filled = graph.add("Greater", norm, rounding)
    one, zero = graph.constant(np.float32(1)), graph.constant(np.float32(0))
    blocks = graph.add("Where", filled, blocks, zero)
    blocks = graph.add("Div", blocks, graph.add("Where", filled, norm, one))
    count = graph.add("Sqrt", graph.total(graph.add("Where", filled, one, zero), 1, keep=True))  # b 1 1
    blocks = graph.add("Div", blocks, graph.add("Max", count, one))  # no filled block: 0 stays 0
    return graph.add("Reshape", blocks, graph.constant(np.array([0, words * channels], np.int64)))


def _weights(graph: Graph, side: ResidualSide, similarities: str) -> str:
    """`b n k`; soft ones relative to each word's largest in the photo, in logarithms: see residuals.soft_weights."""
    if side.assignment == HARD:
        nearest = graph.add("ArgMax", similarities, axis=-1, keepdims=0, select_last_index=0)
        depth = graph.constant(np.array(len(side.centers), np.int64))
        return graph.add("OneHot", nearest, depth, graph.constant(np.array([0, 1], np.float32)), axis=-1)
    logits = graph.add("Div", similarities, graph.constant(np.float32(side.temperature)))
    logarithms = graph.add("LogSoftmax", logits, axis=-1)
    largest = graph.add("ReduceMax", logarithms, graph.axes(1), keepdims=1)
    return graph.add("Exp", graph.add("Sub", logarithms, largest))


def _coordinates(graph: Graph, geometry: Geometry, anchors: np.ndarray, descriptor: str) -> str:
    """z = η^{-1/2} Eᵀ (k − mean(k) − g + m), k the products with the anchors."""
    products = graph.add("Gemm", descriptor, graph.wide(anchors), transB=1)
    mean = graph.add("ReduceMean", products, graph.axes(1), keepdims=1)
    # In the order of Geometry.coordinates: float32 sums depend on it in their last digits.
    centred = graph.add("Sub", products, mean)
    centred = graph.add("Sub", centred, graph.constant(np.asarray(geometry.anchor_means, np.float32)))
    centred = graph.add("Add", centred, graph.constant(np.float32(geometry.grand_mean)))
    projected = graph.add("MatMul", centred, graph.wide(geometry.vectors))
    return graph.add("Div", projected, graph.constant(np.sqrt(geometry.eta).astype(np.float32)))


def _shaped(graph: Graph, geometry: Geometry, coordinates: str, gamma: float) -> str:
    """φ_γ."""
    if gamma == 0:
        return graph.unit(coordinates)
    power = (geometry.eigenvalues ** (-gamma / 2)).astype(np.float32)
    return graph.unit(graph.add("Mul", coordinates, graph.constant(power)))

"""Residual sides in an ONNX graph: they follow `method.residuals` and `method.spectrum` step by step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tfa.base.onnx_graph import Graph
from tfa.method.carriers import Gamma
from tfa.method.query_sides import ResidualSide
from tfa.method.residuals import HARD
from tfa.method.spectrum import Geometry
from tfa.search.quantized import QuantizedRows


def residual_features(graph: Graph, side: ResidualSide, unit: str, gammas: Iterable[Gamma]) -> dict[Gamma, str]:
    """The descriptor (None) and φ_γ of photos whose unit patches `b n d` are given."""
    descriptor = _residual_descriptor(graph, side, unit)
    features: dict[Gamma, str] = {None: descriptor}
    shaping = [gamma for gamma in gammas if isinstance(gamma, float)]
    if shaping:
        assert side.anchors is not None
        geometry = side.geometry_in_floats()
        anchors = np.asarray(side.anchors, np.float32) if isinstance(side.anchors, QuantizedRows) else side.anchors
        coordinates = _coordinates(graph, geometry, anchors, descriptor)
        if side.shift is not None:
            coordinates = graph.add("Sub", coordinates, graph.constant(side.shift.astype(np.float32)))
        features |= {gamma: shape_nodes(graph, geometry.eigenvalues, coordinates, gamma) for gamma in shaping}
    return features


def _residual_descriptor(graph: Graph, side: ResidualSide, unit: str) -> str:
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


def shape_nodes(graph: Graph, eigenvalues: np.ndarray, coordinates: str, gamma: float) -> str:
    """φ_γ."""
    if gamma == 0:
        return graph.unit(coordinates)
    power = (eigenvalues ** (-gamma / 2)).astype(np.float32)
    return graph.unit(graph.add("Mul", coordinates, graph.constant(power)))

"""Export the query side of a head, or the encoder and the head of a map, as one ONNX graph of standard operators.

images (b, 3, h, w), RGB from 0 to 1 at the encoder's size → vector (b, D): score = vector · row of a map image
                                                           → descriptor (b, r): its inner product compares two photos

ONNX has no eigendecomposition. Repeated square roots bring all eigenvalues near 1. Each root is a coupled
Newton–Schulz iteration, which also yields its inverse:

    A = C / ‖C‖_F      Y_0 = A, Z_0 = I      T = (3I − Z Y) / 2,  Y ← Y T,  Z ← T Z      Y → A^{1/2}, Z → A^{-1/2}

After k roots Y = A^{1/2^k}, Z is its inverse, and with c in the middle of the range of Y's eigenvalues

    log A = 2^k (log(Y/c) + log c),     log(Y/c) = asinh((Y/c − c Z) / 2)

The series of asinh has only odd powers. Eigenvalues of C are at least ε and its trace is at most 2 + m ε, which fixes
the number of steps of a root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import write_atomically
from tfa.encoders.onnx_graph import Graph
from tfa.errors import TfaError
from tfa.exports.vectors import CompiledMap, UnitVectors, fit_unit_vectors, write_npz
from tfa.maps import PlaceMap
from tfa.method.carriers import MEAN, Gamma
from tfa.method.residuals import HARD
from tfa.method.scorer import GLOBAL, QuerySide, ResidualSide, Scorer, SecondOrderSide
from tfa.method.second_order import COVARIANCE_RIDGE, cell_bands, half_vector
from tfa.method.spectrum import Geometry
from tfa.search.gallery import BaseRows
from tfa.search.quantized import FINE, QuantizedRows

# --- features -------------------------------------------------------------------------------------

ROOTS = 5
TERMS = 7  # terms of the series; with five roots |x| < 0.2, and the remainder is below 1e-12
# Σ_j (−1)^j (2j)! / (4^j j!² (2j + 1)) x^{2j+1} = asinh x
ASINH = tuple((-1) ** j * factorial(2 * j) / (4**j * factorial(j) ** 2 * (2 * j + 1)) for j in range(TERMS))


def lowest_eigenvalue(size: int) -> float:
    """Bound the eigenvalues of C / ‖C‖_F from below, for C (m, m) of unit patches plus the ridge."""
    return COVARIANCE_RIDGE / (2 + size * COVARIANCE_RIDGE)


def steps_of_root(lowest: float, precision: float = float(np.finfo(np.float64).eps)) -> int:
    """Count the Newton–Schulz steps until the root of an eigenvalue in (`lowest`, 1] is exact to the last digits.

    The product x = z y of an eigenvalue converges to 1: x ← x (3 − x)² / 4.
    """
    steps, product = 1, lowest  # one more step removes rounding errors
    while 1 - product > precision:
        product *= (3 - product) ** 2 / 4
        steps += 1
    return steps


def residual_features(graph: Graph, side: ResidualSide, unit: str, gammas: Iterable[Gamma]) -> dict[Gamma, str]:
    """Add nodes of the descriptor (None) and φ_γ of photos with unit patches (b, n, d)."""
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
    # A patch that equals its word leaves only rounding errors, which are not a block: see residuals.residual_blocks.
    rounding = graph.add("Mul", total, graph.constant(np.float32(16 * np.finfo(np.float32).eps)))
    filled = graph.add("Greater", norm, rounding)
    one, zero = graph.constant(np.float32(1)), graph.constant(np.float32(0))
    blocks = graph.add("Where", filled, blocks, zero)
    blocks = graph.add("Div", blocks, graph.add("Where", filled, norm, one))
    count = graph.add("Sqrt", graph.total(graph.add("Where", filled, one, zero), 1, keep=True))  # b 1 1
    blocks = graph.add("Div", blocks, graph.add("Max", count, one))  # no filled block: 0 stays 0
    return graph.add("Reshape", blocks, graph.constant(np.array([0, words * channels], np.int64)))


def _weights(graph: Graph, side: ResidualSide, similarities: str) -> str:
    """Add weights (b, n, k); soft ones relative to each word's largest in the photo, as residuals.soft_weights."""
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
    centered = graph.add("Sub", products, mean)
    centered = graph.add("Sub", centered, graph.constant(np.asarray(geometry.anchor_means, np.float32)))
    centered = graph.add("Add", centered, graph.constant(np.float32(geometry.grand_mean)))
    projected = graph.add("MatMul", centered, graph.wide(geometry.vectors))
    return graph.add("Div", projected, graph.constant(np.sqrt(geometry.eta).astype(np.float32)))


def shape_nodes(graph: Graph, eigenvalues: np.ndarray, coordinates: str, gamma: float) -> str:
    """Add nodes of φ_γ."""
    if gamma == 0:
        return graph.unit(coordinates)
    power = (eigenvalues ** (-gamma / 2)).astype(np.float32)
    return graph.unit(graph.add("Mul", coordinates, graph.constant(power)))


FloatType = type[np.floating[Any]]


def second_order_features(
    graph: Graph, side: SecondOrderSide, unit: str, gammas: Iterable[Gamma], precision: FloatType = np.float64
) -> dict[Gamma, str]:
    """Add nodes of z + Uᵀμ (None), ⟨v, μ⟩ (MEAN) and φ_γ of photos with unit patches (b, n, d).

    Patches of two depths are not normalized yet.
    """
    descriptor = _second_order_descriptor(graph, side, unit, precision)
    mean = graph.constant(side.mean.astype(precision))
    centered = graph.cast(graph.add("Sub", descriptor, mean), np.float32)
    coordinates = graph.add("Gemm", centered, _rows(graph, side.axes), transB=1)
    if side.shift is not None:
        coordinates = graph.add("Sub", coordinates, graph.constant(side.shift.astype(np.float32)))
    features: dict[Gamma, str] = {}
    for gamma in gammas:
        if gamma is None:
            origin = graph.constant(side.mean_coordinates.astype(np.float32))
            features[gamma] = graph.add("Add", coordinates, origin)
        elif gamma == MEAN:
            level = graph.total(graph.add("Mul", descriptor, mean), 1, keep=True)
            features[gamma] = graph.cast(level, np.float32)
        else:
            assert isinstance(gamma, float)
            features[gamma] = shape_nodes(graph, side.eigenvalues, coordinates, gamma)
    return features


def _rows(graph: Graph, rows: BaseRows) -> str:
    """Add rows as float32; the file holds them quantized."""
    if not isinstance(rows, QuantizedRows):
        return graph.wide(rows)
    levels = graph.cast(graph.constant(rows.levels), np.float32)
    if rows.fine is not None:
        fine = graph.cast(graph.constant(rows.fine), np.float32)
        levels = graph.add("Add", levels, graph.add("Div", fine, graph.constant(np.float32(FINE))))
    return graph.add("Mul", levels, graph.constant(rows.step.astype(np.float32)[:, None]))


def _second_order_descriptor(graph: Graph, side: SecondOrderSide, patches: str, precision: FloatType) -> str:
    """Add nodes of v = L2 half(log C), (b, m(m+1)/2), or of the vector of two depths, (b, m(m+1))."""
    if side.grid is None:
        return _depth_descriptor(graph, side.patch_directions, patches, precision)
    earlier, later = (graph.unit(one) for one in graph.split("Split", 2, patches, axis=2, num_outputs=2))
    rows, columns = (graph.constant(one) for one in cell_bands(side.grid))
    (height, width), d = side.grid, side.patch_directions.shape[-1]
    later = graph.add("MatMul", rows, graph.add("Reshape", later, graph.constant(np.array([0, height, width * d]))))
    later = graph.add("MatMul", columns, graph.add("Reshape", later, graph.constant(np.array([0, height, width, d]))))
    later = graph.add("Reshape", later, graph.constant(np.array([0, height * width, d])))
    parts = [
        _depth_descriptor(graph, onto, unit, precision)
        for onto, unit in zip(side.patch_directions, (earlier, later), strict=True)
    ]
    return graph.add("Mul", graph.add("Concat", *parts, axis=1), graph.constant(precision(0.5**0.5)))


def _depth_descriptor(graph: Graph, onto: np.ndarray, unit: str, precision: FloatType) -> str:
    """Add nodes of the descriptor of unit patches (b, n, d) on directions (m, d)."""
    size = len(onto)
    wide = graph.cast(unit, precision)
    centered = graph.add("Sub", wide, graph.add("ReduceMean", wide, graph.axes(1), keepdims=1))
    projected = graph.add("MatMul", centered, graph.constant(np.ascontiguousarray(onto.T, precision)))  # b n m
    squares = graph.add("MatMul", graph.add("Transpose", projected, perm=[0, 2, 1]), projected)
    ridge = graph.constant((COVARIANCE_RIDGE * np.eye(size)).astype(precision))
    # divided by max(n − 1, 1), n the number of patches
    count = graph.cast(graph.add("Gather", graph.add("Shape", unit), graph.constant(np.array(1))), precision)
    one = graph.constant(precision(1))
    squares = graph.add("Div", squares, graph.add("Max", graph.add("Sub", count, one), one))
    covariance = graph.add("Add", squares, ridge)
    flat = graph.constant(np.array([0, size * size]))
    logarithm = graph.add("Reshape", matrix_log(graph, covariance, size, precision), flat)
    places = np.flatnonzero(np.triu(np.ones((size, size))))
    upper = graph.add("Gather", logarithm, graph.constant(places), axis=1)
    weights = half_vector(np.ones((size, size))).astype(precision)  # √2 off the diagonal
    return graph.unit(graph.add("Mul", upper, graph.constant(weights)), precision)


def matrix_log(graph: Graph, matrix: str, size: int, precision: FloatType = np.float64) -> str:
    """Add nodes of log C, for symmetric matrices (b, m, m) of unit patches plus the ridge."""
    identity = graph.constant(np.eye(size, dtype=precision))
    flat = graph.add("Reshape", matrix, graph.constant(np.array([0, 1, size * size])))
    scale = graph.norm(flat)  # b 1 1: ‖C‖_F
    root, inverse, lowest = graph.add("Div", matrix, scale), "", lowest_eigenvalue(size)
    for _ in range(ROOTS):
        steps = steps_of_root(lowest, float(np.finfo(precision).eps))
        root, inverse = _square_root(graph, root, size, steps, precision)
        lowest **= 0.5
    middle = lowest**0.5
    larger = graph.add("Mul", root, graph.constant(precision(0.5 / middle)))
    smaller = graph.add("Mul", inverse, graph.constant(precision(0.5 * middle)))
    logarithm = _asinh(graph, graph.add("Sub", larger, smaller), size, precision)
    logarithm = graph.add("Mul", logarithm, graph.constant(precision(2**ROOTS)))
    level = graph.add("Add", graph.add("Log", scale), graph.constant(precision(2**ROOTS * np.log(middle))))
    return graph.add("Add", logarithm, graph.add("Mul", identity, level))


def _square_root(graph: Graph, matrix: str, size: int, steps: int, precision: FloatType) -> tuple[str, str]:
    """Add nodes of A^{1/2} and A^{-1/2}."""
    root, inverse = matrix, ""
    half, three_halves = graph.constant(precision(0.5)), graph.constant(1.5 * np.eye(size, dtype=precision))
    for _ in range(steps):
        product = graph.add("MatMul", inverse, root) if inverse else root  # Z_0 = I
        turn = graph.add("Sub", three_halves, graph.add("Mul", product, half))
        root = graph.add("MatMul", root, turn)
        inverse = graph.add("MatMul", turn, inverse) if inverse else turn
    return root, inverse


def _asinh(graph: Graph, matrix: str, size: int, precision: FloatType) -> str:
    """Add nodes of the series, by Horner's rule in x²."""
    square = graph.add("MatMul", matrix, matrix)
    scaled = [graph.constant((factor * np.eye(size)).astype(precision)) for factor in ASINH]
    total = scaled[-1]
    for one in scaled[-2::-1]:
        total = graph.add("Add", graph.add("MatMul", square, total), one)
    return graph.add("MatMul", matrix, total)


# --- graphs ---------------------------------------------------------------------------------------

HEAD_OPSET = 18  # the first opset in which every reduction takes its axes as an input
MAX_ONNX_BYTES = 2_000_000_000  # limit of a protobuf message


def write_onnx_head(path: Path, compiled: CompiledMap) -> None:
    """Write the graph, which takes any number of photos and patches."""
    check_size(compiled.scorer)
    content = head_model(compiled.scorer, compiled.about)
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))


def check_size(scorer: Scorer) -> None:
    """Reject a head whose constants exceed the limit of the file format."""
    size = sum(map(_bytes, scorer.sides))
    if size > MAX_ONNX_BYTES:
        raise TfaError(
            f"the query side has {size / 1e9:.1f} GB, but an ONNX file holds at most {MAX_ONNX_BYTES / 1e9:.0f}; build "
            "the map with fewer anchors (--set head.pca_sample=N), or export it with --format npz"
        )


def head_model(scorer: Scorer, about: Mapping[str, Any]) -> bytes:
    """Return the serialized model."""
    graph = Graph(HEAD_OPSET)
    patches = graph.input("patches", ["photos", "patches", scorer.sides[0].channels])
    width = global_width(scorer)
    cls = None if width is None else graph.input("global", ["photos", width])
    scaled = term_features(graph, scorer, patches, cls)
    width = sum(term.gallery.width for term in scorer.terms)
    graph.output(graph.add("Concat", *scaled, axis=1), "vector", ["photos", width])
    return graph.model("tfa head", {key: str(value) for key, value in about.items()})


def global_width(scorer: Scorer) -> int | None:
    """Return the channels of the global token; None if no term uses it."""
    return next((term.gallery.width for term in scorer.terms if term.side == GLOBAL), None)


def term_features(
    graph: Graph, scorer: Scorer, patches: str, cls: str | None, precision: FloatType = np.float64
) -> list[str]:
    """Add √weight · f(q) of each term, (b, D), from patches (b, n, d) and global tokens (b, g). They form Ψ(q)."""
    unit = graph.unit(patches)
    features: dict[tuple[int, Gamma], str] = {}
    for number, side in enumerate(scorer.sides):
        gammas = sorted({term.gamma for term in scorer.terms if term.side == number}, key=str)
        if isinstance(side, ResidualSide):
            found = residual_features(graph, side, unit, gammas)
        else:
            found = second_order_features(graph, side, patches if side.depths > 1 else unit, gammas, precision)
        features |= {(number, gamma): name for gamma, name in found.items()}
    if cls is not None:
        features[GLOBAL, None] = graph.unit(cls)
    scaled = []
    for term in scorer.terms:
        feature, root = features[term.side, term.gamma], np.float32(np.sqrt(term.weight))
        scaled.append(feature if term.weight == 1 else graph.add("Mul", feature, graph.constant(root)))
    return scaled


def _bytes(side: QuerySide) -> int:
    """Count the bytes of a side's constants; quantized rows are written as float32."""
    held: list[BaseRows]
    if not isinstance(side, ResidualSide):
        held = [side.patch_directions, side.axes]
    elif side.geometry is not None and side.anchors is not None:
        held = [side.centers, side.anchors, side.geometry.vectors if side.directions is None else side.directions]
    else:
        held = [side.centers]
    return sum(4 * len(one) * one.shape[1] if isinstance(one, QuantizedRows) else one.nbytes for one in held)


PRECISION: FloatType = np.float32  # of log C: every runtime has it, and scores differ from float64 by up to 1e-4


def write_onnx_place(
    path: Path, place_map: PlaceMap, compiled: CompiledMap, *, dims: int | None = None, int8: bool = False
) -> CompiledMap:
    """Write the graph and next to it, as .npz, the rows of map images that its vectors are multiplied with."""
    check_size(compiled.scorer)
    form = fit_unit_vectors(compiled, dims)
    rows = form.rows(compiled)
    content = place_model(place_map, compiled, form, int8=int8)
    # Write rows first: a graph without them would look complete.
    write_npz(rows_path(path), rows)
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))
    return rows


def rows_path(path: Path) -> Path:
    """Return the file of rows that belongs to a graph."""
    return Path(path).with_suffix(".npz")


def place_model(place_map: PlaceMap, compiled: CompiledMap, form: UnitVectors, *, int8: bool = False) -> bytes:
    """Return the serialized model. `int8` encodes in 8-bit integers, one photo at a time."""
    from tfa.encoders.onnx_encoder import ENCODER_OPSET, portable_tokens

    encoder: Any = place_map.encoder
    if not hasattr(encoder, "weights"):  # of another distribution, or a hub model
        raise TfaError(
            f"the encoder {encoder.id} cannot be exported; only those that tfa encoders lists can. Export the head "
            "with --format onnx-head"
        )
    identity, photos = encoder.identity, 1 if int8 else "photos"
    graph = Graph(ENCODER_OPSET)
    images = graph.input("images", [photos, 3, identity.height, identity.width])
    tokens = portable_tokens(graph, encoder, images, integers=int8)
    own, shared = _parts(graph, compiled.scorer, tokens, identity.card.prefix)
    vector, descriptor = form.nodes(graph, own, shared)
    graph.output(vector, "vector", [photos, form.width])
    graph.output(descriptor, "descriptor", [photos, form.place_numbers])
    facts = {**compiled.about, "size": f"{identity.width}x{identity.height}", "resample": identity.card.resample}
    if identity.resized is not None:
        facts["center_cropped_from"] = "{}x{}".format(*identity.resized)
    return graph.model("tfa place", {key: str(value) for key, value in facts.items()})


def _parts(graph: Graph, scorer: Scorer, tokens: str, prefix: int) -> tuple[str, list[str]]:
    """Add Ψ' and the parts of Ψ°, from all tokens of the photos."""
    everything = graph.constant(np.array([np.iinfo(np.int64).max]))
    patches = graph.add("Slice", tokens, graph.axes(prefix), everything, graph.axes(1))
    cls = None if global_width(scorer) is None else graph.add("Gather", tokens, graph.constant(np.array(0)), axis=1)
    both = list(zip(scorer.terms, term_features(graph, scorer, patches, cls, PRECISION), strict=True))
    own = [feature for term, feature in both if term.gamma != MEAN]
    whole = graph.add("Concat", *own, axis=1) if len(own) > 1 else own[0]
    return whole, [feature for term, feature in both if term.gamma == MEAN]

"""The query side of a head as an ONNX graph: tokens in, Ψ out.

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
from tfa.exports.onnx_residuals import residual_features
from tfa.exports.onnx_second_order import Precision, second_order_features
from tfa.exports.vectors import CompiledMap
from tfa.method.carriers import Gamma
from tfa.method.query_sides import QuerySide, ResidualSide
from tfa.method.scorer import GLOBAL, Scorer
from tfa.search.gallery import BaseRows
from tfa.search.quantized import QuantizedRows

HEAD_OPSET = 18  # the first where every reduction takes its axes as an input
MAX_ONNX_BYTES = 2_000_000_000  # bytes; a protobuf message cannot hold more


def write_onnx_head(path: Path, compiled: CompiledMap) -> None:
    """Write the graph. It takes any number of photos and of patches at once."""
    check_size(compiled.scorer)
    content = head_model(compiled.scorer, compiled.about)
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))


def check_size(scorer: Scorer) -> None:
    """Refuse a head whose constants are more than the file format can hold."""
    size = sum(map(_bytes, scorer.sides))
    if size > MAX_ONNX_BYTES:
        raise TfaError(
            f"the query side holds {size / 1e9:.1f} GB, an ONNX file at most {MAX_ONNX_BYTES / 1e9:.0f}; fit the map "
            "with fewer anchors (pca_sample), or export it with --format npz and describe queries with tfa"
        )


def head_model(scorer: Scorer, about: Mapping[str, Any]) -> bytes:
    """The model, serialised."""
    graph = Graph(HEAD_OPSET)
    patches = graph.input("patches", ["photos", "patches", scorer.sides[0].channels])
    width = global_width(scorer)
    cls = None if width is None else graph.input("global", ["photos", width])
    scaled = term_features(graph, scorer, patches, cls)
    width = sum(term.gallery.width for term in scorer.terms)
    graph.output(graph.add("Concat", *scaled, axis=1), "vector", ["photos", width])
    return graph.model("tfa head", {key: str(value) for key, value in about.items()})


def global_width(scorer: Scorer) -> int | None:
    """Channels of the global token; None where no term compares it."""
    return next((term.gallery.width for term in scorer.terms if term.side == GLOBAL), None)


def term_features(
    graph: Graph, scorer: Scorer, patches: str, cls: str | None, precision: Precision = np.float64
) -> list[str]:
    """√weight · f(q) of each term, `b D`, of patches `b n d` and global tokens `b g`: together they are Ψ(q)."""
    unit = graph.unit(patches)
    features: dict[tuple[int, Gamma], str] = {}
    for number, side in enumerate(scorer.sides):
        gammas = sorted({term.gamma for term in scorer.terms if term.side == number}, key=str)
        if isinstance(side, ResidualSide):
            found = residual_features(graph, side, unit, gammas)
        else:
            found = second_order_features(graph, side, unit, gammas, precision)
        features |= {(number, gamma): name for gamma, name in found.items()}
    if cls is not None:
        features[GLOBAL, None] = graph.unit(cls)
    scaled = []
    for term in scorer.terms:
        feature, root = features[term.side, term.gamma], np.float32(np.sqrt(term.weight))
        scaled.append(feature if term.weight == 1 else graph.add("Mul", feature, graph.constant(root)))
    return scaled


def _bytes(side: QuerySide) -> int:
    """Count the bytes of a side's constants; integers are written as the float32 they stand for."""
    held: list[BaseRows]
    if not isinstance(side, ResidualSide):
        held = [side.patch_directions, side.axes]
    elif side.geometry is not None and side.anchors is not None:
        held = [side.centers, side.anchors, side.geometry.vectors if side.directions is None else side.directions]
    else:
        held = [side.centers]
    return sum(4 * len(one) * one.shape[1] if isinstance(one, QuantizedRows) else one.nbytes for one in held)

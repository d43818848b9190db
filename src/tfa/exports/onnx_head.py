"""Export the query side of a head, or the encoder and the head of a map, as one ONNX graph of standard operators.

images (b, 3, h, w), RGB from 0 to 1 at the encoder's size → vector (b, D): score = vector · row of a map image
                                                           → descriptor (b, r): its inner product compares two photos
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import write_atomically
from tfa.encoders.onnx_graph import Graph
from tfa.errors import TfaError
from tfa.exports.onnx_features import Precision, residual_features, second_order_features
from tfa.exports.vectors import CompiledMap, UnitVectors, fit_unit_vectors, write_npz
from tfa.maps import PlaceMap
from tfa.method.carriers import MEAN, Gamma
from tfa.method.scorer import GLOBAL, QuerySide, ResidualSide, Scorer
from tfa.search.gallery import BaseRows
from tfa.search.quantized import QuantizedRows

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
    graph: Graph, scorer: Scorer, patches: str, cls: str | None, precision: Precision = np.float64
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


PRECISION: Precision = np.float32  # of log C: every runtime has it, and scores differ from float64 by up to 1e-4


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

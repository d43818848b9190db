"""A map's encoder and head as one ONNX graph (ours): a photo in, one unit vector out, in ONNX's own operators alone.

images `b 3 h w`, RGB from 0 to 1 at the encoder's size → vector `b D`;   score = vector · row
                                                      → descriptor `b r`: two photos by their inner product
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tfa.base.files import write_atomically
from tfa.base.onnx_graph import Graph
from tfa.errors import TfaError
from tfa.exports.onnx_query_side import check_size, global_width, term_features
from tfa.exports.onnx_second_order import Precision
from tfa.exports.unit_vectors import UnitVectors, fit_unit_vectors
from tfa.exports.vectors import CompiledMap, write_npz
from tfa.maps import PlaceMap
from tfa.method.carriers import MEAN
from tfa.method.scorer import Scorer

PRECISION: Precision = np.float32  # of log C: with it scores are those of float64 to 1e-4, and no runtime lacks it


def write_onnx_place(
    path: Path, place_map: PlaceMap, compiled: CompiledMap, *, dims: int | None = None, fast: bool = False
) -> CompiledMap:
    """Write the graph, and beside it, as .npz, the rows of the map's images that its vectors are multiplied with."""
    check_size(compiled.scorer)
    form = fit_unit_vectors(compiled, dims)
    rows = form.rows(compiled)
    content = place_model(place_map, compiled, form, fast=fast)
    # Rows first: a graph without them would look complete.
    write_npz(rows_path(path), rows)
    write_atomically(Path(path), lambda temporary: temporary.write_bytes(content))
    return rows


def rows_path(path: Path) -> Path:
    return Path(path).with_suffix(".npz")


def place_model(place_map: PlaceMap, compiled: CompiledMap, form: UnitVectors, *, fast: bool = False) -> bytes:
    """The model, serialised; `fast` has the encoder's products in 8-bit integers, and takes one photo at a time."""
    from tfa.encoders.portable_graph import ENCODER_OPSET, portable_tokens
    from tfa.encoders.vit import VitEncoder

    encoder = place_map.encoder
    if not isinstance(encoder, VitEncoder):
        raise TfaError(
            f"the encoder {encoder.id} of this map is not one that tfa can write as a graph, as those of its own "
            "catalogue are; export the head alone with --format onnx-head"
        )
    identity, photos = encoder.identity, 1 if fast else "photos"
    graph = Graph(ENCODER_OPSET)
    images = graph.input("images", [photos, 3, identity.height, identity.width])
    tokens = portable_tokens(graph, encoder, images, integers=fast)
    own, shared = _parts(graph, compiled.scorer, tokens, identity.card.prefix)
    vector, descriptor = form.nodes(graph, own, shared)
    graph.output(vector, "vector", [photos, form.width])
    graph.output(descriptor, "descriptor", [photos, form.place_numbers])
    facts = {**compiled.about, "size": f"{identity.width}x{identity.height}", "resample": identity.card.resample}
    return graph.model("tfa place", {key: str(value) for key, value in facts.items()})


def _parts(graph: Graph, scorer: Scorer, tokens: str, prefix: int) -> tuple[str, list[str]]:
    """Ψ' and the parts of Ψ°, of all tokens of the photos."""
    everything = graph.constant(np.array([np.iinfo(np.int64).max]))
    patches = graph.add("Slice", tokens, graph.axes(prefix), everything, graph.axes(1))
    cls = None if global_width(scorer) is None else graph.add("Gather", tokens, graph.constant(np.array(0)), axis=1)
    both = list(zip(scorer.terms, term_features(graph, scorer, patches, cls, PRECISION), strict=True))
    own = [feature for term, feature in both if term.gamma != MEAN]
    whole = graph.add("Concat", *own, axis=1) if len(own) > 1 else own[0]
    return whole, [feature for term, feature in both if term.gamma == MEAN]

"""Frozen vision models: pixels → patch tokens and one global token.

In: RGB images. Out: float16 tokens and a fingerprint of what made them. May see: released weights, never the map.
Importing this package loads neither torch nor transformers; `load_encoder` does, but for integers that it made before.
"""

from __future__ import annotations

from pathlib import Path

from tfa.base.progress import Progress
from tfa.base.threads import count_cores
from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER, Card, find_encoder_card
from tfa.encoders.encoder_name import EncoderId, parse_encoder
from tfa.encoders.fingerprint import fast_fingerprint, fingerprint_encoder, names_by_fingerprint
from tfa.encoders.plugins import load_plugin_encoder
from tfa.encoders.protocol import Encoder
from tfa.errors import BadSpec

__all__ = [
    "CATALOGUE",
    "DEFAULT_ENCODER",
    "Card",
    "Encoder",
    "EncoderId",
    "find_encoder_card",
    "load_encoder",
    "parse_encoder",
]


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    weights: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    fast: bool = False,
    progress: bool | Progress | None = None,
    model: str | None = None,
) -> Encoder:
    """The encoder `name@size/layer-facet`, ready to run; or one that another distribution brings as `tfa.encoders`.

    `weights` is a file to use instead of the card's own source. `threads` is how many CPU threads torch uses
    in this process from now on. `fast` is the same model with its products in 8-bit integers, on the CPU only.
    `model` is the fingerprint a map remembers: if it is that of the name with `/hf`, that encoder is loaded.
    """
    if threads is not None and threads < 1:
        raise BadSpec(f"threads={threads!r} is out of range: must be at least 1")
    if fast and device != "cpu":
        raise BadSpec(
            f"device={device!r} does not go with fast=True (--fast), which is made for the CPU; give one of them"
        )
    brought = load_plugin_encoder(name, weights=weights, device=device, threads=threads, fast=fast)
    if brought is not None:
        return brought
    identity = parse_encoder(name)  # first, so that a misspelt name costs no import

    if fast:
        return _fast_encoder(identity, weights, threads or count_cores(), progress, model)

    import torch

    from tfa.encoders.vit import VitEncoder, check_device
    from tfa.encoders.weights import resolve_weights

    check_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    found = resolve_weights(identity.card, weights, progress=progress)
    return VitEncoder(_as_remembered(identity, found.sha256, model), found, device)


def _fast_encoder(
    identity: EncoderId, weights: str | Path | None, threads: int, progress: bool | Progress | None, model: str | None
) -> Encoder:
    """From a graph in the cache, without torch, where the digest of the weights is known without them."""
    from tfa.encoders.int8.encoder import FastEncoder, import_onnxruntime
    from tfa.encoders.int8.graph_file import read_graph, write_graph

    import_onnxruntime()  # before weights are fetched
    package = identity.card.package if weights is None else None
    if package is not None:
        named = _as_remembered(identity, package.weights, model)
        graph = read_graph(fast_fingerprint(fingerprint_encoder(named, package.weights)))
        if graph is not None:
            return FastEncoder(named, package.weights, graph, threads)

    from tfa.encoders.int8.graph import int8_graph
    from tfa.encoders.vit import load_vit
    from tfa.encoders.weights import resolve_weights

    found = resolve_weights(identity.card, weights, progress=progress)
    named = _as_remembered(identity, found.sha256, model)
    encoder = FastEncoder(named, found.sha256, int8_graph(named, load_vit(named, found.tensors)), threads)
    if package is not None and found.sha256 == package.weights:
        write_graph(encoder.fingerprint, encoder.graph)
    return encoder


def _as_remembered(identity: EncoderId, weights_sha256: str, model: str | None) -> EncoderId:
    """The name whose fingerprint is `model`, if it differs only in how positions are resampled."""
    return names_by_fingerprint(identity, weights_sha256).get(model or "", identity)

"""Frozen vision models: pixels → patch tokens and one global token.

In: RGB images. Out: float16 tokens and a fingerprint of what made them. May see: released weights, never the map.
Importing this package loads neither torch nor transformers; `load_encoder` does.
"""

from __future__ import annotations

from pathlib import Path

from tfa.base.progress import Progress
from tfa.encoders.brought import load_brought
from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER, Card, find_card
from tfa.encoders.encoder_name import EncoderId, parse_encoder
from tfa.encoders.protocol import Encoder
from tfa.errors import BadSpec

__all__ = [
    "CATALOGUE",
    "DEFAULT_ENCODER",
    "Card",
    "Encoder",
    "EncoderId",
    "find_card",
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
    brought = load_brought(name, weights=weights, device=device, threads=threads, fast=fast)
    if brought is not None:
        return brought
    identity = parse_encoder(name)  # first, so that a misspelt name costs no import

    import torch

    from tfa.encoders.fingerprint import names_by_fingerprint
    from tfa.encoders.int8.encoder import FastEncoder, onnxruntime
    from tfa.encoders.vit import VitEncoder, checked_device
    from tfa.encoders.weights import resolve_weights

    checked_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    if fast:
        onnxruntime()  # before weights are fetched
    found = resolve_weights(identity.card, weights, progress=progress)
    identity = names_by_fingerprint(identity, found.sha256).get(model or "", identity)
    return FastEncoder(identity, found, torch.get_num_threads()) if fast else VitEncoder(identity, found, device)

"""Frozen encoders: from images to patch tokens and one global token.

Importing this package loads neither torch nor transformers; `load_encoder` does.
"""

from __future__ import annotations

from pathlib import Path

from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER, Card, find_card
from tfa.encoders.identity import EncoderId, parse_encoder
from tfa.encoders.protocol import Encoder
from tfa.errors import BadSpec
from tfa.progress import Progress

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
    progress: bool | Progress | None = None,
) -> Encoder:
    """The encoder `name@size/layer-facet`, ready to run.

    `weights` is a file to use instead of the card's own source. `threads` is how many CPU threads torch uses
    in this process from now on.
    """
    identity = parse_encoder(name)  # first, so that a misspelt name costs no import
    if threads is not None and threads < 1:
        raise BadSpec(f"threads={threads!r} is out of range: must be at least 1")

    import torch

    from tfa.encoders.vit import VitEncoder, checked_device
    from tfa.encoders.weights import resolve_weights

    checked_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    return VitEncoder(identity, resolve_weights(identity.card, weights, progress=progress), device)

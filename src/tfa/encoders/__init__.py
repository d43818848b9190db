"""Frozen vision models: RGB images in, float16 patch tokens and one global token out.

Encoders use released weights, never the map. Importing this package loads neither torch nor transformers;
`load_encoder` does for GPUs, hub models and float32. Other distributions provide encoders under the entry point
`tfa.encoders`: a function `load(name, *, weights, device, threads) -> Encoder` whose encoder has an `id` that begins
with the entry's name.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from tfa.core.arrays import choose_device, count_cores
from tfa.core.plugins import load_plugin, plugin_names, plugin_source
from tfa.core.progress import Progress
from tfa.encoders.catalogue import (
    CATALOGUE,
    DEFAULT_ENCODER,
    EncoderId,
    fast_fingerprint,
    find_encoder_card,
    fingerprint_encoder,
    names_by_fingerprint,
    parse_encoder,
)
from tfa.errors import BadPlugin, BadSpec, MissingExtra
from tfa.types import Precision

if TYPE_CHECKING:
    from PIL import Image


@runtime_checkable
class Encoder(Protocol):
    """A frozen function from images to tokens.

    An encoder may also have `prepare(image) -> image`, which resizes an image without changing its tokens; the token
    cache calls it from several threads while the encoder is busy. If that is `tfa.photos.images.resize`, an attribute
    `reads` (width, height, resampling) lets the service resize photos in the process that decodes them. `depths` is 2
    if the channels are those of two blocks, the earlier one first.
    """

    id: str  # canonical name, such as dinov2-b14@322
    fingerprint: str  # sha256 of everything that determines the tokens, including arithmetic; key of cached tokens
    model: str  # fingerprint of the model in float32, which a map stores and compares
    channels: int  # d
    global_channels: int | None  # d_g, None for an encoder without a global token
    grid: tuple[int, int]  # rows, columns of patches
    notes: tuple[str, ...]  # notes for the user, such as a changed size
    device: str

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """Return float16 patches `(b, n, d)` in row-major order, and float16 global tokens `(b, d_g)` or None."""


def count_depths(encoder: Encoder) -> int:
    """Return the number of blocks that an encoder reads."""
    return int(getattr(encoder, "depths", 1))


def describe_device(encoder: Encoder) -> str:
    """Say where an encoder computes, and in which precision if it has several."""
    precision = f" in {encoder.precision}" if hasattr(encoder, "precision") else ""
    return f"encoder on {encoder.device}{precision}"


# --- plugins --------------------------------------------------------------------------------------

_PLUGIN_GROUP = "tfa.encoders"


def list_plugin_encoders() -> dict[str, str]:
    """Return encoder names and the distributions that provide them, without importing plugins."""
    return {name: plugin_source(_PLUGIN_GROUP, name) for name in plugin_names(_PLUGIN_GROUP, CATALOGUE)}


def load_plugin_encoder(
    name: str, *, weights: str | Path | None, device: str, threads: int | None, precision: Precision
) -> Encoder | None:
    """Load an encoder from another distribution; None if the name is not a plugin."""
    entry = _parse_entry(name)
    load = None if entry in CATALOGUE else load_plugin(_PLUGIN_GROUP, entry, CATALOGUE)
    if load is None:
        return None
    source = plugin_source(_PLUGIN_GROUP, entry)
    if precision in ("int8", "float16"):
        raise BadSpec(f"encoder {name!r} of {source} has no {precision} form; remove --precision")
    if not callable(load):
        raise BadPlugin(f"the encoder {entry!r} of {source} must be a function load(name, …) -> Encoder, got {load!r}")
    encoder = load(name, weights=None if weights is None else Path(weights), device=device, threads=threads)
    if not isinstance(encoder, Encoder) or _parse_entry(encoder.id) != entry:
        raise BadPlugin(
            f"the encoder {entry!r} of {source} must have id, fingerprint, model, channels, global_channels, grid, "
            f"notes, device and encode, and an id that begins with {entry!r}; got {encoder!r}"
        )
    return encoder


def _parse_entry(name: str) -> str:
    return re.split("[@/]", name, maxsplit=1)[0]


# --- encoders -------------------------------------------------------------------------------------

__all__ = ["CATALOGUE", "DEFAULT_ENCODER", "Encoder", "EncoderId", "find_encoder_card", "load_encoder", "parse_encoder"]


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    weights: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
    precision: Precision = "auto",
    progress: bool | Progress | None = None,
    model: str | None = None,
    depths: int | Literal["auto"] | None = None,
) -> Encoder:
    """Load an encoder, downloading its weights on first use.

    Args:
        name: `name@size/layer-facet`, such as `dinov2-b14@322`; `hf:ORG/NAME`, `hf:./folder` or `timm:NAME` for models
            outside the catalogue; or an encoder from another distribution.
        weights: Weights file, or folder of an `hf:` encoder. [default: the encoder's released weights]
        device: `cpu`, `cuda`, `cuda:N`, `mps`, or `auto` for the first of cuda, mps and cpu that is there.
        threads: CPU threads that torch uses in this process. [default: all cores]
        precision: `int8` on a CPU, `float16` on a GPU, `float32` on both. `auto` is int8 on a CPU for encoders whose
            recall was measured with it, else float32.
        progress: True to show progress.
        model: Fingerprint stored in a map; loads the `/hf` form of the encoder if it matches.
        depths: 2 also reads the block at half of the depth; "auto" does so if the encoder is of the catalogue.
            [default: as named]

    Returns:
        An encoder whose `encode(images)` returns tokens.
    """
    if threads is not None and threads < 1:
        raise BadSpec(f"threads={threads!r} is out of range: must be at least 1")
    device = choose_device(device)
    plugin = load_plugin_encoder(name, weights=weights, device=device, threads=threads, precision=precision)
    if plugin is not None:
        return plugin
    is_hub = name.startswith(("hf:", "timm:"))
    if is_hub and precision in ("int8", "float16"):
        raise BadSpec(
            f"encoder {name!r} has no {precision} form; remove --precision, or use an encoder of the catalogue"
        )
    # First, so that a misspelled name fails before imports.
    identity = None if is_hub else parse_encoder(name).with_depths(depths)
    if precision == ("float16" if device == "cpu" else "int8"):
        raise BadSpec(
            f"--precision {precision} is not for {device}; use {'int8' if device == 'cpu' else 'float16'} or float32"
        )
    if identity is not None and device == "cpu":
        integers = identity.card.int8 if precision == "auto" else precision == "int8"
        if integers or not _has_torch():
            return _onnx_encoder(identity, weights, threads or count_cores(), progress, model, integers=integers)
    if not _has_torch():
        raise MissingExtra(
            f"encoder {name!r} needs PyTorch and transformers; install with: pip install 'tfa-vpr[torch]'"
        )

    import torch

    from tfa.encoders.vit import VitEncoder
    from tfa.encoders.weights import resolve_weights

    if threads is not None:
        torch.set_num_threads(threads)
    if identity is not None:
        found = resolve_weights(identity.card, weights, progress=progress)
    else:
        from tfa.encoders.hub import HubEncoder, load_hub

        loaded = load_hub(name, weights, device, None if depths == "auto" else depths)
        if isinstance(loaded, HubEncoder):
            return loaded
        identity, found = loaded
    return VitEncoder(_as_remembered(identity, found.sha256, model), found, device, half=precision == "float16")


def _has_torch() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
    except ImportError:
        return False


def _onnx_encoder(
    identity: EncoderId,
    weights: str | Path | None,
    threads: int,
    progress: bool | Progress | None,
    model: str | None,
    *,
    integers: bool,
) -> Encoder:
    """Load from a cached 8-bit graph if the digest of the weights is known, else make the graph. Needs no torch."""
    from tfa.encoders.onnx_encoder import OnnxEncoder, read_graph, vit_graph, write_graph
    from tfa.encoders.weights import resolve_weights

    load = cache(partial(resolve_weights, identity.card, weights, progress=progress))
    package = identity.card.package if weights is None else None
    if package is not None and integers:
        named = _as_remembered(identity, package.weights, model)
        graph = read_graph(fast_fingerprint(fingerprint_encoder(named, package.weights)))
        if graph is not None:
            return OnnxEncoder(named, package.weights, graph, threads, load, integers=True)
    found = load()
    named = _as_remembered(identity, found.sha256, model)
    graph = vit_graph(named, found.tensors, integers=integers)
    encoder = OnnxEncoder(named, found.sha256, graph, threads, load, integers=integers)
    if integers and package is not None and found.sha256 == package.weights:
        write_graph(encoder.fingerprint, graph)
    return encoder


def _as_remembered(identity: EncoderId, weights_sha256: str, model: str | None) -> EncoderId:
    """Return the variant of the encoder with fingerprint `model`, if only position resampling differs."""
    return names_by_fingerprint(identity, weights_sha256).get(model or "", identity)

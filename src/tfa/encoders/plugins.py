"""Encoders that other distributions bring, under the entry point `tfa.encoders`.

An entry is a function `load(name, *, weights, device, threads) -> Encoder`: `name` as the user wrote it, with whatever
follows the first `@` or `/`; `weights` a file or None. The encoder's `id` must begin with the entry's name, so that a
map that was built with it finds it again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tfa.base.entry_points import load_plugin, plugin_names, plugin_source
from tfa.encoders.catalogue import CATALOGUE
from tfa.encoders.protocol import Encoder
from tfa.errors import BadPlugin, BadSpec

_PLUGIN_GROUP = "tfa.encoders"


def list_plugin_encoders() -> dict[str, str]:
    """Name → the distribution that brings it. Nothing is imported."""
    return {name: plugin_source(_PLUGIN_GROUP, name) for name in plugin_names(_PLUGIN_GROUP, CATALOGUE)}


def load_plugin_encoder(
    name: str, *, weights: str | Path | None, device: str, threads: int | None, fast: bool
) -> Encoder | None:
    """The encoder of a name in full; None where it is not of another distribution."""
    entry = _parse_entry(name)
    load = None if entry in CATALOGUE else load_plugin(_PLUGIN_GROUP, entry, CATALOGUE)
    if load is None:
        return None
    source = plugin_source(_PLUGIN_GROUP, entry)
    if fast:
        raise BadSpec(f"encoder {name!r} of {source} has no 8-bit form; leave --fast out")
    if not callable(load):
        raise BadPlugin(f"the encoder {entry!r} of {source} must be a function load(name, …) -> Encoder, is {load!r}")
    encoder = load(name, weights=None if weights is None else Path(weights), device=device, threads=threads)
    if not isinstance(encoder, Encoder) or _parse_entry(encoder.id) != entry:
        raise BadPlugin(
            f"the encoder {entry!r} of {source} must have id, fingerprint, model, channels, global_channels, grid, "
            f"notes, device and encode, its id beginning with {entry!r}; it is {encoder!r}"
        )
    return encoder


def _parse_entry(name: str) -> str:
    return re.split("[@/]", name, maxsplit=1)[0]

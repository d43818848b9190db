"""Small synthetic worlds of tokens for numeric tests."""

from __future__ import annotations

import numpy as np

from tfa.core.tokens import Tokens


def world(images: int = 24, patches: int = 12, channels: int = 6, seed: int = 0, noise: float = 0.25) -> Tokens:
    """Images made of a few recurring things, so that words and places mean something."""
    rng = np.random.default_rng(seed)
    things = rng.normal(size=(9, channels))
    kinds = rng.integers(0, len(things), (images, patches))
    tokens = things[kinds] + noise * rng.normal(size=(images, patches, channels))
    return Tokens(tokens, tokens.mean(axis=1) + 0.1 * rng.normal(size=(images, channels)))


def seen_again(tokens: Tokens, seed: int = 1, noise: float = 0.15) -> Tokens:
    """The same places in another light."""
    rng = np.random.default_rng(seed)
    patches = np.asarray(tokens.patches)
    cls = None if tokens.cls is None else tokens.cls + noise * rng.normal(size=tokens.cls.shape)
    return Tokens(patches + noise * rng.normal(size=patches.shape), cls)

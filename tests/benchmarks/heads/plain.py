"""Small tokens and plain helpers for tests that write a head out from its definition."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from tests.worlds import world
from tfa_bench.heads.contract import HeadCard

TOKENS = world(images=6, patches=14, channels=5)


def unit(vector) -> np.ndarray:
    norm = math.sqrt(sum(float(x) ** 2 for x in vector))
    return np.array([float(x) / norm if norm > 0 else 0.0 for x in vector])


def unit_patches(image: int) -> np.ndarray:
    return np.array([unit(patch) for patch in TOKENS.patches[image]])


def card(module: ModuleType, name: str) -> HeadCard:
    return next(card for card in module.CARDS if card.name == name)

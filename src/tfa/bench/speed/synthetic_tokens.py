"""Made-up tokens of any number of images, made when they are read: a large map need not be in memory to be timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens

THINGS = 400  # kinds of things in the world
SEEN = 44  # of them in an image: of 64 words half are then chosen by no patch, as in photos
NOISE = 0.7
POOL = 16_384  # patches of noise; every image takes a run of them


class LazyTokens(Sequence):
    """Patches `n d` of one image after the other, float16, the same whenever they are loaded.

    `seconds` is how long making them took so far: it is no part of what is timed.
    """

    def __init__(self, images: int, patches: int, channels: int) -> None:
        rng = np.random.default_rng(0)
        self.images, self.patches, self.seconds = images, patches, 0.0
        self.things = rng.standard_normal((THINGS, channels), np.float32)
        self.noise = NOISE * rng.standard_normal((max(POOL, 2 * patches), channels), np.float32)
        self.shapes = np.tile(np.array([patches, channels], np.int64), (images, 1))

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: Any) -> Any:
        started = time.perf_counter()
        kinds, first = self._drawn(int(index))
        made = (self.things[kinds] + self.noise[first : first + self.patches]).astype(np.float16)
        self.seconds += time.perf_counter() - started
        return made

    def _drawn(self, index: int) -> tuple[np.ndarray, int]:
        """Which thing each patch shows, and where its noise begins."""
        rng = np.random.default_rng((1, index))
        seen = rng.integers(0, THINGS, SEEN)
        return seen[rng.integers(0, SEEN, self.patches)], int(rng.integers(0, len(self.noise) - self.patches))

    def global_tokens(self) -> np.ndarray:
        """Of each image the mean of its patches but for their noise, `b d`."""
        tokens = np.empty((self.images, self.things.shape[1]), np.float32)
        for index in range(self.images):
            kinds, counts = np.unique(self._drawn(index)[0], return_counts=True)
            tokens[index] = (counts / self.patches).astype(np.float32) @ self.things[kinds]
        return tokens


def lazy_tokens(images: int, patches: int, channels: int) -> tuple[Tokens, LazyTokens]:
    """Tokens with structure, and what makes them."""
    maker = LazyTokens(images, patches, channels)
    return Tokens(maker, maker.global_tokens()), maker

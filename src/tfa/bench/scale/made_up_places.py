"""Made-up vectors with the spectrum of real ones: places of four photos each, in one file, a block at a time.

    Ψ = L2(λ^¼ z),  λ_j ~ j^-0.8,  z = √½ z(place) + √½ z(photo)        b ~ N(0, 0.1 · spread of scores)
    image   R [Ψ, b]        query   R [Ψ, 1]

Vectors drawn evenly would say nothing: approximate search depends on the spectrum, and on neighbours that are close.
Every block has a seed of its own, so the first images of a large file are those of a small one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfa.core.files import make_folder
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.search.gallery import top_k
from tfa.search.reduced import fixed_rotation

PHOTOS = 4  # of a place
DECAY = 0.8  # of the spectrum
SAME = 0.5  # of the variance of z is the place's
BIAS = 0.1  # spreads of scores
ASKED_BLOCKS = 10  # blocks whose places are asked for


@dataclass(frozen=True)
class MadeUpPlaces:
    """A file of vectors below `folder`, as long as was ever asked for."""

    folder: Path
    dims: int = 1024
    block: int = 10_000  # images made at a time

    @property
    def file(self) -> Path:
        return self.folder / f"places-{self.dims}-{self.block}.f32"

    def vectors(self, images: int, progress: Progress | bool | None = None) -> np.ndarray:
        """`images dims`, float32, read from the file when they are looked at. What is missing is made first."""
        make_folder(self.folder)
        whole = self.block * self.dims * 4
        self.file.touch()
        done, wanted = self.file.stat().st_size // whole, -(-images // self.block)
        with self.file.open("r+b") as file:
            file.truncate(max(done, 0) * whole)  # a block that was not finished
            file.seek(0, 2)
            missing = range(done, wanted)
            for number in track_progress(missing, len(missing), "making vectors", as_progress(progress), "blocks"):
                file.write(self._images(number).tobytes())
        return np.memmap(self.file, np.float32, "r", shape=(images, self.dims))

    def queries(self, images: int, count: int) -> np.ndarray:
        """`count dims`, float32: one more photo of places that the first `images` are of."""
        blocks = -(-images // self.block)
        chosen = np.unique(np.linspace(0, blocks - 1, min(ASKED_BLOCKS, blocks)).astype(int))
        asked = []
        for part, number in enumerate(chosen.tolist()):
            there = min(images - number * self.block, self.block) // PHOTOS
            own = count // len(chosen) + (part < count % len(chosen))
            places = np.linspace(0, max(there - 1, 0), own).astype(int)
            rng = np.random.default_rng([number, 2])
            asked.append(self._turned(self._features(self._places(number)[places], rng), np.ones(own)))
        return np.concatenate(asked)

    def _places(self, number: int) -> np.ndarray:
        rng = np.random.default_rng([number, 0])
        return rng.standard_normal((-(-self.block // PHOTOS), self.dims - 1), np.float32)

    def _images(self, number: int) -> np.ndarray:
        rng = np.random.default_rng([number, 1])
        places = np.repeat(self._places(number), PHOTOS, axis=0)[: self.block]
        return self._turned(
            self._features(places, rng), rng.standard_normal(self.block) * BIAS * self._spread_of_scores()
        )

    def _amplitudes(self) -> np.ndarray:
        """λ^¼."""
        return np.arange(1, self.dims, dtype=np.float64) ** (-DECAY / 4)

    def _spread_of_scores(self) -> float:
        """Standard deviation of ⟨Ψ, Ψ'⟩ of two places."""
        share = self._amplitudes() ** 2
        return float(np.sqrt(((share / share.sum()) ** 2).sum()))

    def _features(self, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        own = rng.standard_normal(places.shape, np.float32)
        own *= math.sqrt(1 - SAME)
        own += math.sqrt(SAME) * places
        own *= self._amplitudes().astype(np.float32)
        own /= np.linalg.norm(own, axis=1, keepdims=True)
        return own

    def _turned(self, features: np.ndarray, last: np.ndarray) -> np.ndarray:
        rotation = fixed_rotation(self.dims).astype(np.float32)
        return np.column_stack([features, last.astype(np.float32)]) @ rotation.T


def exact_answers(vectors: np.ndarray, queries: np.ndarray, k: int, block: int = 50_000) -> np.ndarray:
    """The k best `q k` by float32 products, ties to the smaller index."""
    ids, scores = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), block):
        own = queries @ vectors[start : start + block].T
        best, values = top_k(own, min(k, own.shape[1]))
        ids, scores = np.concatenate([ids, best + start], axis=1), np.concatenate([scores, values], axis=1)
        order = np.lexsort((ids, -scores), axis=1)[:, :k]
        ids, scores = np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)
    return ids

"""What a map's images score with each other, under the head that answers: the scale that its confidence is read on.

S(a, ·) are scores of image a with all images, from the database alone: neither centred on other photos nor with a bias.
They come from the rows of the gallery, so that no photo is needed, and are known up to a constant of each row.
"""

from __future__ import annotations

import numpy as np

from tfa.method.scorer import Scorer
from tfa.search.exact import ExactSearch

NEAREST = 16  # images searched for the one that is most like an image, beside its copies
_IMAGES_PER_SEARCH = 64  # images searched at a time


class DatabaseScores:
    """Scores between images `m`, which stand in `rows` of the gallery. Results are cached."""

    def __init__(
        self,
        scorer: Scorer,
        rows: np.ndarray | None = None,
        ids: np.ndarray | None = None,
        searcher: ExactSearch | None = None,
    ) -> None:
        """`searcher` searches the images by their `ids`, which grow. [default: exactly]"""
        self.scorer, self.rows = scorer, np.arange(len(scorer.bias)) if rows is None else rows
        self._first = self.rows if scorer.duplicates is None else scorer.duplicates[self.rows]
        self._ids = np.arange(len(self.rows)) if ids is None else ids
        self._searcher = searcher or ExactSearch(scorer.rows, self._ids, self.rows)
        self._mean_best = np.full((2, len(self.rows)), np.nan)

    def between(self, images: np.ndarray, others: np.ndarray) -> np.ndarray:
        """S(a, c) `a c`, float64."""
        return self._products(self._first[images], self._first[others])

    def mean_and_best(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and maximum of S(a, ·) over all images but a, of the maximum but its copies too, `a` each.

        The maximum is over the NEAREST images that the search finds: where scores have a bias, those of most score.
        """
        unknown = np.unique(images[np.isnan(self._mean_best[0, images])])
        for start in range(0, len(unknown), _IMAGES_PER_SEARCH):
            self._look(unknown[start : start + _IMAGES_PER_SEARCH])
        mean, best = self._mean_best[:, images]
        return mean, best

    def _look(self, images: np.ndarray) -> None:
        scorer, first, count = self.scorer, self._first[images], len(self.rows)
        found = self._searcher.search(scorer.image_vectors(first), NEAREST)
        columns = np.searchsorted(self._ids, found.ids)
        bias, other = scorer.bias[self._first], self._first[columns] != first[:, None]
        own = np.array([self._products(one, one)[0, 0] for one in first[:, None]])
        scores = np.where(other, found.scores - bias[columns], -np.inf)
        mean = found.mean - bias.mean()
        # Itself is taken out of the mean. If all that was found are copies, it is as like itself as anything else.
        self._mean_best[0, images] = (mean * count - own) / max(count - 1, 1)
        self._mean_best[1, images] = np.where(other.any(axis=1), scores.max(axis=1), own)

    def _products(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        vectors, galleries = self.scorer.image_vectors(rows), self.scorer.rows
        total = np.zeros((len(rows), len(others)))
        for weight, gallery, features in zip(galleries.weights, galleries.galleries, vectors.terms, strict=True):
            total += weight * (features.astype(np.float64) @ gallery.take(others).astype(np.float64).T)
        return total

"""Support and agreement: coverage and reproducibility of a retriever, judged without any label.

Coverage (`measure_support`) and reproducibility (`measure_agreement`) are judged together: agreement alone also rewards
a retriever whose vocabularies agree on a few hubs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tfa.method.evidence.rows import NO_ANSWER

_PAIRS = ((0, 1), (0, 2), (1, 2))
SAME_COSINE = 1 - 5e-13  # cosine from which two float64 descriptors count as one


@dataclass(frozen=True)
class Mask:
    """Gallery entries a pseudo query may not return: itself and its numerical duplicates, as sorted pairs."""

    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of_duplicates(cls, products: np.ndarray, images: np.ndarray, norms: np.ndarray, first_row: int = 0) -> Mask:
        """From products `p m` of the pseudo queries `images` with the gallery, whose float64 norms are `norms`."""
        of_image = norms[images]
        # Few pairs are near 1: one comparison by rows finds them, only they are checked exactly. A zero
        # descriptor has no cosine: it is a duplicate of nothing but itself.
        smallest = norms[norms > 0].min() if norms.any() else 1.0
        near = products >= np.where(of_image > 0, SAME_COSINE * of_image * smallest * (1 - 1e-9), np.inf)[:, None]
        rows, columns = np.nonzero(near)
        same = (products[rows, columns] >= SAME_COSINE * of_image[rows] * norms[columns]) & (norms[columns] > 0)
        pairs = np.unique(
            np.concatenate([rows[same], np.arange(len(images))]) * len(norms) + np.concatenate([columns[same], images])
        )
        return cls(pairs // len(norms) + first_row, pairs % len(norms))

    def within(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Masked (row, column) pairs of a block of rows, rows counted from `start`."""
        low, high = np.searchsorted(self.rows, [start, stop])
        return self.rows[low:high] - start, self.columns[low:high]

    def union(self, *others: Mask) -> Mask:
        pairs = np.concatenate([np.stack([mask.rows, mask.columns]) for mask in (self, *others)], axis=1)
        return Mask(*np.unique(pairs, axis=1))


def measure_support(tops: np.ndarray) -> float:
    """U: mean over constructions of the number of distinct top-1 images. `tops` is `s p`."""
    return float(np.mean(count_distinct(tops)))


def count_distinct(tops: np.ndarray) -> tuple[int, ...]:
    """The number of distinct top-1 images under each construction."""
    return tuple(len(np.unique(row[row != NO_ANSWER])) for row in tops)


def measure_agreement(tops: np.ndarray) -> tuple[float, float, float]:
    """A^{ss'}: share of pseudo queries with the same top-1 in two constructions, for each pair."""
    return tuple(_agreement(tops[s], tops[t]) for s, t in _PAIRS)  # type: ignore[return-value]


def _agreement(one: np.ndarray, other: np.ndarray) -> float:
    counted = (one != NO_ANSWER) & (other != NO_ANSWER)
    return float((one == other)[counted].mean()) if counted.any() else 0.0


@dataclass(frozen=True)
class Candidate:
    """A retrieval rule as the evidence sees it."""

    name: str
    support: float
    agreement: tuple[float, float, float]
    supports: tuple[int, ...] = ()  # under each construction: how far `measure_support` is from chance

    @classmethod
    def of(cls, name: str, tops: np.ndarray) -> Candidate:
        return cls(name, measure_support(tops), measure_agreement(tops), count_distinct(tops))

    def gain_over(self, other: Candidate) -> float:
        """D: the largest agreement gain over the construction pairs; negative when every pair agrees less."""
        return max(a - b for a, b in zip(self.agreement, other.agreement, strict=True))

    def beats(self, other: Candidate) -> bool:
        """m ≻ n: more support, and agreement not lowered in every pair."""
        return self.support > other.support and self.gain_over(other) >= 0

    def to_dict(self) -> dict[str, object]:
        return {"support": self.support, "agreement": list(self.agreement), "supports": list(self.supports)}


def correlate(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson correlation; 0 where it is undefined."""
    if len(x) < 2:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / scale) if scale > 0 else 0.0


def penalize_dispersion(values: Sequence[float]) -> float:
    """L(x) = clip(median − Φ⁻¹(.975)·MAD / (Φ⁻¹(.75)·√3), 0, 1): small when the constructions disagree."""
    x = np.asarray(values, dtype=np.float64)
    median = float(np.median(x))
    mad = float(np.median(np.abs(x - median)))
    normal = NormalDist()
    penalty = normal.inv_cdf(0.975) * mad / (normal.inv_cdf(0.75) * np.sqrt(3))
    return float(np.clip(median - penalty, 0, 1))

"""Ties: images of equal content score equally to the last bit, and the smaller index wins."""

from __future__ import annotations

import numpy as np

from tfa.base.backend import to_numpy
from tfa.base.spill import release

GLIMPSES = 256  # numbers of a row that show whether it may be equal to another
ROW_BLOCK = 512  # rows glimpsed at together


def find_duplicates(*galleries: np.ndarray | None) -> np.ndarray | None:
    """For each row the first row equal to it in all galleries; None if all rows differ.

    Only rows that agree with another in a few places are read whole. Bytes are compared, so −0 is made 0 first.
    """
    present = [to_numpy(gallery) for gallery in galleries if gallery is not None]
    places = [np.linspace(0, g.shape[1] - 1, min(g.shape[1], GLIMPSES)).astype(np.int64) for g in present]
    first = np.arange(len(present[0]))
    alike: dict[int, list[int]] = {}
    for start in range(0, len(first), ROW_BLOCK):
        glimpses = [g[start : start + ROW_BLOCK][:, at] + 0 for g, at in zip(present, places, strict=True)]
        for row, glimpse in enumerate(np.concatenate(glimpses, axis=1), start):
            alike.setdefault(hash(glimpse.tobytes()), []).append(row)
        for gallery in present:
            release(gallery)
    for rows in alike.values():
        seen: dict[bytes, int] = {}
        for row in rows if len(rows) > 1 else ():
            first[row] = seen.setdefault(b"".join((gallery[row] + 0).tobytes() for gallery in present), row)
    return None if (first == np.arange(len(first))).all() else first


def top_k(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and scores of the k best of each row, ties to the smaller index; fewer if the gallery is smaller."""
    k = min(k, scores.shape[1])
    indices = np.empty((len(scores), k), np.int64)
    if k > 0:
        bar = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k]
        for row in range(len(scores)):
            able = np.flatnonzero(scores[row] >= bar[row])
            indices[row] = able[np.argsort(-scores[row, able], kind="stable")[:k]]
    return indices, np.take_along_axis(scores, indices, axis=1)

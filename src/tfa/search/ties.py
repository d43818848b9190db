"""Ties: images of equal content score equally to the last bit, and the smaller index wins."""

from __future__ import annotations

import hashlib

import numpy as np

from tfa.base.backend import to_numpy


def find_duplicates(*galleries: np.ndarray | None) -> np.ndarray | None:
    """For each row the first row equal to it in all galleries; None if all rows differ."""
    present = [to_numpy(gallery) for gallery in galleries if gallery is not None]
    seen: dict[bytes, int] = {}
    first = np.empty(len(present[0]), np.int64)
    for row in range(len(first)):
        digest = hashlib.blake2b(b"".join(np.ascontiguousarray(g[row]).tobytes() for g in present)).digest()
        first[row] = seen.setdefault(digest, row)
    return None if len(seen) == len(first) else first


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

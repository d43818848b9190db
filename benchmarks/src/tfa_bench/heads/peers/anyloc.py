"""AnyLoc: VLAD with hard assignment on a cosine k-means whose centers are means of unit patches.

    k(i) = argmax_k cos(p̃_i, c_k)     V_k = Σ_{i: k(i)=k} (p̃_i − c_k)     v = L2 [ V_k / ‖V_k‖ ]_k

The mean of unit vectors is shorter than one and is used unnormalized (`raw`); `unit` normalizes the centers afterwards.
Our choices: the random start is numpy's, drawn from patches in an order that does not depend on the database order; at
most 300,000 patches; the vocabulary uses the photos at query size.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.residuals import hard_weights, normalize_blocks, residual_blocks
from tfa.method.vocabulary import sample_patches
from tfa_bench.heads.contract import ONLY, PEER_STAGES, HeadCard, NeedsFile, Photos, Shared, read_vocabulary
from tfa_bench.heads.vectors import VectorHead, check_channels, content_order, describe_each, random_start

SEEDS = (0, 1, 2)
_MAX_PATCHES = 300_000
_MAX_ITERATIONS = 100
TOLERANCE = 1e-4  # on Σ_k ‖Δc_k‖²
CENTER_NORMS = ("raw", "unit")
BLOCK = 8192  # patches compared with all centers at once
ROUNDING = 1e-5  # accuracy of float32 cosines of unit vectors


def kmeans(patches: np.ndarray, words: int, seed: int) -> np.ndarray:
    """Cosine k-means of unit patches `(t, d)` → centers `(k, d)` in float64, not normalized; an empty one is 0.

    Assignment by cosine, update by the arithmetic mean. A patch is compared again only if the centers may have turned
    past its margin (see `_Assignment.turned`); the labels equal those of comparing all patches.
    """
    centers = patches[random_start(len(patches), words, seed)].astype(np.float64)
    assignment = _Assignment(patches, words)
    for _ in range(_MAX_ITERATIONS):
        assignment.compare(l2_normalize(centers))
        updated = assignment.means()
        change = float(((updated - centers) ** 2).sum())
        assignment.turned(np.linalg.norm(l2_normalize(updated) - l2_normalize(centers), axis=1))
        centers = updated
        if change <= TOLERANCE:
            break
    return centers


class _Assignment:
    """The word and margin of each patch, and the sums of the words' patches."""

    def __init__(self, patches: np.ndarray, words: int) -> None:
        self.patches, self.words = patches, words
        self.labels = np.full(len(patches), words, np.int64)  # `words` means none yet
        self.margins = np.full(len(patches), -np.inf)
        self.sums = np.zeros((words, patches.shape[1]))
        self.counts = np.zeros(words, np.int64)

    def compare(self, directions: np.ndarray) -> None:
        """Assign every patch in doubt to the word with the largest cosine, the first of equals."""
        directions = directions.astype(self.patches.dtype)
        doubtful = np.flatnonzero(self.margins <= ROUNDING)
        for low in range(0, len(doubtful), BLOCK):
            rows = doubtful[low : low + BLOCK]
            block = np.take(self.patches, rows, axis=0)  # several times faster than patches[rows]
            cosines = block @ directions.T
            nearest = cosines.argmax(axis=1)
            each = np.arange(len(rows))
            best = cosines[each, nearest]
            cosines[each, nearest] = -np.inf
            self.margins[rows] = best - cosines.max(axis=1)
            self._move(rows, block, nearest)

    def _move(self, rows: np.ndarray, block: np.ndarray, labels: np.ndarray) -> None:
        """Move reassigned patches from the old sum to the new one."""
        changed = np.flatnonzero(self.labels[rows] != labels)
        old, new, kinds = self.labels[rows[changed]], labels[changed], np.arange(self.words)
        shift = (new[:, None] == kinds).astype(block.dtype) - (old[:, None] == kinds).astype(block.dtype)
        self.sums += shift.T @ np.take(block, changed, axis=0)
        self.counts += shift.sum(axis=0, dtype=np.float64).astype(np.int64)
        self.labels[rows] = labels

    def means(self) -> np.ndarray:
        return np.where(self.counts[:, None] > 0, self.sums / np.maximum(self.counts, 1)[:, None], 0.0)

    def turned(self, by: np.ndarray) -> None:
        """|⟨p̃, ĉ'⟩ − ⟨p̃, ĉ⟩| ≤ ‖ĉ' − ĉ‖: a margin shrinks by no more than its own word and any other moved."""
        most, next_most = np.sort(np.append(by, 0.0))[-1:-3:-1]
        others = np.where(np.arange(len(by)) == by.argmax(), next_most, most)
        self.margins -= (by + others)[self.labels]


def with_norm(centers: np.ndarray, center_norm: str) -> np.ndarray:
    if center_norm not in CENTER_NORMS:
        raise BadSpec(f"center_norm={center_norm!r} is unknown; use {' or '.join(map(repr, CENTER_NORMS))}")
    return centers if center_norm == "raw" else l2_normalize(centers)


def vlad(unit: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the descriptor `(k·d,)` of one image's unit patches `(n, d)`; a block without patches stays 0."""
    weights = hard_weights(unit @ l2_normalize(centers).T)  # cosine, independent of the length of the centers
    descriptors, _ = normalize_blocks(residual_blocks(unit[None], weights[None], centers))
    return descriptors[0]


def describe_hard_vlad(tokens: Tokens, centers: np.ndarray) -> np.ndarray:
    """Return descriptors `(b, k·d)` of all images."""
    check_channels(tokens, centers.shape[1])
    words = centers.astype(np.float32)
    return describe_each(tokens, words.size, lambda unit, _: vlad(unit, words))


def _fit(database: Photos, shared: Shared, *, words: int, center_norm: str) -> VectorHead:
    def vocabularies() -> list[np.ndarray]:
        order = shared.once("images by content", lambda: content_order(database.tokens))
        patches = sample_patches(database.tokens.select(order), _MAX_PATCHES)
        return [kmeans(patches, words, seed) for seed in SEEDS]

    fitted = shared.once(f"anyloc vocabularies of {words} words", vocabularies)
    how = {
        str(seed): partial(describe_hard_vlad, centers=with_norm(centers, center_norm))
        for seed, centers in zip(SEEDS, fitted, strict=True)
    }
    make = lambda: VectorHead.of(database, how, "database", shared.progress)  # noqa: E731
    return shared.once(f"anyloc of {words} words, {center_norm}", make)


def _card(name: str, title: str, words: int, center_norm: str, note: str = "") -> HeadCard:
    return HeadCard(
        stages=PEER_STAGES,
        name=name,
        title=title,
        sees="database",
        fit=partial(_fit, words=words, center_norm=center_norm),
        settings={"words": words, "center_norm": center_norm, "max_patches": _MAX_PATCHES, "seeds": list(SEEDS)},
        note=note,
    )


def anyloc_from_file(path: str | Path, center_norm: str = "raw") -> HeadCard:
    """Return AnyLoc with a released vocabulary: nothing is learned from the database."""
    words, source = read_vocabulary(Path(path))
    centers = with_norm(words, center_norm)

    def fit(database: Photos, shared: Shared) -> VectorHead:
        return VectorHead.of(database, {ONLY: partial(describe_hard_vlad, centers=centers)}, "nothing", shared.progress)

    return HeadCard(
        stages=PEER_STAGES,
        name="anyloc-released",
        title="AnyLoc, released vocabulary",
        sees="nothing",
        fit=fit,
        settings={"words": len(centers), "center_norm": center_norm, **source},
    )


CARDS: tuple[HeadCard, ...] = (
    _card("anyloc", "AnyLoc", 64, "raw"),
    _card("anyloc-unit", "AnyLoc, unit centers", 64, "unit", "centers normalized after k-means"),
    _card("anyloc-k32", "AnyLoc, K=32", 32, "raw", "the number of words of the released vocabularies"),
)
NEED_FILES = {
    "anyloc-released": NeedsFile(
        "AnyLoc, released vocabulary",
        "nothing",
        "--vocabulary FILE",
        "needs a released vocabulary",
        "",
        lambda supplied: None if supplied.vocabulary is None else anyloc_from_file(supplied.vocabulary),
    )
}

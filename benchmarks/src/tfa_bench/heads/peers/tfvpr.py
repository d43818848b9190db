"""TF-VPR: patches smoothed over their nearest neighbors in the image, pooled by attention over K centers.

    graph attention        f_i = L2(p_i), a_i = Σ_j softmax_j(⟨f_i, f_j⟩) f_j over the 8 nearest, including i
                           g_i = L2(0.8 f_i + 0.2 a_i)
    cross attention        o_k = Σ_i softmax_k(α ⟨ĉ_k, g_i⟩) g_i,   α = −ln 0.01 / mean(s₍₁₎ − s₍₂₎)
    attention_descriptor   L2 [ L2(global token); L2(o_1); …; L2(o_K) ]

s₍₁₎ and s₍₂₎ are the two largest ⟨ĉ_k, f⟩ of a patch. The centers are a Euclidean k-means on the f, of the database
only or, as in the published evaluation, of database and queries. Our choices: the subsample and the random start are
numpy's, from patches in an order that does not depend on the photo order; an empty cluster restarts at the patch
farthest from its center; iterations end when no patch changes its center.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.tokens import Tokens
from tfa.method.vocabulary import sample_patches
from tfa_bench.heads.contract import ONLY, PEER_STAGES, HeadCard, Photos, Shared
from tfa_bench.heads.vectors import (
    VectorHead,
    check_channels,
    content_order,
    describe_each,
    global_tokens,
    join_tokens,
    random_start,
)
from tfa_bench.protocols import FULL_QUERY

_WORDS = 16  # plus the global token: 17 blocks
NEIGHBORS = 8
_SELF, _AROUND = 0.8, 0.2
_RUNNER_UP = 0.01  # weight of the second center relative to the first, at the mean gap
_POINTS_PER_WORD = 256
_MAX_ITERATIONS = 100
SEED = 1234
_NO_GAP = 1e-6  # float32 similarities closer than this count as equal


@dataclass(frozen=True)
class Attention:
    """Centers that patches attend to, and the sharpness."""

    directions: np.ndarray  # (k, d), unit
    alpha: float


def graph_attention(unit: np.ndarray) -> np.ndarray:
    """Mix each unit patch `(n, d)` of an image with a fifth of its neighborhood."""
    similarities = unit @ unit.T
    kept = min(NEIGHBORS, len(unit))
    # Ties with the last neighbor may be broken either way: the tokens are equal, or ties almost never occur.
    nearest = np.argpartition(-similarities, kept - 1, axis=1)[:, :kept]
    weights = np.zeros_like(similarities)
    np.put_along_axis(weights, nearest, _softmax(np.take_along_axis(similarities, nearest, axis=1)), axis=1)
    return l2_normalize(_SELF * unit + _AROUND * (weights @ unit))


def cross_attention(smoothed: np.ndarray, attention: Attention) -> np.ndarray:
    """Return `(k, d)`, the sum at each center. Every smoothed patch `(n, d)` shares its weight among the centers."""
    weights = _softmax(attention.alpha * (smoothed @ attention.directions.T))
    return l2_normalize(weights.T @ smoothed)


def attention_descriptor(unit: np.ndarray, token: np.ndarray, attention: Attention) -> np.ndarray:
    """Return `(d_g + k·d,)` from unit patches `(n, d)` and global token `(d_g,)` of one image."""
    gathered = cross_attention(graph_attention(unit), attention)
    return l2_normalize(np.concatenate([l2_normalize(token), gathered.ravel()]))


def describe_attention(tokens: Tokens, attention: Attention) -> np.ndarray:
    """Return descriptors of all images, `(b, d_g + k·d)`."""
    check_channels(tokens, attention.directions.shape[1])
    cls = global_tokens(tokens, "tfvpr").astype(np.float32)
    width = cls.shape[1] + attention.directions.size
    return describe_each(tokens, width, lambda unit, index: attention_descriptor(unit, cls[index], attention))


def lloyd(points: np.ndarray, words: int, seed: int = SEED) -> np.ndarray:
    """Euclidean k-means of `(t, d)` from a random start → centers `(k, d)`."""
    points = points.astype(np.float64)
    centers = points[random_start(len(points), words, seed)]
    labels = np.full(len(points), -1)
    for _ in range(_MAX_ITERATIONS):
        # ‖x − c‖² = ‖x‖² − 2⟨x, c⟩ + ‖c‖²; the first term is the same for all centers.
        costs = (centers**2).sum(axis=1) - 2 * points @ centers.T
        nearest = costs.argmin(axis=1)
        if (nearest == labels).all():
            break
        labels = nearest
        members = (labels[:, None] == np.arange(words)).astype(np.float64)
        counts = members.sum(axis=0)
        centers = members.T @ points / np.maximum(counts, 1)[:, None]
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            distances = (points**2).sum(axis=1) + costs.min(axis=1)
            farthest = np.argsort(-distances, kind="stable")
            centers[empty] = points[np.resize(farthest[: len(empty)], len(empty))]
    return centers


def sharpness(patches: np.ndarray, directions: np.ndarray) -> float:
    """Return α: at the mean gap of a patch's two nearest centers, the second has a hundredth of the first's weight."""
    similarities = patches @ directions.T
    second, first = np.partition(similarities, len(directions) - 2, axis=1)[:, -2:].T
    gap = float((first - second).mean(dtype=np.float64))
    # Equal centers get equal attention (our choice).
    return -math.log(_RUNNER_UP) / gap if gap > _NO_GAP else 0.0


def fit_attention(tokens: Tokens, order: np.ndarray) -> Attention:
    """Fit centers and α on at most 256 patches per center, drawn from the images in this order."""
    patches = sample_patches(tokens.select(order), _POINTS_PER_WORD * _WORDS)
    directions = l2_normalize(lloyd(patches, _WORDS)).astype(np.float32)
    return Attention(directions, sharpness(patches, directions))


def _fit(database: Photos, shared: Shared) -> VectorHead:
    global_tokens(database.tokens, "tfvpr")  # fail before the work
    order = shared.once("images by content", lambda: content_order(database.tokens))
    attention = shared.once("tfvpr attention", lambda: fit_attention(database.tokens, order))
    return VectorHead.of(
        database, {ONLY: partial(describe_attention, attention=attention)}, "database", shared.progress
    )


@dataclass(frozen=True)
class Transductive:
    """TF-VPR whose centers can be refitted on database and queries."""

    head: VectorHead
    database: Photos
    shared: Shared

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.head.replicas

    @property
    def data_used(self) -> str:
        return self.head.data_used

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        return self.head.scores(queries, replica)

    def calibrate(self, target: Photos) -> Transductive:
        everything = join_tokens(self.database.tokens, target.tokens)
        attention = fit_attention(everything, content_order(everything))
        head = VectorHead.of(
            self.database, {ONLY: partial(describe_attention, attention=attention)}, "target", self.shared.progress
        )
        return Transductive(head, self.database, self.shared)


def _fit_transductive(database: Photos, shared: Shared) -> Transductive:
    return Transductive(_fit(database, shared), database, shared)


SETTINGS = {"words": _WORDS, "neighbours": NEIGHBORS, "own": _SELF, "points_per_word": _POINTS_PER_WORD, "seed": SEED}
CARDS: tuple[HeadCard, ...] = (
    HeadCard(
        stages=PEER_STAGES,
        name="tfvpr",
        title="TF-VPR",
        sees="database",
        fit=_fit,
        settings=SETTINGS | {"centres": "database"},
        note="centers from the database only; the published evaluation fits them on database and queries",
    ),
    HeadCard(
        stages=PEER_STAGES,
        name="tfvpr-transductive",
        title="TF-VPR, transductive",
        sees="target",
        fit=_fit_transductive,
        plan=FULL_QUERY,
        settings=SETTINGS | {"centres": "database and queries"},
        note="centers from database and queries, as in the published evaluation",
    ),
)


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)

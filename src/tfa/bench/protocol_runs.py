"""How a protocol runs: a head for each draw of calibration queries, and the recall of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfa import pipeline
from tfa.bench.protocol_results import Fold, ProtocolResult, Recalls, Split
from tfa.bench.recall import recall_at
from tfa.dual import DualHead
from tfa.errors import BadSpec
from tfa.retriever import ENSEMBLE, Replica
from tfa.scoring import top_k
from tfa.tokens import Tokens
from tfa.vocabulary import CONSTRUCTIONS

QUERIES_AT_ONCE = 512  # rows of scores `q m` in memory
NOTHING = -1  # no database image
Positives = Sequence[Sequence[int]]  # of each query: the database images that are right


class HeadLike(Protocol):
    """What a protocol asks. `decisions.to_dict()` and `saw` are noted where a head has them."""

    def scores(self, tokens: Tokens, replica: Any, /) -> np.ndarray:
        """`q m` scores."""


FitTarget = Callable[[Tokens], HeadLike]  # unlabelled target photos in, a head out


class Queries(NamedTuple):
    tokens: Tokens
    positives: Positives

    @classmethod
    def of(cls, tokens: Tokens, positives: Positives) -> Queries:
        if len(tokens) != len(positives) or not len(tokens):
            raise BadSpec(f"{len(positives)} lists of positives for {len(tokens)} queries; give one for each of them")
        return cls(tokens, positives)


@dataclass(frozen=True)
class Run:
    """What stays the same over the splits: how a head is made, and what is measured of it."""

    fit_target: FitTarget
    ks: tuple[int, ...]
    replicas: tuple[Replica, ...]
    suffix: str

    @classmethod
    def of(
        cls, head: Any, fit_target: FitTarget | None, ks: Sequence[int], *, score: bool = False, ensemble: bool = False
    ) -> Run:
        if not ks or min(ks) < 1:
            raise BadSpec(f"ks={tuple(ks)} is not allowed; give ranks from 1 on")
        replicas: tuple[Replica, ...] = (ENSEMBLE,) if ensemble else CONSTRUCTIONS
        fit = fit_target or (lambda target: _calibrated(head, target, score))
        return cls(fit, tuple(ks), replicas, ("+" if score else "") + (" ensemble" if ensemble else ""))

    def split(
        self,
        seed: int | None,
        asked: Queries,
        pairs: Sequence[tuple[np.ndarray, np.ndarray]],
        condition: str | None = None,
    ) -> Split:
        """One head for each pair (calibrating, evaluated), and the recall of all their answers together."""
        heads = [self.fit_target(asked.tokens.select(chosen)) for chosen, _ in pairs]
        folds = [fold_of(*pair, fitted, condition) for pair, fitted in zip(pairs, heads, strict=True)]
        answers = [(rest, fitted) for (_, rest), fitted in zip(pairs, heads, strict=True)]
        return Split(seed, tuple(folds), self.recalls(asked, answers))

    def recalls(self, asked: Queries, answers: Sequence[tuple[np.ndarray, HeadLike]]) -> Recalls:
        """Recall of each replica over the queries that each head is asked."""
        right = [asked.positives[query] for rows, _ in answers for query in rows]
        recalls = {}
        for replica in self.replicas:
            ranked = [ranked_images(head, asked.tokens.select(rows), max(self.ks), replica) for rows, head in answers]
            recalls[str(replica)] = tuple(recall_at(np.concatenate(ranked), right, self.ks))
        return recalls

    def result(self, name: str, splits: Sequence[Split], saw: str = "target") -> ProtocolResult:
        return ProtocolResult(name + self.suffix, self.ks, tuple(splits), saw)


def _calibrated(head: Any, target: Tokens, score: bool) -> HeadLike:
    if isinstance(head, DualHead):
        return head.calibrate(target, robust=score)
    return pipeline.calibrate(head, target, score=score)


def ranked_images(head: HeadLike, tokens: Tokens, k: int, replica: Replica) -> np.ndarray:
    """The k best database images of each query; a row of nothing but equal scores ranks nothing."""
    blocks = []
    for start in range(0, len(tokens), QUERIES_AT_ONCE):
        scores = head.scores(tokens.select(slice(start, start + QUERIES_AT_ONCE)), replica)
        ranked = top_k(scores, k)[0]
        # Ties go to the smaller index: without this a constant scorer would be right wherever image 0 is.
        ranked[(scores == scores[:, :1]).all(axis=1) & (scores.shape[1] > 1)] = NOTHING
        blocks.append(ranked)
    return np.concatenate(blocks)


def fold_of(chosen: np.ndarray, rest: np.ndarray, fitted: Any, condition: str | None = None) -> Fold:
    decisions = fitted.decisions.to_dict() if hasattr(fitted, "decisions") else {}
    return Fold(tuple(chosen.tolist()), tuple(rest.tolist()), decisions, condition)


def drawn(seed: int, queries: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The queries that calibrate, in the order drawn, and the others in their own."""
    shuffled = np.random.default_rng(seed).permutation(queries)
    return shuffled[:n], np.sort(shuffled[n:])


def check_budget(n: int, available: int, what: str) -> None:
    if not 1 <= n < available:
        raise BadSpec(f"a budget of {n} of {available} {what} is not allowed; at least 1 must calibrate and 1 be asked")


def seeds(splits: int) -> range:
    if splits < 1:
        raise BadSpec(f"splits={splits} is out of range: must be at least 1")
    return range(splits)


def gathered(sets: Sequence[Tokens], chosen: np.ndarray) -> Tokens:
    """Tokens of chosen images, numbered through several sets."""
    ends = np.cumsum([len(tokens) for tokens in sets])
    where = [(int(s), int(i - ends[s] + len(sets[s]))) for i in chosen for s in [np.searchsorted(ends, i, "right")]]
    tokens_of = [tokens.cls for tokens in sets]
    if any(cls is None for cls in tokens_of) and any(cls is not None for cls in tokens_of):
        raise BadSpec("some conditions have global tokens and some have none; encode them with one encoder")
    cls = None if tokens_of[0] is None else np.stack([tokens_of[s][i] for s, i in where])  # type: ignore[index]
    return Tokens([sets[s].patches[i] for s, i in where], cls)

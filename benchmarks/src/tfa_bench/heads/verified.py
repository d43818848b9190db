"""Heads whose top candidates are reranked (ours, beyond the paper).

…-v           reranked if reranking is admitted, without labels; otherwise the head's scores
…-v-always    always reranked
anyloc-v      AnyLoc with our reranking: its gain without our heads

`second-order-v` and its variants always rerank, by patches centered on their cell, as maps do. All other rows, and
`second-order-1-v`, rerank as maps did before: patches centered on one mean, one window of 5 × 5 displacements.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import backend_for
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.maps.answer import Ranking, answer_ranking, count_ranked
from tfa.maps.confidence import DatabaseScores
from tfa.maps.state import DATABASE
from tfa.method.evidence import ROW_EPSILON, standardize_ranked
from tfa.method.head import ENSEMBLE, Head
from tfa.method.second_order_head import SecondOrderHead
from tfa.search.gallery import top_k
from tfa.types import Candidates, ImageRecord, RerankSpec
from tfa.verification.matching import BY_EVIDENCE, ONE_WINDOW
from tfa.verification.reranking import UNVERIFIED, Comparison, Reranked, count_candidates, rerank
from tfa.verification.usual_evidence import space_evenly
from tfa_bench.heads.admission import (
    COMPARED_CANDIDATES,
    CONSTRUCTION,
    VerificationEvidence,
    judge_admission,
    judge_admission_on_database,
    judge_admission_on_target,
    shortlist_images,
)
from tfa_bench.heads.contract import Fit, Fitted, HeadCard, Photos, Shared
from tfa_bench.heads.second_order import ABLATED, MAP_HEAD, UNPOOLED, second_order_card, uses_cells
from tfa_bench.heads.tfa_heads import BEYOND_PAPER, PatchPairs, RetrieverHead, patch_pairs, require_grid, retriever_card
from tfa_bench.heads.vectors import VectorHead

_NAME = re.compile(r"(.+)-v(-always)?")


def lifted(scores: np.ndarray, images: np.ndarray, ordering: np.ndarray) -> np.ndarray:
    """Raise some images of the row `(m,)` above all others, in this order; `ordering` falls.

    An image's score is the row's highest plus its lead over the last of them, in the row's deviations, so the best
    image's z-score reflects its evidence.
    """
    row = np.array(scores, np.float64)
    values = row.max() + (row.std() + ROW_EPSILON) * (ordering - ordering[-1])
    for i in reversed(range(len(values) - 1)):  # equal scores, also by rounding, keep their order
        values[i] = max(values[i], np.nextafter(values[i + 1], np.inf))
    row[images] = values
    return row


@dataclass(frozen=True)
class VerifiedHead:
    """A head and the decision about its reranking."""

    base: RetrieverHead
    pairs: PatchPairs
    always: bool
    admission: VerificationEvidence | None = None  # None: nothing to decide, or not decided yet

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.base.replicas

    @property
    def data_used(self) -> str:
        return self.base.data_used

    @property
    def used(self) -> bool:
        return self.always or (self.admission is not None and self.admission.admitted)

    @property
    def decisions(self) -> dict[str, Any]:
        judged = {} if self.admission is None else self.admission.to_dict()
        return {**self.base.decisions, "verification": {"used": self.used, "always": self.always, **judged}}

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        return self.scores_and_confidence(queries, replica)[0]

    def scores_and_confidence(self, queries: Photos, replica: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return answers and confidences as a map computes them; None as confidence without reranking."""
        scores = self.base.scores(queries, replica)
        if not self.used or not len(queries):
            return scores, None
        scorer = self.base.retriever.scorer(ENSEMBLE if replica == ENSEMBLE else int(replica))
        return verified(scores, self.pairs.of(queries.tokens), self.pairs.spec.candidates, DatabaseScores(scorer))

    def calibrate(self, target: Photos) -> Fitted:
        calibrated = self.base.calibrate(target)
        assert isinstance(calibrated, RetrieverHead)
        admission = None if self.always else judged_on_target(calibrated, target.tokens, self.pairs)
        return VerifiedHead(calibrated, self.pairs, self.always, admission)


def verified(
    scores: np.ndarray, comparison: Comparison, candidates: Candidates, image_scores: DatabaseScores
) -> tuple[np.ndarray, np.ndarray]:
    """Rerank scores `(q, m)` as maps do: scores in the order of the answers, and the best one's confidence `(q,)`.

    A row of equal scores stays unchanged: it ranks nothing.
    """
    every, (columns, best) = np.arange(scores.shape[1]), top_k(scores, count_ranked(candidates, 1))
    ranking = Ranking(
        photos=np.arange(len(scores)),
        head=DATABASE,
        images=_image_records(len(every)),
        columns=columns,
        scores=best,
        standardized=standardize_ranked(scores, columns),
        vectors=(),  # only maps that monitor their photos need them
        scorer=image_scores.scorer,
        rows=every,
        patch_rows=every,
        image_scores=image_scores,
    )
    ranked, answers = answer_ranking(ranking, candidates, comparison, 1, 0.0, None)  # images have no positions
    equal = scores.max(axis=1) == scores.min(axis=1)
    return reordered(scores, ranked), np.where(equal, 0.0, [answer.confidence for answer in answers])


@lru_cache(maxsize=1)
def _image_records(count: int) -> tuple[ImageRecord, ...]:
    """Return records of a database whose images have only a number."""
    return tuple(ImageRecord(id=n, path=str(n), digest=str(n), fitted=True) for n in range(count))


def reordered(scores: np.ndarray, ranked: Reranked) -> np.ndarray:
    """Return scores `(q, m)` in the order of `ranked`; a row of equal scores stays unchanged."""
    result = np.array(scores, np.float64, order="C")
    for index in np.flatnonzero(scores.max(axis=1) != scores.min(axis=1)):
        compared = ranked.inliers[index] != UNVERIFIED
        result[index] = lifted(result[index], ranked.indices[index, compared], ranked.ordering[index, compared])
    return result


def judged_on_database(
    base: RetrieverHead, database: Tokens, pairs: PatchPairs, progress: Progress | None = None
) -> VerificationEvidence:
    """Decide admission of reranking with the database's images."""
    spec = pairs.spec
    if isinstance(base.retriever, (Head, SecondOrderHead)):
        return judge_admission_on_database(base.retriever, pairs.evidence_between, spec, backend_for("cpu"), progress)
    # A dual head stores no pseudo scores.
    duplicates = base.retriever.scorer(CONSTRUCTION).duplicates
    scores_of = lambda photos: base.retriever.scores(photos, CONSTRUCTION)  # noqa: E731
    return judged_by_hiding(scores_of, duplicates, database, pairs, progress)


def judged_by_hiding(
    scores_of: Callable[[Tokens], np.ndarray],
    duplicates: np.ndarray | None,
    database: Tokens,
    pairs: PatchPairs,
    progress: Progress | None = None,
) -> VerificationEvidence:
    """Decide admission for any head: images are scored as queries with themselves and their duplicates hidden."""
    chosen = space_evenly(len(database), pairs.spec.max_pseudo)
    first = np.arange(len(database)) if duplicates is None else duplicates
    row, column = np.nonzero(first[chosen][:, None] == first[None, :])
    ranked = shortlist_images(scores_of(database.select(chosen)), (row, column), 2 * COMPARED_CANDIDATES)
    return judge_admission(
        ranked, lambda row, images: pairs.evidence_between(int(chosen[row]), images), "self-tests", progress
    )


def judged_on_target(base: RetrieverHead, target: Tokens, pairs: PatchPairs) -> VerificationEvidence:
    """Decide admission of reranking with the photos used for calibration."""
    retriever: Any = base.retriever  # single or dual: both have scores
    compared = pairs.of(target)
    evidence = lambda row, images: compared.with_queries([row], [images])[0].evidence  # noqa: E731
    return judge_admission_on_target(retriever, target, evidence)


def verified_card(name: str, vocabulary: Path | None = None) -> HeadCard | None:
    """Return the card of a name with -v or -v-always; None for other names or heads without reranking."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    if name == "anyloc-v":
        from tfa_bench.heads.peers import anyloc

        return verified_peer(anyloc.CARDS[0])
    base = retriever_card(match[1], vocabulary) or second_order_card(match[1])
    if base is None:
        return None
    cells, one_window = uses_cells(name), name.startswith(ABLATED)
    always = bool(match[2]) or cells  # maps with cells always rerank
    by_evidence = {"windows": [side for side, _ in (ONE_WINDOW if one_window else BY_EVIDENCE)]}
    windows = {"cells": True, **by_evidence} if cells else {"window": ONE_WINDOW[0][0]}
    settings = {"always": always, **windows, **RerankSpec().to_dict()}
    return dataclasses.replace(
        base,
        name=name,
        title=base.title + (", reranked" if name.startswith(MAP_HEAD) else " +V") + ", always" * bool(match[2]),
        fit=_fit(base, always, cells, one_window),
        settings={**base.settings, "verification": settings},
        stages=tuple(dict.fromkeys((*base.stages, "verification"))),
        note=base.note if name.startswith((ABLATED, UNPOOLED)) else BEYOND_PAPER,
    )


def _fit(card: HeadCard, always: bool, cells: bool, one_window: bool) -> Fit:
    def fit(database: Photos, shared: Shared) -> Fitted:
        require_grid(database.tokens)
        pairs = patch_pairs(database, shared, cells=cells, one_window=one_window)
        assert pairs is not None
        base = card.fit(database, shared)
        assert isinstance(base, RetrieverHead)
        # A head that calibrates is decided by its calibration photos, once it has them.
        if always or card.plan.calibrates:
            return VerifiedHead(base, pairs, always)
        return VerifiedHead(base, pairs, always, judged_on_database(base, database.tokens, pairs, shared.progress))

    return fit


@dataclass(frozen=True)
class VerifiedVectors:
    """A peer with one vector per image and the decision about its reranking. Its confidence stays the z-score."""

    base: VectorHead
    pairs: PatchPairs
    admission: VerificationEvidence

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.base.replicas

    @property
    def data_used(self) -> str:
        return self.base.data_used

    @property
    def decisions(self) -> dict[str, Any]:
        return {"verification": {"used": self.admission.admitted, "always": False, **self.admission.to_dict()}}

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        scores = self.base.scores(queries, replica)
        if not self.admission.admitted or not len(queries):
            return scores
        candidates = self.pairs.spec.candidates
        ranked = rerank(scores, count_candidates(candidates), candidates, self.pairs.of(queries.tokens))
        return reordered(scores, ranked)


def verified_peer(card: HeadCard) -> HeadCard:
    """Return the card of a peer with reranking."""

    def fit(database: Photos, shared: Shared) -> Fitted:
        require_grid(database.tokens)
        pairs, base = patch_pairs(database, shared), card.fit(database, shared)
        assert pairs is not None
        assert isinstance(base, VectorHead)
        replica = base.replicas[0]
        admission = judged_by_hiding(
            lambda photos: base.scores(Photos(photos), replica),
            base.duplicates[replica],
            database.tokens,
            pairs,
            shared.progress,
        )
        return VerifiedVectors(base, pairs, admission)

    return dataclasses.replace(
        card,
        name=f"{card.name}-v",
        title=f"{card.title} +V",
        fit=fit,
        settings={**card.settings, "verification": {"always": False, **RerankSpec().to_dict()}},
        stages=(*card.stages, "verification"),
        note=BEYOND_PAPER,
    )

"""Decide without labels, by a sign test, whether a head is reranked, as maps did before they always reranked.

    favours_candidates   share of photos with more evidence among their top 20 images than among the next 20
    admitted             if favours_candidates > ½ + 1 / √photos: two standard errors above one half

The photos are map images, each hidden from its own query, or calibration photos. The head ranks images of the right
place first if it can. Useful evidence is therefore larger among the top images; noise is larger there half of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.arrays import Backend, l2_normalize, map_in_threads
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.method.branch import ScoreBlock
from tfa.method.dual_vocabulary import DualHead
from tfa.method.evidence import NO_ANSWER, Mask
from tfa.method.head import Head, final_scores
from tfa.method.pseudo_queries import pseudo_facts, take_median_spread
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import SecondOrderHead, measure_spread
from tfa.search.gallery import find_duplicates, tie_scores, top_k
from tfa.types import RerankSpec
from tfa.verification.usual_evidence import PairEvidence, space_evenly

COMPARED_CANDIDATES = 20  # top images, compared with the next 20
CONSTRUCTION = 0  # construction that ranks the images


@dataclass(frozen=True)
class VerificationEvidence:
    """Result of the sign test."""

    favours_candidates: float  # share of photos with more evidence among their top images than among the next
    photos: int
    kind: str  # "self-tests" or "calibration photos"
    usual_evidence: float | None = None  # median over photos of the largest √M among their top images

    @property
    def needed(self) -> float:
        """Share that must be exceeded."""
        return 0.5 + 1 / math.sqrt(self.photos) if self.photos else 1.0

    @property
    def admitted(self) -> bool:
        return self.favours_candidates > self.needed

    @property
    def reason(self) -> str:
        if not self.photos:
            return f"off: none of the {self.kind} has enough ranked images to compare"
        state = "on: in" if self.admitted else "off: in only"
        share = f"{round(self.favours_candidates * self.photos)} of {self.photos} {self.kind}"
        required = f"{100 * min(self.needed, 1):.0f} % required"
        return f"{state} {share}, top-ranked images match better geometrically than lower-ranked ones ({required})"

    def to_dict(self) -> dict[str, Any]:
        names = ("admitted", "favours_candidates", "needed", "photos", "usual_evidence", "reason")
        return {name: getattr(self, name) for name in names}


def shortlist_images(scores: np.ndarray, masked: tuple[np.ndarray, np.ndarray] | None, depth: int) -> np.ndarray:
    """Return the best images (p, c) of each row of scores (p, m), padded with NO_ANSWER.

    Pairs (row, column) in `masked` are excluded; their scores are overwritten.
    """
    if masked is not None:
        scores[masked] = -np.inf
    ranked, best = top_k(scores, depth)
    return np.where(np.isneginf(best), NO_ANSWER, ranked)


def judge_admission(
    ranked: np.ndarray, evidence: PairEvidence, kind: str, progress: Progress | None = None
) -> VerificationEvidence:
    """Decide whether the top-ranked images have more evidence than the next.

    `ranked` are images (p, c), best first. `evidence` is called from several threads.
    """
    most_of = lambda row: _most(ranked[row][ranked[row] != NO_ANSWER], row, evidence)  # noqa: E731
    with (progress or SilentProgress()).task("reranking self-test", len(ranked), "photos") as task:
        found = map_in_threads(most_of, range(len(ranked)), task=task)
    most = np.array([one for one in found if one is not None])
    if not len(most):
        return VerificationEvidence(0.0, 0, kind)
    share, usual = float((most[:, 0] > most[:, 1]).mean()), float(np.median(np.sqrt(most[:, 0])))
    return VerificationEvidence(share, len(most), kind, usual)


def _most(images: np.ndarray, row: int, evidence: PairEvidence) -> tuple[float, float] | None:
    """Return the largest evidence in each half of a ranking; None if there is no second half.

    The second half mostly shows other places, so its evidence is chance.
    """
    half = (len(images) + 1) // 2
    if half == len(images):
        return None
    found = evidence(row, images)
    return float(found[:half].max()), float(found[half:].max())


def judge_admission_on_database(
    head: Head | SecondOrderHead | DualHead,
    evidence_between: PairEvidence,
    spec: RerankSpec,
    backend: Backend,
    progress: Progress | None = None,
) -> VerificationEvidence:
    """Decide from the database only; `evidence_between` compares a database image, by its index, with others."""
    if isinstance(head, DualHead):
        pseudo = np.arange(len(head))
    else:
        pseudo = head.fitted.spaces[0].pseudo if isinstance(head, SecondOrderHead) else head.split.pseudo
    chosen = space_evenly(len(pseudo), spec.max_pseudo)
    ranked = _pseudo_shortlist(head, chosen, backend)
    return judge_admission(
        ranked, lambda row, images: evidence_between(int(pseudo[chosen[row]]), images), "self-tests", progress
    )


def judge_admission_on_target(
    head: Head | SecondOrderHead | DualHead, target: Tokens, evidence: PairEvidence, progress: Progress | None = None
) -> VerificationEvidence:
    """Decide from calibration photos; `evidence` compares a photo with database images."""
    ranked = shortlist_images(head.scores(target, CONSTRUCTION), None, 2 * COMPARED_CANDIDATES)
    return judge_admission(ranked, evidence, "calibration photos", progress)


def _pseudo_shortlist(head: Head | SecondOrderHead | DualHead, chosen: np.ndarray, backend: Backend) -> np.ndarray:
    """Shortlist images for the pseudo queries `chosen`, with their duplicates hidden."""
    if isinstance(head, SecondOrderHead):
        return _shortlist_of(*_second_order_scores(head), chosen)
    if isinstance(head, DualHead):  # it keeps no pseudo scores, but rows of images are what queries would have
        scorer = head.scorer(CONSTRUCTION)
        first = np.arange(len(head)) if scorer.duplicates is None else scorer.duplicates
        row, column = np.nonzero(first[chosen][:, None] == first)
        scores = scorer.rows.scores(scorer.image_vectors(chosen))
        return shortlist_images(scores, (row, column), 2 * COMPARED_CANDIDATES)
    found = _shortlist_of(*_residual_scores(head, backend), chosen)
    for _, branch, _ in head.used(head.decisions, CONSTRUCTION):
        branch.release()
    return found


def _shortlist_of(block: ScoreBlock, mask: Mask, chosen: np.ndarray) -> np.ndarray:
    lists = []
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):  # one product per run of adjacent rows
        start, stop = int(run[0]), int(run[-1]) + 1
        lists.append(shortlist_images(block(start, stop), mask.within(start, stop), 2 * COMPARED_CANDIDATES))
    return np.concatenate(lists)


def global_similarities(cls: np.ndarray, pseudo: np.ndarray) -> ScoreBlock:
    """Return cosines of the pseudo queries' global tokens with the database, block by block."""
    unit = l2_normalize(np.asarray(cls, dtype=np.float64))
    same = find_duplicates(unit)
    return lambda start, stop: tie_scores(unit[pseudo[start:stop]] @ unit.T, same)


def _second_order_scores(head: SecondOrderHead) -> tuple[ScoreBlock, Mask]:
    """Return scores of the pseudo queries and their mask."""
    space = head.fitted.spaces[CONSTRUCTION]
    block = space.pseudo_scores(head.decisions.kernel(SECOND_ORDER, CONSTRUCTION))
    if head.decisions.score_calibrated:
        block = _shifted(block, measure_spread(block, space), head.scorers[CONSTRUCTION].bias)
    return block, space.mask


def _residual_scores(head: Head, backend: Backend) -> tuple[ScoreBlock, Mask]:
    """Return scores of the pseudo queries and their mask."""
    pseudo = head.split.pseudo
    similar = global_similarities(head.cls, pseudo) if head.decisions.admit_cls and head.cls is not None else None
    block, mask = final_scores(head.used(head.decisions, CONSTRUCTION), head.decisions, similar, backend)
    bias = head.scorers[CONSTRUCTION].bias
    if bias.any():  # scores were calibrated
        block = _shifted(block, take_median_spread(pseudo_facts(block, len(pseudo), mask)) or 1.0, bias)
    return block, mask


def _shifted(block: ScoreBlock, sigma: float, bias: np.ndarray) -> ScoreBlock:
    """Return calibrated scores, S/σ + b, block by block."""
    return lambda start, stop: block(start, stop) / sigma + bias

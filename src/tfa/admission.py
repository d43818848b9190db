"""Admission of verification (ours, beyond the paper): is it used? Decided without labels.

    without    the top-1 of each asked photo under the head, in each construction
    with       the top-1 of the same candidates by their fused score
    admitted   if `with` covers more of the map and agreement is not lowered in every pair of constructions

The photos asked are the map's own, each with itself hidden, or those of a calibration. The evidence of a pair of
photos does not depend on the construction and is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.arrays import Backend
from tfa.branches import ScoreBlock, median_spread, pseudo_facts
from tfa.config import VerifySpec
from tfa.evidence import EPSILON, NOBODY, Candidate, Mask
from tfa.head import Head, final_scores
from tfa.progress import Progress, SilentProgress, tracked
from tfa.scoring import top_k
from tfa.tokens import Tokens
from tfa.verification import fused
from tfa.vocabulary import CONSTRUCTIONS

PairEvidence = Callable[[int, np.ndarray], np.ndarray]  # (asked row, database images `c`) → evidence `c`


@dataclass(frozen=True)
class VerificationEvidence:
    """What was measured, and what follows."""

    without: Candidate
    verified: Candidate
    rows: int  # photos asked
    asked: str  # what they are, in words

    @property
    def admitted(self) -> bool:
        return self.verified.beats(self.without)

    @property
    def reason(self) -> str:
        numbers = (
            f"with it {self.verified.support:.1f} distinct images, without {self.without.support:.1f}, "
            f"over {self.rows} {self.asked}"
        )
        change = f"largest change {self.verified.gain_over(self.without):+.3f}"
        if self.admitted:
            return f"used: {numbers}, and agreement is not lowered in every pair ({change})"
        if self.verified.support <= self.without.support:
            return f"not used: {numbers}; it must cover more of the map"
        return f"not used: {numbers}, but the vocabularies agree less in every pair ({change})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "admitted": self.admitted,
            "without": self.without.to_dict(),
            "with": self.verified.to_dict(),
            "rows": self.rows,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Shortlist:
    """The best images of each asked row under one construction, best first."""

    images: np.ndarray  # p c; NOBODY where a row has fewer that it may answer
    standardised: np.ndarray  # p c: z-scores among all it may answer

    def row(self, index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` images of a row and their z-scores."""
        images, standardised = self.images[index, :count], self.standardised[index, :count]
        return images[images != NOBODY], standardised[images != NOBODY]


def shortlist(scores: np.ndarray, masked: tuple[np.ndarray, np.ndarray] | None, depth: int) -> Shortlist:
    """From scores `p m` and the (row, column) pairs that may not be answered."""
    free = np.ones(scores.shape, bool)
    if masked is not None:
        free[masked] = False
    count = np.maximum(free.sum(axis=1, keepdims=True), 1)
    mean = np.where(free, scores, 0.0).sum(axis=1, keepdims=True) / count
    centred = np.where(free, scores - mean, 0.0)
    spread = np.sqrt((centred * centred).sum(axis=1, keepdims=True) / count)
    ranked, best = top_k(np.where(free, scores, -np.inf), depth)
    return Shortlist(np.where(np.isneginf(best), NOBODY, ranked), (best - mean) / (spread + EPSILON))


def judge(
    shortlists: Sequence[Shortlist],
    evidence: PairEvidence,
    candidates: int,
    asked: str,
    progress: Progress | None = None,
) -> VerificationEvidence:
    """Do the same candidates, ordered by their fused score, retrieve better in all constructions together?"""
    rows = len(shortlists[0].images)
    without = np.full((len(shortlists), rows), NOBODY)
    verified = without.copy()
    for row in tracked(range(rows), rows, "verification", progress or SilentProgress(), "photos"):
        for s, ranking in enumerate(shortlists):
            images, standardised = ranking.row(row, candidates)
            if len(images):
                without[s, row] = images[0]
                # Of equals the first, which the head prefers.
                verified[s, row] = images[fused(standardised, evidence(row, images)).argmax()]
    return VerificationEvidence(Candidate.of("without", without), Candidate.of("with", verified), rows, asked)


def chance(ranking: Shortlist, evidence: PairEvidence, candidates: int) -> np.ndarray:
    """The largest evidence of each row among as many images as are verified, but ranked right after those; sorted.

    They are mostly of other places. A row with fewer than twice as many images takes the second half of them.
    """
    largest = []
    for row in range(len(ranking.images)):
        images, _ = ranking.row(row, 2 * candidates)
        others = images[min(candidates, (len(images) + 1) // 2) :]
        if len(others):
            largest.append(float(evidence(row, others).max()))
    return np.sort(np.array(largest, np.float64))


def judge_on_database(
    head: Head,
    evidence_of: PairEvidence,
    spec: VerifySpec,
    backend: Backend,
    progress: Progress | None = None,
) -> tuple[VerificationEvidence, np.ndarray]:
    """The decision from the database alone, and the evidence of chance.

    `evidence_of` gives the evidence of a database image, by its index, with others.
    """
    pseudo = next(iter(head.branches.values())).split.pseudo
    chosen = evenly_spaced(len(pseudo), spec.max_pseudo)
    lists = [_pseudo_shortlist(head, s, chosen, 2 * spec.candidates, backend) for s in CONSTRUCTIONS]
    evidence = remembering(lambda row, images: evidence_of(int(pseudo[chosen[row]]), images))
    verdict = judge(lists, evidence, spec.candidates, "pseudo queries", progress)
    return verdict, chance(lists[0], evidence, spec.candidates)


def judge_on_target(
    head: Head, target: Tokens, evidence: PairEvidence, spec: VerifySpec, progress: Progress | None = None
) -> VerificationEvidence:
    """The decision from calibration photos; `evidence` is that of a photo with images of the database."""
    lists = [shortlist(head.scores(target, s).astype(np.float64), None, spec.candidates) for s in CONSTRUCTIONS]
    return judge(lists, remembering(evidence), spec.candidates, "calibration photos", progress)


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 to count − 1, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def remembering(evidence: PairEvidence) -> PairEvidence:
    """The same function, which computes a pair once."""
    known: dict[tuple[int, int], float] = {}

    def remembered(row: int, images: np.ndarray) -> np.ndarray:
        fresh = np.array([image for image in images if (row, int(image)) not in known], np.int64)
        if len(fresh):
            known.update({(row, int(i)): float(e) for i, e in zip(fresh, evidence(row, fresh), strict=True)})
        return np.array([known[row, int(image)] for image in images], np.float64)

    return remembered


def _pseudo_shortlist(head: Head, construction: int, chosen: np.ndarray, depth: int, backend: Backend) -> Shortlist:
    """Of the pseudo queries `chosen` under the decided head, itself and its duplicates hidden."""
    used = [(weight, head.branches[a, construction]) for a, weight in head.decisions.branch_weights.items()]
    block, mask = final_scores(used, head.decisions, head.cls, backend)
    block = _with_bias(head, construction, block, mask)
    lists = []
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):  # rows next to each other in one product
        start, stop = int(run[0]), int(run[-1]) + 1
        lists.append(shortlist(block(start, stop), mask.within(start, stop), depth))
    for _, branch in used:
        branch.release()
    return Shortlist(np.concatenate([x.images for x in lists]), np.concatenate([x.standardised for x in lists]))


def _with_bias(head: Head, construction: int, block: ScoreBlock, mask: Mask) -> ScoreBlock:
    """Where scores were calibrated: S/σ + b, as `head.assemble` has it."""
    bias = head.scorers[construction].bias
    if not bias.any():
        return block
    count = len(next(iter(head.branches.values())).split.pseudo)
    sigma = median_spread(pseudo_facts(block, count, mask)) or 1.0
    return lambda start, stop: block(start, stop) / sigma + bias

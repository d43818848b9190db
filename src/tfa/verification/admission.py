"""Admission of verification (ours, beyond the paper): is it used? Decided without labels.

    without              the top-1 of each photo under the head, in each construction
    with                 the top-1 of the same candidates by their verified order
    changed_answers      photos whose top-1 differs between the two, mean over constructions
    favours_candidates   share of photos with more evidence among their candidates than among as many images after them

    admitted   if agreement is not lowered in every pair of constructions (of a map that keeps one: not asked),
               the map is covered as widely: U_with ≥ U_without − √changed_answers,
               and evidence favours what the head ranks first: favours_candidates > ½ + 1 / (2 √photos)

The photos are the map's own, each with itself hidden, or those of a calibration. Of 64 photos nearly all have
distinct answers, with and without: their number moves by chance. Each photo whose answer changes can move it by
one, so that is about √changed_answers; a rule that runs into hubs loses far more. Evidence that is noise widens
coverage and, because constructions share it, raises agreement: therefore the last condition, a sign test with a margin
of one standard error. The evidence of a pair of photos does not depend on the construction and is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.base.backend import Backend
from tfa.base.config import VerifySpec
from tfa.base.progress import Progress, SilentProgress
from tfa.base.threads import in_threads
from tfa.base.tokens import Tokens
from tfa.method.branch import ScoreBlock
from tfa.method.evidence.rows import NOBODY, mean_and_spread, z_scores
from tfa.method.evidence.support import Candidate, Mask
from tfa.method.head import Head, final_scores, shifted
from tfa.method.pseudo_queries import global_similarities, median_spread, pseudo_facts
from tfa.method.second_order_head import SecondOrderHead
from tfa.search.ties import top_k
from tfa.verification.reranking import fused

CANDIDATES = 20  # whose evidence is compared with that of as many images after them
PairEvidence = Callable[[int, np.ndarray], np.ndarray]  # (photo, database images `c`) → evidence `c`


@dataclass(frozen=True)
class VerificationEvidence:
    """What was measured, and what follows."""

    without: Candidate
    verified: Candidate
    changed_answers: float  # photos whose answer changes, mean over constructions
    favours_candidates: float  # share of photos whose candidates have more evidence than the images after them
    photos: int
    kind: str  # of photos, in words

    @property
    def admitted(self) -> bool:
        return self.verdict[0]

    @property
    def reason(self) -> str:
        return self.verdict[1]

    @property
    def verdict(self) -> tuple[bool, str]:
        """Whether verification is used, and why."""
        gain = self.verified.gain_over(self.without)
        numbers = (
            f"with it {self.verified.support:.1f} distinct images, without {self.without.support:.1f}, "
            f"over {self.photos} {self.kind} of which {self.changed_answers:.0f} change their answer"
        )
        favoured = f"{self.favours_candidates:.0%} have more evidence among their candidates than after them"
        change = f"largest change {gain:+.3f}"
        if not self.photos or self.favours_candidates <= 0.5 + 0.5 / math.sqrt(self.photos):
            few = f"only {favoured}, over {self.photos} {self.kind}"
            return False, f"not used: {few}; it must be clearly more than half"
        if self.verified.support < self.without.support - math.sqrt(self.changed_answers):
            return False, f"not used: {numbers}; it covers less of the map than chance explains"
        if gain < 0:
            return False, f"not used: {numbers}, but the vocabularies agree less in every pair ({change})"
        agreed = f", and agreement is not lowered in every pair ({change})" if self.without.agreement else ""
        return True, f"used: {numbers}; {favoured}{agreed}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "admitted": self.admitted,
            "without": self.without.to_dict(),
            "with": self.verified.to_dict(),
            "changed_answers": self.changed_answers,
            "favours_candidates": self.favours_candidates,
            "photos": self.photos,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Shortlist:
    """The best images of each photo under one construction, best first."""

    images: np.ndarray  # p c; NOBODY where a row has fewer that it may answer
    standardised: np.ndarray  # p c: z-scores among all it may answer

    def row(self, index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` images of a row and their z-scores."""
        images, standardised = self.images[index, :count], self.standardised[index, :count]
        return images[images != NOBODY], standardised[images != NOBODY]


def shortlist(scores: np.ndarray, masked: tuple[np.ndarray, np.ndarray] | None, depth: int) -> Shortlist:
    """From scores `p m` and the (row, column) pairs that may not be answered, which are overwritten."""
    mean, spread = mean_and_spread(scores, masked)
    ranked, best = top_k(scores, depth)
    z = z_scores(best, mean[:, None], spread[:, None])
    return Shortlist(np.where(np.isneginf(best), NOBODY, ranked), z)


def judge(
    shortlists: Sequence[Shortlist],
    evidence: PairEvidence,
    kind: str,
    progress: Progress | None = None,
    candidates: int = CANDIDATES,
) -> VerificationEvidence:
    """Do the same candidates in their verified order retrieve better in all constructions together?

    Shortlists are twice as long as the candidates; `evidence` is called from several threads.
    """
    rows = len(shortlists[0].images)
    without = np.full((len(shortlists), rows), NOBODY)
    verified = without.copy()
    own, others = np.zeros(rows), np.full(rows, np.nan)

    def compare(row: int) -> None:
        for s, ranking in enumerate(shortlists):
            images, standardised = ranking.row(row, candidates)
            if len(images):
                order = fused(standardised, evidence(row, images))
                without[s, row], verified[s, row] = images[0], images[order.argmax()]  # of equals the head's first
        own[row], others[row] = _nearer_and_farther(shortlists[0].row(row, 2 * candidates)[0], row, evidence)

    with (progress or SilentProgress()).task("verification", rows, "photos") as task:
        in_threads(compare, range(rows), task=task)
    known = ~np.isnan(others)
    return VerificationEvidence(
        without=Candidate.of("without", without),
        verified=Candidate.of("with", verified),
        changed_answers=float((without != verified).sum(axis=1).mean()),
        favours_candidates=float((own > others)[known].mean()) if known.any() else 0.0,
        photos=rows,
        kind=kind,
    )


def _nearer_and_farther(images: np.ndarray, row: int, evidence: PairEvidence) -> tuple[float, float]:
    """The largest evidence of the first half of a ranking, and of the second: mostly other places, so chance.

    NaN if there is no second half.
    """
    half = (len(images) + 1) // 2
    if half == len(images):
        return 0.0, math.nan
    found = evidence(row, images)
    return float(found[:half].max()), float(found[half:].max())


def judge_on_database(
    head: Head | SecondOrderHead,
    among: PairEvidence,
    spec: VerifySpec,
    backend: Backend,
    progress: Progress | None = None,
) -> VerificationEvidence:
    """The decision from the database alone; `among` is the evidence of a database image, by its index, with others."""
    pseudo = head.fitted.spaces[0].pseudo if isinstance(head, SecondOrderHead) else head.split.pseudo
    chosen = evenly_spaced(len(pseudo), spec.max_pseudo)
    lists = [_pseudo_shortlist(head, s, chosen, 2 * CANDIDATES, backend) for s in head.constructions]
    known = remembering(among)
    own = lambda row, images: known(int(pseudo[chosen[row]]), images)  # noqa: E731
    return judge(lists, own, "pseudo queries", progress)


def judge_on_target(
    head: Head | SecondOrderHead,
    target: Tokens,
    evidence: PairEvidence,
    progress: Progress | None = None,
) -> VerificationEvidence:
    """The decision from calibration photos; `evidence` is that of a photo with images of the database."""
    every = (head.scores(target, s).astype(np.float64) for s in head.constructions)
    lists = [shortlist(scores, None, 2 * CANDIDATES) for scores in every]
    return judge(lists, remembering(evidence), "calibration photos", progress)


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


def _pseudo_shortlist(
    head: Head | SecondOrderHead, construction: int, chosen: np.ndarray, depth: int, backend: Backend
) -> Shortlist:
    """Of the pseudo queries `chosen` under the decided head, itself and its duplicates hidden."""
    if isinstance(head, SecondOrderHead):
        return _shortlist_of(*head.pseudo_scores(construction), chosen, depth)
    found = _shortlist_of(*_residual_scores(head, construction, backend), chosen, depth)
    for _, branch, _ in head.used(head.decisions, construction):
        branch.release()
    return found


def _shortlist_of(block: ScoreBlock, mask: Mask, chosen: np.ndarray, depth: int) -> Shortlist:
    lists = []
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):  # rows next to each other in one product
        start, stop = int(run[0]), int(run[-1]) + 1
        lists.append(shortlist(block(start, stop), mask.within(start, stop), depth))
    return Shortlist(np.concatenate([x.images for x in lists]), np.concatenate([x.standardised for x in lists]))


def _residual_scores(head: Head, construction: int, backend: Backend) -> tuple[ScoreBlock, Mask]:
    """Scores of the pseudo queries under one construction, and what they may not answer."""
    pseudo = head.split.pseudo
    similar = global_similarities(head.cls, pseudo) if head.decisions.admit_cls and head.cls is not None else None
    block, mask = final_scores(head.used(head.decisions, construction), head.decisions, similar, backend)
    bias = head.scorers[construction].bias
    if bias.any():  # scores were calibrated
        block = shifted(block, median_spread(pseudo_facts(block, len(pseudo), mask)) or 1.0, bias)
    return block, mask

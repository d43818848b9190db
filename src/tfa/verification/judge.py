"""Choose among heads by patch-match evidence of their top answers; every photo–image pair is matched once.

The judged head (ours, beyond the paper): second-order heads and residual ones compete, the judge decides.

    database alone   pseudo queries judge second-order carriers and, as challengers, residual heads of one vocabulary
    target photos    judge second-order carriers, each as it is, centred on them, with calibrated scores, or both

What wins is fitted for all three constructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tfa.core.arrays import Backend, Spill, map_in_threads
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.method.branch import DatabaseBranch, DatabaseSplit, fit_branch
from tfa.method.carriers import carrier_terms
from tfa.method.decisions import JudgedDecisions, JudgedEvidence
from tfa.method.evidence import NO_ANSWER
from tfa.method.judged import (
    DATABASE_CARRIERS,
    DATABASE_MARGIN,
    INCUMBENT,
    MOST_PHOTOS,
    TARGET_CARRIERS,
    TARGET_FROM,
    TARGET_INCUMBENT,
    TARGET_MARGIN,
    choose_judged,
    cross_fitted_answers,
    describe_judged,
    explain_judgment,
    target_scores,
)
from tfa.method.pseudo_queries import every_score, pseudo_tops
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.method.scorer import SideView
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import FittedSpaces, carrier_spread
from tfa.method.second_order_space import MAX_PSEUDO, SecondOrderSpace
from tfa.method.vocabulary import Vocabulary, fit_vocabularies, sample_patches
from tfa.types import HeadSpec, RerankSpec
from tfa.verification.admission import PairEvidence, cache_evidence, space_evenly
from tfa.verification.patches import CompactTokens

# --- judge ----------------------------------------------------------------------------------------

OTHERS = 8  # other photos that an answer is compared with, to see what of its evidence is its photo's own


def compute_evidence_roots(
    answers: Mapping[str, np.ndarray],
    evidence: PairEvidence,
    progress: Progress | None = None,
    *,
    subtract_usual: bool = False,
) -> dict[str, np.ndarray]:
    """Compute √M `p` of every photo with each head's first answer to it; nan where a head has none.

    `answers` are images `p`, by the name of the head; `evidence` compares a photo, by its number, with images, from
    several threads. With `subtract_usual`, less the mean √M that the answer has with other photos.
    """
    table = np.stack(list(answers.values()))
    roots = np.full(table.shape, np.nan)
    photos = table.shape[1]
    usual = _with_others(table, evidence) if subtract_usual else {}

    def compare(photo: int) -> None:
        images = np.unique(table[:, photo])
        images = images[images != NO_ANSWER]
        known = dict(zip(images.tolist(), np.sqrt(evidence(photo, images)).tolist(), strict=True))
        if subtract_usual:
            for image in known:
                known[image] -= _mean_of_others(usual, image, photo)
        roots[:, photo] = [known.get(int(image), np.nan) for image in table[:, photo]]

    with (progress or SilentProgress()).task("judging", photos, "photos") as task:
        map_in_threads(compare, range(photos), task=task)
    return dict(zip(answers, roots, strict=True))


def _with_others(table: np.ndarray, evidence: PairEvidence) -> dict[int, dict[int, float]]:
    """√M of every image that is answered with evenly spaced photos: one more than needed, as one may be its own."""
    images = np.unique(table[table != NO_ANSWER])
    photos = space_evenly(table.shape[1], OTHERS + 1).tolist()
    compared = dict(zip(photos, map_in_threads(lambda photo: np.sqrt(evidence(photo, images)), photos), strict=True))
    return {int(image): {p: float(roots[i]) for p, roots in compared.items()} for i, image in enumerate(images)}


def _mean_of_others(usual: Mapping[int, Mapping[int, float]], image: int, photo: int) -> float:
    others = [root for other, root in usual[image].items() if other != photo][:OTHERS]
    return float(np.mean(others)) if others else 0.0


# --- judged head ----------------------------------------------------------------------------------

SCORE_FROM = 8  # target photos from which scores are calibrated: with fewer, centring alone does better
RESIDUAL_CARRIERS = ("original", "partial")
CALIBRATIONS = ((False, False), (True, False), (False, True), (True, True))  # centring, scores
Judged = tuple[JudgedDecisions, JudgedEvidence]


@dataclass(frozen=True)
class ResidualChallengers:
    """Residual heads of one vocabulary, as far as the judge needs them."""

    vocabulary: Vocabulary
    branches: Mapping[str, DatabaseBranch]  # by assignment

    @classmethod
    def fit(
        cls, tokens: Tokens, spec: HeadSpec, backend: Backend, dtype: str, progress: Progress
    ) -> ResidualChallengers:
        spill, split = Spill(), DatabaseSplit.of(len(tokens), limit_pseudo_queries(spec))
        patches = sample_patches(tokens, spec.max_patches, dtype)
        [vocabulary] = fit_vocabularies(patches, spec.words, backend, seeds=(0,), progress=progress)
        del patches
        words = [vocabulary.centers]
        described = describe_residuals(
            tokens, words, ASSIGNMENT_KINDS, spec.temperature, backend, dtype=dtype, spill=spill, progress=progress
        )
        branches = {
            a: fit_branch(a, 0, vocabulary.centers, described[a, 0], split, spec, backend, spill)
            for a in ASSIGNMENT_KINDS
        }
        return cls(vocabulary, branches)

    def answers(self, backend: Backend) -> dict[str, tuple[JudgedDecisions, np.ndarray]]:
        """First answers `p` of the pseudo queries under each residual head, by its name."""
        found = {}
        for assignment, branch in self.branches.items():
            count, images = len(branch.split.pseudo), branch.split.images
            for carrier in RESIDUAL_CARRIERS:
                block = every_score(branch, carrier_terms(carrier), backend)
                decisions = JudgedDecisions(representation=assignment, carrier=carrier)
                found[decisions.name] = decisions, pseudo_tops(block, branch.mask, count, images)
            branch.release()
        return found


def limit_pseudo_queries(spec: HeadSpec) -> HeadSpec:
    """Limit pseudo queries to as many as second-order spaces have."""
    return replace(spec, max_pseudo=min(spec.max_pseudo, MAX_PSEUDO))


@dataclass(frozen=True)
class Competition:
    """Heads that compete, and what they answer to the photos that judge them."""

    heads: Mapping[str, JudgedDecisions]  # by name, in the order that settles ties
    answers: Mapping[str, np.ndarray]  # p: first answers
    incumbent: JudgedDecisions
    photos: np.ndarray  # p: images of the database, or numbers of target photos
    kind: str  # of photos, in words
    target: bool  # are they target photos?


def compete_on_database(fitted: FittedSpaces, challengers: ResidualChallengers | None, backend: Backend) -> Competition:
    """Second-order carriers and residual heads, by what pseudo queries are answered."""
    space = fitted.spaces[0]
    chosen = space_evenly(len(space.pseudo), MOST_PHOTOS)
    heads = {head.name: head for head in map(fitted.decisions, DATABASE_CARRIERS)}
    answers = {
        name: pseudo_tops(space.pseudo_scores(head.kernel(SECOND_ORDER, 0)), space.mask, len(space.pseudo), len(space))[
            chosen
        ]
        for name, head in heads.items()
    }
    for name, (head, tops) in ({} if challengers is None else challengers.answers(backend)).items():
        heads[name], answers[name] = head, tops[chosen]
    photos = f"{len(chosen)} photos of the map itself"
    return Competition(heads, answers, fitted.decisions(INCUMBENT), space.pseudo[chosen], photos, False)


def compete_on_target(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS,
) -> Competition:
    """Second-order carriers under each calibration, by what they answer to target photos that `space` describes.

    The incumbent calibrates all that some candidate does.
    """
    heads, answers = {}, {}
    photos = space_evenly(len(view.descriptors), MOST_PHOTOS)
    for carrier in TARGET_CARRIERS:
        kernel = fitted.decisions(carrier).kernel(SECOND_ORDER, 0)
        rows = partial(target_scores, space, view, kernel)
        sigma = carrier_spread(carrier, space.pseudo_scores(kernel), space, rows)
        for centring, score in calibrations:
            if centring and carrier == "original":
                continue  # S_0 has no mean to take queries from
            head = fitted.decisions(carrier, centring=centring, score=score)
            heads[head.name] = head
            answers[head.name] = cross_fitted_answers(space, view, head, kernel, sigma)[photos]
    return Competition(
        heads, answers, choose_incumbent(fitted, calibrations), photos, f"{len(photos)} target photos", True
    )


def choose_incumbent(fitted: FittedSpaces, calibrations: Sequence[tuple[bool, bool]]) -> JudgedDecisions:
    """The incumbent with target photos: it calibrates all that one of the candidates does."""
    centring, score = (any(learnt) for learnt in zip(*calibrations, strict=True))
    return fitted.decisions(TARGET_INCUMBENT, centring=centring, score=score)


def select_on_database(
    fitted: FittedSpaces,
    challengers: ResidualChallengers | None,
    compact: CompactTokens | None,
    backend: Backend,
    progress: Progress | None = None,
) -> Judged:
    """Select a head from the database alone. Without compact tokens there is nothing to judge by: the incumbent."""
    if compact is None:
        incumbent = fitted.decisions(INCUMBENT)
        return incumbent, make_unjudged_evidence(fitted, incumbent)
    return select_by_evidence(
        fitted, compete_on_database(fitted, challengers, backend), compact.evidence_between, progress
    )


def select_on_target(
    fitted: FittedSpaces,
    target: Tokens,
    evidence: PairEvidence | None,
    score: bool | None = None,
    progress: Progress | None = None,
) -> Judged:
    """Select a head from target photos; `evidence` compares one of them, by its number, with database images.

    `score` says whether scores are calibrated; None leaves it to the judge. Without evidence, or with few photos, it
    is the incumbent.
    """
    allowed = [one for one in CALIBRATIONS if score in (None, one[1])]
    if evidence is None:
        incumbent = choose_incumbent(fitted, allowed)
        return incumbent, make_unjudged_evidence(fitted, incumbent)
    view = fitted.spaces[0].side.describe(target, True, fitted.dtype)
    return select_on_described_target(fitted, fitted.spaces[0], view, evidence, progress, allowed)


def select_on_described_target(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    evidence: PairEvidence,
    progress: Progress | None = None,
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS,
) -> Judged:
    """Select a head from target photos that `space` describes; of few photos the incumbent, calibrated by them."""
    count = len(view.descriptors)
    allowed = filter_calibrations(count, calibrations)
    if count < TARGET_FROM:
        head = choose_incumbent(fitted, allowed)
        return head, make_unjudged_evidence(
            fitted, head, f"{count} photos are few to judge by, {TARGET_FROM} are enough"
        )
    return select_by_evidence(fitted, compete_on_target(fitted, space, view, allowed), evidence, progress)


def filter_calibrations(
    photos: int, calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS
) -> Sequence[tuple[bool, bool]]:
    """Keep the calibrations that so many target photos suffice for; all of them if none would remain."""
    return [one for one in calibrations if not one[1] or photos >= SCORE_FROM] or calibrations


def select_by_evidence(
    fitted: FittedSpaces, competition: Competition, evidence: PairEvidence, progress: Progress | None = None
) -> Judged:
    """Select the winner; `evidence` compares a photo of the competition, by its number there, with database images."""
    of_photo = lambda row, images: evidence(int(competition.photos[row]), images)  # noqa: E731
    roots = compute_evidence_roots(
        competition.answers, cache_evidence(of_photo), progress, subtract_usual=competition.target
    )
    incumbent, photos = competition.incumbent.name, competition.kind
    winner, judgements = choose_judged(roots, incumbent, TARGET_MARGIN if competition.target else DATABASE_MARGIN)
    words = {"judge": explain_judgment(competition.heads[winner], judgements, incumbent, photos)}
    count = len(competition.photos)
    seen = JudgedEvidence(count, photos, incumbent, judgements, {SECOND_ORDER: fitted.strengths}, words)
    return competition.heads[winner], seen


def make_unjudged_evidence(
    fitted: FittedSpaces, head: JudgedDecisions, why: str = "how the patches lie is not known"
) -> JudgedEvidence:
    """Make the evidence of a head that was chosen without a judge."""
    words = {"judge": f"{describe_judged(head)}: not judged, {why}"}
    return JudgedEvidence(0, "", head.name, {}, {SECOND_ORDER: fitted.strengths}, words)


def fit_compact_tokens(tokens: Tokens, spec: RerankSpec) -> CompactTokens | None:
    """Fit compact tokens of the database, if its patches lie on a grid."""
    return None if tokens.grid is None else CompactTokens.fit(tokens, spec)

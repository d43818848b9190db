"""The judged head (ours, beyond the paper): second-order heads and residual ones compete, the judge decides.

    database alone   pseudo queries judge second-order carriers and, as challengers, residual heads of one vocabulary
    target photos    judge second-order carriers, each as it is, centred on them, with calibrated scores, or both

What wins is fitted for all three constructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tfa.base.backend import Backend
from tfa.base.config import HeadSpec, RerankSpec
from tfa.base.progress import Progress
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.method.branch import Branch, DatabaseSplit, fit_branch
from tfa.method.carriers import carrier_terms
from tfa.method.controllers.decisions import JudgedDecisions, JudgedEvidence
from tfa.method.controllers.judged import (
    DATABASE_CARRIERS,
    DATABASE_MARGIN,
    INCUMBENT,
    MOST_PHOTOS,
    TARGET_CARRIERS,
    TARGET_FROM,
    TARGET_INCUMBENT,
    TARGET_MARGIN,
    cross_fitted_answers,
    in_words,
    judged,
    reason_of,
    target_scores,
)
from tfa.method.pseudo_queries import every_score, pseudo_tops
from tfa.method.query_sides import SideView
from tfa.method.residuals import ASSIGNMENTS, describe
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import FittedSpaces, carrier_spread
from tfa.method.second_order_space import MAX_PSEUDO, SecondOrderSpace
from tfa.method.vocabulary import Vocabulary, fit_vocabularies, sample_patches
from tfa.verification.admission import PairEvidence, evenly_spaced, remembering
from tfa.verification.judge import roots_of_evidence
from tfa.verification.patch_store import CompactTokens

SCORE_FROM = 8  # target photos from which scores are calibrated: with fewer, centring alone does better
RESIDUAL_CARRIERS = ("original", "partial")
CALIBRATIONS = ((False, False), (True, False), (False, True), (True, True))  # centring, scores
Judged = tuple[JudgedDecisions, JudgedEvidence]


@dataclass(frozen=True)
class ResidualChallengers:
    """Residual heads of one vocabulary, as far as the judge needs them."""

    vocabulary: Vocabulary
    branches: Mapping[str, Branch]  # by assignment

    @classmethod
    def fit(
        cls, tokens: Tokens, spec: HeadSpec, backend: Backend, dtype: str, progress: Progress
    ) -> ResidualChallengers:
        spill, split = Spill(), DatabaseSplit.of(len(tokens), pseudo_limited(spec))
        patches = sample_patches(tokens, spec.max_patches, dtype)
        [vocabulary] = fit_vocabularies(patches, spec.words, backend, seeds=(0,), progress=progress)
        del patches
        words = [vocabulary.centers]
        described = describe(
            tokens, words, ASSIGNMENTS, spec.temperature, backend, dtype=dtype, spill=spill, progress=progress
        )
        branches = {
            a: fit_branch(a, 0, vocabulary.centers, described[a, 0], split, spec, backend, spill) for a in ASSIGNMENTS
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


def pseudo_limited(spec: HeadSpec) -> HeadSpec:
    """As many pseudo queries as second-order spaces have."""
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


def database_competition(
    fitted: FittedSpaces, challengers: ResidualChallengers | None, backend: Backend
) -> Competition:
    """Second-order carriers and residual heads, by what pseudo queries are answered."""
    space = fitted.spaces[0]
    chosen = evenly_spaced(len(space.pseudo), MOST_PHOTOS)
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


def target_competition(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS,
) -> Competition:
    """Second-order carriers under each calibration, by what they answer to target photos that `space` describes.

    The incumbent calibrates all that some candidate does.
    """
    heads, answers = {}, {}
    photos = evenly_spaced(len(view.descriptors), MOST_PHOTOS)
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
        heads, answers, incumbent_for(fitted, calibrations), photos, f"{len(photos)} target photos", True
    )


def incumbent_for(fitted: FittedSpaces, calibrations: Sequence[tuple[bool, bool]]) -> JudgedDecisions:
    """The incumbent with target photos: it calibrates all that one of the candidates does."""
    centring, score = (any(learnt) for learnt in zip(*calibrations, strict=True))
    return fitted.decisions(TARGET_INCUMBENT, centring=centring, score=score)


def judge_on_database(
    fitted: FittedSpaces,
    challengers: ResidualChallengers | None,
    compact: CompactTokens | None,
    backend: Backend,
    progress: Progress | None = None,
) -> Judged:
    """The decision from the database alone. Without compact tokens there is nothing to judge by: the incumbent."""
    if compact is None:
        incumbent = fitted.decisions(INCUMBENT)
        return incumbent, not_judged(fitted, incumbent)
    return decide(fitted, database_competition(fitted, challengers, backend), compact.among, progress)


def judge_on_target(
    fitted: FittedSpaces,
    target: Tokens,
    evidence: PairEvidence | None,
    score: bool | None = None,
    progress: Progress | None = None,
) -> Judged:
    """The decision from target photos; `evidence` compares one of them, by its number, with database images.

    `score` says whether scores are calibrated; None leaves it to the judge. Without evidence, or with few photos, it
    is the incumbent.
    """
    allowed = [one for one in CALIBRATIONS if score in (None, one[1])]
    if evidence is None:
        incumbent = incumbent_for(fitted, allowed)
        return incumbent, not_judged(fitted, incumbent)
    view = fitted.spaces[0].side.describe(target, True, fitted.dtype)
    return decide_for_target(fitted, fitted.spaces[0], view, evidence, progress, allowed)


def decide_for_target(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    evidence: PairEvidence,
    progress: Progress | None = None,
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS,
) -> Judged:
    """The decision from target photos that `space` describes; of few photos the incumbent, calibrated by them."""
    count = len(view.descriptors)
    allowed = calibrations_by(count, calibrations)
    if count < TARGET_FROM:
        head = incumbent_for(fitted, allowed)
        return head, not_judged(fitted, head, f"{count} photos are few to judge by, {TARGET_FROM} are enough")
    return decide(fitted, target_competition(fitted, space, view, allowed), evidence, progress)


def calibrations_by(
    photos: int, calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS
) -> Sequence[tuple[bool, bool]]:
    """Those that so many target photos are enough for; all, if the caller wants no other."""
    return [one for one in calibrations if not one[1] or photos >= SCORE_FROM] or calibrations


def decide(
    fitted: FittedSpaces, competition: Competition, evidence: PairEvidence, progress: Progress | None = None
) -> Judged:
    """The winner; `evidence` compares one of the competition's photos, by its number there, with database images."""
    of_photo = lambda row, images: evidence(int(competition.photos[row]), images)  # noqa: E731
    roots = roots_of_evidence(competition.answers, remembering(of_photo), progress, own=competition.target)
    incumbent, photos = competition.incumbent.name, competition.kind
    winner, judgements = judged(roots, incumbent, TARGET_MARGIN if competition.target else DATABASE_MARGIN)
    words = {"judge": reason_of(competition.heads[winner], judgements, incumbent, photos)}
    count = len(competition.photos)
    seen = JudgedEvidence(count, photos, incumbent, judgements, {SECOND_ORDER: fitted.strengths}, words)
    return competition.heads[winner], seen


def not_judged(
    fitted: FittedSpaces, head: JudgedDecisions, why: str = "how the patches lie is not known"
) -> JudgedEvidence:
    """The evidence of a head that was chosen without a judge."""
    words = {"judge": f"{in_words(head)}: not judged, {why}"}
    return JudgedEvidence(0, "", head.name, {}, {SECOND_ORDER: fitted.strengths}, words)


def compact_for(tokens: Tokens, spec: RerankSpec) -> CompactTokens | None:
    """Compact tokens of the database, if its patches lie on a grid."""
    return None if tokens.grid is None else CompactTokens.fit(tokens, spec)

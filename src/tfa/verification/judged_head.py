"""The judged head (ours, beyond the paper): second-order heads and residual ones compete, the judge decides.

    database alone   pseudo queries judge second-order carriers and, as challengers, residual heads of one vocabulary
    target photos    judge second-order carriers, each as it is, centred on them, with calibrated scores, or both

What wins is fitted for all three constructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tfa.base.backend import Backend
from tfa.base.config import HeadSpec, VerifySpec
from tfa.base.progress import Progress
from tfa.base.spill import Spill
from tfa.base.tokens import Tokens
from tfa.method.branch import Branch, DatabaseSplit, fit_branch
from tfa.method.carriers import carrier_terms
from tfa.method.controllers.decisions import JudgedDecisions, JudgedEvidence
from tfa.method.controllers.judged import (
    DATABASE_CARRIERS,
    INCUMBENT,
    MOST_PHOTOS,
    TARGET_CARRIERS,
    TARGET_INCUMBENT,
    cross_fitted_answers,
    in_words,
    judged,
    reason_of,
)
from tfa.method.pseudo_queries import every_score, pseudo_tops
from tfa.method.query_sides import SideView
from tfa.method.residuals import ASSIGNMENTS, describe
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import FittedSpaces, spread_of
from tfa.method.second_order_space import MAX_PSEUDO, SecondOrderSpace
from tfa.method.vocabulary import Vocabulary, fit_vocabularies, sample_patches
from tfa.verification.admission import PairEvidence, evenly_spaced, remembering
from tfa.verification.judge import roots_of_evidence
from tfa.verification.patch_store import CompactTokens

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


def judge_on_database(
    fitted: FittedSpaces,
    challengers: ResidualChallengers | None,
    compact: CompactTokens | None,
    backend: Backend,
    progress: Progress | None = None,
) -> Judged:
    """The decision from the database alone. Without compact tokens there is nothing to judge by: the incumbent."""
    incumbent = fitted.decisions(INCUMBENT)
    if compact is None:
        return incumbent, not_judged(fitted, incumbent)
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
    evidence = lambda photo, images: compact.among(int(space.pseudo[chosen[photo]]), images)  # noqa: E731
    return _decide(fitted, heads, answers, incumbent, evidence, f"{len(chosen)} photos of the map itself", progress)


def judge_on_target(
    fitted: FittedSpaces, target: Tokens, evidence: PairEvidence, *, progress: Progress | None = None
) -> Judged:
    """The decision from target photos; `evidence` compares one of them, by its number, with database images."""
    space = fitted.spaces[0]
    view = space.side.describe(target, True, fitted.dtype)
    incumbent = fitted.decisions(TARGET_INCUMBENT, centring=True, score=True)
    return decide_for_target(fitted, space, view, incumbent, evidence, progress)


def decide_for_target(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    incumbent: JudgedDecisions,
    evidence: PairEvidence,
    progress: Progress | None = None,
) -> Judged:
    """`judge_on_target` of photos that were described."""
    heads, answers = {}, {}
    photos = evenly_spaced(len(view.descriptors), MOST_PHOTOS)
    for carrier in TARGET_CARRIERS:
        kernel = fitted.decisions(carrier).kernel(SECOND_ORDER, 0)
        sigma = spread_of(space.pseudo_scores(kernel), space)
        for centring, score in CALIBRATIONS:
            if centring and carrier == "original":
                continue  # S_0 has no mean to take queries from
            head = fitted.decisions(carrier, centring=centring, score=score)
            heads[head.name] = head
            answers[head.name] = cross_fitted_answers(space, view, head, kernel, sigma)[photos]
    known = remembering(lambda photo, images: evidence(int(photos[photo]), images))
    return _decide(fitted, heads, answers, incumbent, known, f"{len(photos)} target photos", progress)


def _decide(
    fitted: FittedSpaces,
    heads: Mapping[str, JudgedDecisions],
    answers: Mapping[str, np.ndarray],
    incumbent: JudgedDecisions,
    evidence: PairEvidence,
    photos: str,
    progress: Progress | None,
) -> Judged:
    roots = roots_of_evidence(answers, evidence, progress)
    winner, judgements = judged(roots, incumbent.name)
    words = {"judge": reason_of(heads[winner], judgements, incumbent.name, photos)}
    count = len(next(iter(answers.values())))
    seen = JudgedEvidence(count, photos, incumbent.name, judgements, {SECOND_ORDER: fitted.strengths}, words)
    return heads[winner], seen


def not_judged(
    fitted: FittedSpaces, head: JudgedDecisions, why: str = "how the patches lie is not known"
) -> JudgedEvidence:
    """The evidence of a head that was chosen without a judge."""
    words = {"judge": f"{in_words(head)}: not judged, {why}"}
    return JudgedEvidence(0, "", head.name, {}, {SECOND_ORDER: fitted.strengths}, words)


def compact_for(tokens: Tokens, spec: VerifySpec) -> CompactTokens | None:
    """Compact tokens of the database, if its patches lie on a grid."""
    return None if tokens.grid is None else CompactTokens.fit(tokens, spec)

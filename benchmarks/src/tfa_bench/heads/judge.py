"""The judge: of several heads, choose the one whose top answers have the strongest patch-match evidence.

Patch matches between a photo and its top answer are evidence without labels and independent of any descriptor, so they
can compare arbitrary heads:

    value_h = mean over photos q of √M(q, t_h(q))       t_h(q): the top answer of head h

A default head is used unless a challenger's mean paired difference to it exceeds its standard error by a margin; of
several such challengers, the one with the largest mean wins. A head fitted on target photos is judged by cross-fitting:
a head calibrated on one half is judged on the other. There a head could also gain from images that match every photo of
the camera a little, so only evidence specific to the photo counts:

    value_h = mean over q of √M(q, t_h(q)) − mean over 8 other photos q' of √M(q', t_h(q))

    database only    pseudo queries judge second-order carriers and, as challengers, residual heads of one vocabulary
    target photos    judge second-order carriers, each unchanged, centered on them, with calibrated scores, or both

The winner is fitted for all three constructions. Maps do not use the judge: it kept the default in nearly every run,
so maps have the default heads (`tfa.method.second_order_head`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tfa.core.arrays import Backend, Spill, backend_for, map_in_threads
from tfa.core.plain import Value, req
from tfa.core.progress import Progress, SilentProgress, as_progress
from tfa.core.tokens import Tokens
from tfa.method.branch import DatabaseBranch, DatabaseSplit, fit_branch
from tfa.method.carriers import CARRIER_WORDS, KernelTerm, carrier_terms
from tfa.method.decisions import SecondOrderDecisions, SecondOrderEvidence
from tfa.method.described_queries import DescribedQueries
from tfa.method.evidence import NO_ANSWER
from tfa.method.head import Head, assemble
from tfa.method.pseudo_queries import every_score, pseudo_tops
from tfa.method.residuals import ASSIGNMENT_KINDS, DescribedTokens, describe_residuals
from tfa.method.scorer import SideView, usual_scores
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import (
    DATABASE_CARRIER,
    SCORE_FROM,
    TARGET_CARRIER,
    FittedSpaces,
    SecondOrderHead,
    assemble_second_order,
    carrier_spread,
    fit_spaces,
    limit_pseudo_queries,
    target_shift,
)
from tfa.method.second_order_space import SecondOrderSpace
from tfa.method.vocabulary import Vocabulary, fit_vocabularies, grid_patches, sample_patches
from tfa.pipeline import check_target_count, check_tokens, fit_database
from tfa.types import HeadSpec, RerankSpec
from tfa.verification.patches import CompactTokens, prepare_photo_evidence
from tfa.verification.usual_evidence import PairEvidence, cache_evidence, space_evenly

MOST_PHOTOS = 128  # photos used for judging
DATABASE_CARRIERS = ("tempered", "blend", "partial", "original", "adaptive")
# Full whitening makes the descriptors it was fitted on orthogonal, so map images cannot judge it.
TARGET_CARRIERS = ("partial", "tempered", "blend", "original", "adaptive", "full")
# Standard errors by which a challenger must be ahead. Pseudo queries have neighbors in the map, so all heads do
# well on them; ten candidates under four calibrations each are often ahead by chance.
DATABASE_MARGIN, TARGET_MARGIN = 2.5, 2.0
CENTERED_IN_RECORDS = "centred"  # spelling in stored records
TARGET_FROM = 64  # minimum target photos for judging; fewer only calibrate the default
OTHERS = 8  # other photos that an answer is compared with, to isolate evidence specific to its photo
RESIDUAL_CARRIERS = ("original", "partial")
CALIBRATIONS = ((False, False), (True, False), (False, True), (True, True))  # centering, scores


class HeadJudgment(Value, kw_only=False):
    """Result of one candidate."""

    value: float = req("Mean √M of its top answers.")
    error: float = req("Standard error of that mean.")
    difference: float = req("Mean paired difference to the default head.")
    difference_error: float = req("Standard error of the mean difference.")


class JudgedEvidence(SecondOrderEvidence):
    """Evidence of the judge for every candidate; `reasons` holds the explanation."""

    photos: int = req("Number of photos used for judging; 0 without a patch grid.")
    kind: str = req("Kind of photos.")
    incumbent: str = req("Head that is used unless another one wins.")
    candidates: dict[str, HeadJudgment] = req("Result of each candidate.")


Judged = tuple[SecondOrderDecisions, JudgedEvidence]


# --- judge ----------------------------------------------------------------------------------------


def choose_judged(
    roots: Mapping[str, np.ndarray], incumbent: str, margin: float
) -> tuple[str, dict[str, HeadJudgment]]:
    """Return the winner's name and each head's result. `roots` are √M `(p,)` of every head's top answers.

    A photo without an answer from some head (the whole map is hidden from it) is nan and does not count.
    """
    known = np.all([np.isfinite(values) for values in roots.values()], axis=0)
    judgements = {}
    for name, values in roots.items():
        value, error = _mean_and_error(values[known])
        difference = _mean_and_error((values - roots[incumbent])[known])
        judgements[name] = HeadJudgment(value, error, *difference)
    ahead = [name for name, one in judgements.items() if one.difference > margin * one.difference_error]
    winner = max(ahead, key=lambda name: judgements[name].difference, default=incumbent)  # the first of equals
    return winner, judgements


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def target_scores(space: SecondOrderSpace, view: SideView, kernel: Sequence[KernelTerm]) -> np.ndarray:
    """Return scores `(c, m)` of target photos without calibration."""
    assert view.coordinates is not None
    return space.scores_of(view.coordinates, measure_level(space, view), kernel)


def measure_level(space: SecondOrderSpace, view: SideView) -> np.ndarray:
    """Return ⟨v, μ⟩ of photos in float64."""
    return view.descriptors.astype(np.float64) @ space.side.mean.astype(np.float64)


def cross_fitted_answers(
    space: SecondOrderSpace, view: SideView, decisions: SecondOrderDecisions, kernel: Sequence[KernelTerm], sigma: float
) -> np.ndarray:
    """Return top answers `(c,)` of target photos, each half by a head fitted on the other one, as decided."""
    assert view.coordinates is not None
    level = measure_level(space, view)
    coordinates = np.asarray(view.coordinates, np.float64)
    answers = np.empty(len(coordinates), np.int64)
    halves = [np.arange(start, len(coordinates), 2) for start in (0, 1)]
    learns = decisions.centring or decisions.score_calibrated
    for own, other in (halves, halves[::-1]) if learns else [(np.arange(len(answers)),) * 2]:
        shift = target_shift(coordinates[other]) if decisions.centring else 0.0
        scores = space.scores_of(coordinates[own] - shift, level[own], kernel)
        if decisions.score_calibrated:
            rows = space.scores_of(coordinates[other] - shift, level[other], kernel)
            scores = scores / sigma - usual_scores(rows / sigma)
        answers[own] = scores.argmax(axis=1)
    return answers if space.duplicates is None else space.duplicates[answers]


def explain_judgment(
    winner: SecondOrderDecisions, judgements: Mapping[str, HeadJudgment], incumbent: str, photos: str
) -> str:
    """Explain the decision; `photos` describes number and kind."""
    own = judgements[winner.name]
    others = [one.value for name, one in judgements.items() if name != winner.name]
    best = f", the next best {max(others):.2f}" if others else ""
    kept = ""
    if winner.name == incumbent and others and own.value < max(others):
        kept = ", which is not ahead by more than chance explains"
    share = f"its first answers share {own.value:.2f} ± {own.error:.2f} of evidence with {photos}"
    return f"{describe_judged(winner)}: {share}{best}{kept}"


def describe_judged(decisions: SecondOrderDecisions) -> str:
    """Describe a judged head."""
    name = decisions.representation.replace("_", "-")
    more = f", {CENTERED_IN_RECORDS} on the target photos" * decisions.centring  # as records hold it
    more += ", scores calibrated" * decisions.score_calibrated
    kind = name if name == "second-order" else f"{name} residuals"
    return f"{kind}, {CARRIER_WORDS[decisions.carrier]}{more}"


def compute_evidence_roots(
    answers: Mapping[str, np.ndarray],
    evidence: PairEvidence,
    progress: Progress | None = None,
    *,
    subtract_usual: bool = False,
) -> dict[str, np.ndarray]:
    """Compute √M `(p,)` of every photo with each head's top answer; nan if a head has none.

    `answers` are images `(p,)` by head name; `evidence` compares a photo, by index, with images from several threads.
    With `subtract_usual`, subtract the mean √M of the answer with other photos.
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
    """Return √M of every answered image with evenly spaced photos: one more than needed, in case one is its own."""
    images = np.unique(table[table != NO_ANSWER])
    photos = space_evenly(table.shape[1], OTHERS + 1).tolist()
    compared = dict(zip(photos, map_in_threads(lambda photo: np.sqrt(evidence(photo, images)), photos), strict=True))
    return {int(image): {p: float(roots[i]) for p, roots in compared.items()} for i, image in enumerate(images)}


def _mean_of_others(usual: Mapping[int, Mapping[int, float]], image: int, photo: int) -> float:
    others = [root for other, root in usual[image].items() if other != photo][:OTHERS]
    return float(np.mean(others)) if others else 0.0


# --- competitions ---------------------------------------------------------------------------------


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
        patches = sample_patches(tokens, spec.max_patches, dtype, grid_patches)
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

    def answers(self, backend: Backend) -> dict[str, tuple[SecondOrderDecisions, np.ndarray]]:
        """Return top answers `(p,)` of the pseudo queries under each residual head, by name."""
        found = {}
        for assignment, branch in self.branches.items():
            count, images = len(branch.split.pseudo), branch.split.images
            for carrier in RESIDUAL_CARRIERS:
                block = every_score(branch, carrier_terms(carrier), backend)
                decisions = SecondOrderDecisions(representation=assignment, carrier=carrier)
                found[decisions.name] = decisions, pseudo_tops(block, branch.mask, count, images)
            branch.release()
        return found


@dataclass(frozen=True)
class Competition:
    """Competing heads and their answers to the judging photos."""

    heads: Mapping[str, SecondOrderDecisions]  # by name; the order breaks ties
    answers: Mapping[str, np.ndarray]  # (p,): top answers
    incumbent: SecondOrderDecisions
    photos: np.ndarray  # (p,): database images, or indices of target photos
    kind: str  # description of the photos
    target: bool  # whether they are target photos


def compete_on_database(fitted: FittedSpaces, challengers: ResidualChallengers | None, backend: Backend) -> Competition:
    """Let second-order carriers and residual heads compete on pseudo queries."""
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
    photos = f"{len(chosen)} map images"
    return Competition(heads, answers, fitted.decisions(DATABASE_CARRIER), space.pseudo[chosen], photos, False)


def compete_on_target(
    fitted: FittedSpaces,
    space: SecondOrderSpace,
    view: SideView,
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS,
) -> Competition:
    """Let second-order carriers under each calibration compete on target photos that `space` describes.

    The default calibrates everything that some candidate does.
    """
    heads, answers = {}, {}
    photos = space_evenly(len(view.descriptors), MOST_PHOTOS)
    for carrier in TARGET_CARRIERS:
        kernel = fitted.decisions(carrier).kernel(SECOND_ORDER, 0)
        rows = partial(target_scores, space, view, kernel)
        sigma = carrier_spread(carrier, space.pseudo_scores(kernel), space, rows)
        for centring, score in calibrations:
            if centring and carrier == "original":
                continue  # S_0 has no mean to center queries with
            head = fitted.decisions(carrier, centring=centring, score=score)
            heads[head.name] = head
            answers[head.name] = cross_fitted_answers(space, view, head, kernel, sigma)[photos]
    return Competition(
        heads, answers, choose_incumbent(fitted, calibrations), photos, f"{len(photos)} target photos", True
    )


def choose_incumbent(fitted: FittedSpaces, calibrations: Sequence[tuple[bool, bool]]) -> SecondOrderDecisions:
    """Return the default with target photos: it calibrates everything that some candidate does."""
    centring, score = (any(learnt) for learnt in zip(*calibrations, strict=True))
    return fitted.decisions(TARGET_CARRIER, centring=centring, score=score)


def select_on_database(
    fitted: FittedSpaces,
    challengers: ResidualChallengers | None,
    compact: CompactTokens | None,
    backend: Backend,
    progress: Progress | None = None,
) -> Judged:
    """Select a head with the database only; the default if compact tokens are missing."""
    if compact is None:
        incumbent = fitted.decisions(DATABASE_CARRIER)
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
    """Select a head with target photos; `evidence` compares one of them, by index, with database images.

    `score` sets whether scores are calibrated; None leaves it to the judge. The default is used without evidence or
    with few photos.
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
    """Select a head with target photos that `space` describes; with few photos, the default calibrated on them."""
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
    """Keep the calibrations that have enough target photos; all of them if none would remain."""
    return [one for one in calibrations if not one[1] or photos >= SCORE_FROM] or calibrations


def select_by_evidence(
    fitted: FittedSpaces, competition: Competition, evidence: PairEvidence, progress: Progress | None = None
) -> Judged:
    """Select the winner; `evidence` compares a competition photo, by its index there, with database images."""
    of_photo = lambda row, images: evidence(int(competition.photos[row]), images)  # noqa: E731
    roots = compute_evidence_roots(
        competition.answers, cache_evidence(of_photo), progress, subtract_usual=competition.target
    )
    incumbent, photos = competition.incumbent.name, competition.kind
    winner, judgements = choose_judged(roots, incumbent, TARGET_MARGIN if competition.target else DATABASE_MARGIN)
    words = {"judge": explain_judgment(competition.heads[winner], judgements, incumbent, photos)}
    count = len(competition.photos)
    seen = JudgedEvidence(
        {SECOND_ORDER: fitted.strengths}, words, photos=count, kind=photos, incumbent=incumbent, candidates=judgements
    )
    return competition.heads[winner], seen


def make_unjudged_evidence(
    fitted: FittedSpaces, head: SecondOrderDecisions, why: str = "how the patches lie is not known"
) -> JudgedEvidence:
    """Make the evidence of a head that was chosen without a judge."""
    words = {"judge": f"{describe_judged(head)}: not judged, {why}"}
    return JudgedEvidence(
        {SECOND_ORDER: fitted.strengths}, words, photos=0, kind="", incumbent=head.name, candidates={}
    )


# --- heads ----------------------------------------------------------------------------------------


def fit_judged(
    tokens: Tokens,
    target: Tokens | None = None,
    *,
    spec: HeadSpec | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool | Progress | None = None,
) -> SecondOrderHead | Head:
    """Fit the head whose top answers have the strongest evidence.

    `target` are unlabeled photos of the deployment; without them the database images judge. Tokens need a grid for
    judging.
    """
    check_tokens(tokens, dtype)
    spec, backend, listener = spec or HeadSpec(), backend_for(device), as_progress(progress)
    compact = None if tokens.grid is None else CompactTokens.fit(tokens, RerankSpec(), cells=False)
    fitted = fit_spaces(tokens, spec, backend, dtype, listener)
    challengers = None if compact is None else ResidualChallengers.fit(tokens, spec, backend, dtype, listener)
    decisions, evidence = select_on_database(fitted, challengers, compact, backend, listener)
    if decisions.representation != SECOND_ORDER:
        database = fit_database(tokens, spec, None, backend, dtype, listener)
        return assemble(database, decisions, evidence, backend)
    head = assemble_second_order(fitted, decisions, evidence)
    if target is None:
        return head
    return calibrate_judged(head, target, prepare_photo_evidence(compact, target), progress=listener)


def calibrate_judged(
    head: SecondOrderHead | FittedSpaces,
    target: Tokens,
    evidence: PairEvidence | None,
    *,
    score: bool | None = None,
    progress: bool | Progress | None = None,
) -> SecondOrderHead:
    """Calibrate a head: target photos judge carrier, centering and score calibration.

    `evidence` compares a target photo, by index, with database images
    (`verification.patches.prepare_photo_evidence`); without it the default is used. `score` sets whether scores are
    calibrated; None leaves it to the judge.
    """
    check_target_count(len(target))
    fitted = head if isinstance(head, FittedSpaces) else head.fitted
    fitted.check(target)
    described = (
        target if isinstance(target, DescribedTokens) else DescribedQueries(target)
    )  # described once for everything that follows
    decisions, seen = select_on_target(fitted, described, evidence, score, as_progress(progress))
    return assemble_second_order(fitted, decisions, seen, described)

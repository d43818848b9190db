"""The judged controller (ours, beyond the paper): of several heads, the one whose first answers bear most evidence.

Patch matches of a photo and its first answer are evidence without labels, and owe nothing to any descriptor. So they
can judge whole heads, whatever these were made of:

    value_h = mean over photos q of √M(q, t_h(q))          t_h(q): the first answer of head h

An incumbent answers unless a challenger's mean difference to it, photo by photo, exceeds its standard error by a
margin; of several such challengers the one with the largest mean answers. A head that learnt from target photos is
judged by cross-fitting: what one half teaches is judged on the other. There a head could also gain by answering with
images that match every photo of the camera a little, so an answer counts by what is its photo's own:

    value_h = mean over q of √M(q, t_h(q)) − mean over 8 other photos q' of √M(q', t_h(q))

Arrays in, decisions out; who matches the patches is `tfa.verification.judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfa.method.carriers import KernelTerm
from tfa.method.decisions import HeadJudgment, JudgedDecisions
from tfa.method.scorer import SideView, usual_scores
from tfa.method.second_order_head import target_shift
from tfa.method.second_order_space import SecondOrderSpace

MOST_PHOTOS = 128  # that are judged by
INCUMBENT, TARGET_INCUMBENT = "tempered", "partial"  # carriers: for photos queried alone, and with target photos
DATABASE_CARRIERS = ("tempered", "blend", "partial", "original", "adaptive")
# Full whitening makes the descriptors it was fitted to orthogonal: the map's own photos say nothing about it.
TARGET_CARRIERS = ("partial", "tempered", "blend", "original", "adaptive", "full")
# Standard errors by which a challenger must be ahead. Pseudo queries have neighbours in the map, so that all heads do
# well by them; ten candidates under four calibrations each are many to be ahead by chance (docs/judge.md).
DATABASE_MARGIN, TARGET_MARGIN = 2.5, 2.0
TARGET_FROM = 64  # target photos from which they judge; fewer calibrate the incumbent
CARRIER_WORDS = {
    "original": "no whitening",
    "partial": "partial whitening",
    "adaptive": "adaptive whitening",
    "blend": "plain and partly whitened scores blended",
    "tempered": "plain scores tempered by whitened ones",
    "full": "full whitening",
}


def choose_judged(
    roots: Mapping[str, np.ndarray], incumbent: str, margin: float
) -> tuple[str, dict[str, HeadJudgment]]:
    """The name of the head that wins, and how each fared. `roots` are √M `p` of every head's first answers.

    A photo some head has no answer to (all of the map is hidden from it) is nan and counts for none.
    """
    known = np.all([np.isfinite(values) for values in roots.values()], axis=0)
    judgements = {}
    for name, values in roots.items():
        value, error = _mean_and_error(values[known])
        difference = _mean_and_error((values - roots[incumbent])[known])
        judgements[name] = HeadJudgment(value, error, *difference)
    ahead = [name for name, one in judgements.items() if one.difference > margin * one.difference_error]
    winner = max(ahead, key=lambda name: judgements[name].difference, default=incumbent)  # of equals the first
    return winner, judgements


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def target_scores(space: SecondOrderSpace, view: SideView, kernel: Sequence[KernelTerm]) -> np.ndarray:
    """Scores `c m` of target photos, as they are."""
    assert view.coordinates is not None
    return space.scores_of(view.coordinates, measure_level(space, view), kernel)


def measure_level(space: SecondOrderSpace, view: SideView) -> np.ndarray:
    """⟨v, μ⟩ of photos, float64."""
    return view.descriptors.astype(np.float64) @ space.side.mean.astype(np.float64)


def cross_fitted_answers(
    space: SecondOrderSpace, view: SideView, decisions: JudgedDecisions, kernel: Sequence[KernelTerm], sigma: float
) -> np.ndarray:
    """First answers `c` of target photos, each half by a head that learnt from the other one, as decided."""
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
    winner: JudgedDecisions, judgements: Mapping[str, HeadJudgment], incumbent: str, photos: str
) -> str:
    """Why, in words; `photos` says how many of which kind."""
    own = judgements[winner.name]
    others = [one.value for name, one in judgements.items() if name != winner.name]
    best = f", the next best {max(others):.2f}" if others else ""
    kept = ""
    if winner.name == incumbent and others and own.value < max(others):
        kept = ", which is not ahead by more than chance explains"
    share = f"its first answers share {own.value:.2f} ± {own.error:.2f} of evidence with {photos}"
    return f"{describe_judged(winner)}: {share}{best}{kept}"


def describe_judged(decisions: JudgedDecisions) -> str:
    """A judged head in words."""
    name = decisions.representation.replace("_", "-")
    more = ", centred on the target photos" * decisions.centring
    more += ", scores calibrated" * decisions.score_calibrated
    kind = name if name == "second-order" else f"{name} residuals"
    return f"{kind}, {CARRIER_WORDS[decisions.carrier]}{more}"

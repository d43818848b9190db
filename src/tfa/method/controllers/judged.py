"""The judged controller (ours, beyond the paper): of several heads, the one whose first answers bear most evidence.

Patch matches of a photo and its first answer are evidence without labels, and owe nothing to any descriptor. So they
can judge whole heads, whatever these were made of:

    value_h = mean over photos q of √M(q, t_h(q))          t_h(q): the first answer of head h

An incumbent answers unless a challenger's mean difference to it, photo by photo, exceeds its standard error; of several
such challengers the one with the largest mean answers. A head that learnt from target photos is judged by
cross-fitting: what one half teaches is judged on the other. Arrays in, decisions out; who matches the patches is
`tfa.verification.judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfa.method.carriers import KernelTerm
from tfa.method.controllers.decisions import JudgedDecisions, Judgement
from tfa.method.query_sides import SideView
from tfa.method.score_calibration import usual_scores
from tfa.method.second_order_head import target_shift
from tfa.method.second_order_space import SecondOrderSpace

MOST_PHOTOS = 128  # that are judged by
INCUMBENT, TARGET_INCUMBENT = "blend", "partial"  # carriers: for photos queried alone, and with target photos
DATABASE_CARRIERS = ("blend", "partial", "original", "adaptive")
# Full whitening makes the descriptors it was fitted to orthogonal: the map's own photos say nothing about it.
TARGET_CARRIERS = ("partial", "blend", "original", "adaptive", "full")
MARGIN = 1.0  # standard errors by which a challenger must be ahead
CARRIER_WORDS = {
    "original": "no whitening",
    "partial": "partial whitening",
    "adaptive": "adaptive whitening",
    "blend": "plain and partly whitened scores blended",
    "full": "full whitening",
}


def judged(roots: Mapping[str, np.ndarray], incumbent: str) -> tuple[str, dict[str, Judgement]]:
    """The name of the head that wins, and how each fared. `roots` are √M `p` of every head's first answers.

    A photo some head has no answer to (all of the map is hidden from it) is nan and counts for none.
    """
    known = np.all([np.isfinite(values) for values in roots.values()], axis=0)
    judgements = {}
    for name, values in roots.items():
        value, error = _mean_and_error(values[known])
        difference = _mean_and_error((values - roots[incumbent])[known])
        judgements[name] = Judgement(value, error, *difference)
    ahead = [name for name, one in judgements.items() if one.difference > MARGIN * one.difference_error]
    winner = max(ahead, key=lambda name: judgements[name].difference, default=incumbent)  # of equals the first
    return winner, judgements


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    if not len(values):
        return 0.0, 0.0
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def cross_fitted_answers(
    space: SecondOrderSpace, view: SideView, decisions: JudgedDecisions, kernel: Sequence[KernelTerm], sigma: float
) -> np.ndarray:
    """First answers `c` of target photos, each half by a head that learnt from the other one, as decided."""
    assert view.coordinates is not None
    level = (view.descriptors @ space.side.mean.astype(view.descriptors.dtype)).astype(np.float64)
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


def reason_of(winner: JudgedDecisions, judgements: Mapping[str, Judgement], incumbent: str, photos: str) -> str:
    """Why, in words; `photos` says how many of which kind."""
    own = judgements[winner.name]
    others = [one.value for name, one in judgements.items() if name != winner.name]
    best = f", the next best {max(others):.2f}" if others else ""
    kept = ""
    if winner.name == incumbent and others and own.value < max(others):
        kept = ", which is not ahead by more than chance explains"
    share = f"its first answers share {own.value:.2f} ± {own.error:.2f} of evidence with {photos}"
    return f"{in_words(winner)}: {share}{best}{kept}"


def in_words(decisions: JudgedDecisions) -> str:
    """A judged head in words."""
    name = decisions.representation.replace("_", "-")
    more = ", centred on the target photos" * decisions.centring
    more += ", scores calibrated" * decisions.score_calibrated
    kind = name if name == "second-order" else f"{name} residuals"
    return f"{kind}, {CARRIER_WORDS[decisions.carrier]}{more}"

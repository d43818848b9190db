"""Robust score calibration (ours, beyond the paper): subtracts each database image's mean score on target photos.

    x = S/σ,   score(q, d) = x(q, d) − b_d,   b_d = log mean exp of x(·, d) over target photos, trimmed

A constant per database image: the calibrated score is still one inner product and a bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tfa.base.tokens import Tokens
from tfa.method.scorer import Scorer
from tfa.search.gallery import Rows, inner

_TRIMMED = 0.05  # share of the largest entries of a column that do not count


def calibrate_scorer(scorer: Scorer, sigma: float, target: Tokens) -> Scorer:
    """The scorer scaled by 1/σ, less the mean score of each database image on the target photos."""
    terms = tuple(replace(term, weight=term.weight / sigma) for term in scorer.terms)
    scaled = replace(scorer, terms=terms, bias=scorer.bias / sigma)
    features = scaled.query_vectors(target).terms
    return replace(scaled, calibrators=features, bias=scaled.bias - usual_scores(scaled.scores_of(features)))


def usual_scores(scores: np.ndarray) -> np.ndarray:
    """b_d `m`: log mean exp of each column over target rows `c m`, without its ⌈5 %⌉ largest entries.

    Dropping the largest keeps a place from being punished because a target photo happens to show it.
    """
    count = max(len(scores) - math.ceil(_TRIMMED * len(scores)), 1)
    kept = np.partition(scores, count - 1, axis=0)[:count].astype(np.float64)
    top = kept[-1]  # the largest that is kept; log mean exp = top + log mean exp(x − top): no overflow
    return top + np.log(np.exp(kept - top).mean(axis=0))


def compute_row_bias(scorer: Scorer, rows: Sequence[Rows]) -> np.ndarray:
    """Bias of images that join the gallery with feature rows `m D` per term."""
    bias = np.zeros(len(rows[0]))
    if scorer.calibrators is None:
        return bias
    for member in sorted({term.member for term in scorer.terms}):
        chosen = [i for i, term in enumerate(scorer.terms) if term.member == member]
        scores = sum(scorer.terms[i].weight * inner(scorer.calibrators[i], rows[i]) for i in chosen)
        bias -= usual_scores(np.asarray(scores))
    return bias

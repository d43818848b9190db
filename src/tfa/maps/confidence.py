"""Confidence: how much an answer can be relied on. The one place where it is computed; it takes three forms.

percentile   of an answer that was not verified: the share of the map's own photos whose best answer, with the photo
             itself hidden, stood out less. No label was used. It orders answers; it is not a probability.
verified     of an answer that was verified: a logistic function of that percentile and of the patch matches. Its
             numbers were fitted with labels of public datasets, never of a user's map.
sure         yes or no: a verified confidence of at least SURE.

Frames of a sequence have a confidence of their own, the probability of the filter (`tfa.online.sequence_filter`).
"""

from __future__ import annotations

import numpy as np

from tfa.verification.reranking import UNVERIFIED, Verified

# A logistic fit of "the answer is right" on the eight datasets of docs/verification.md, rounded to the safe side.
OFFSET = 1.0
PER_LEAD, MOST_LEAD = 3.0, 1.0  # a larger lead adds nothing: the few wrong answers there are scenes mapped twice
PER_MARGIN = 0.5
PER_PERCENTILE = 0.5

# Measured by `tfa bench confidence` on eight datasets (docs/verification.md): of answers at least as confident 91.1 %
# were right on aerial-seneca, 95.2 % or more on the seven others; of out-of-map photos at most 0.8 % were accepted.
SURE = 0.9


def percentile(standardised: np.ndarray, peaks: np.ndarray | None) -> np.ndarray:
    """The share of `peaks` that are not above each z-score.

    `peaks` are the z-scores of the best answers to the map's own photos, each with itself hidden, sorted. Without any
    usable photo (all are identical) nothing is confident; None is a head that keeps no peaks: a half.
    """
    if peaks is None:
        return np.full(np.shape(standardised), 0.5)
    return np.searchsorted(peaks, standardised, side="right") / max(len(peaks), 1)


def verified_confidence(percentile: np.ndarray, lead: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(1 − 3 min(lead, 1) − margin / 2 − percentile / 2)).

    Evidence is compared with that of the other candidates of the same photo (`lead`, `margin`, see `Verified`), so
    that repetitive scenes, where chance alone lines many patches up, do not look confident.
    """
    standing_out = PER_LEAD * np.minimum(lead, MOST_LEAD)
    return 1 / (1 + np.exp(OFFSET - standing_out - margin * PER_MARGIN - percentile * PER_PERCENTILE))


def confidence_of(found: Verified, peaks: np.ndarray | None) -> np.ndarray:
    """Confidence `q k` of ranked images: verified where they were compared, else the percentile."""
    plain = percentile(found.standardised, peaks)
    return np.where(found.matches == UNVERIFIED, plain, verified_confidence(plain, found.lead, found.margin))


def is_sure(confidence: float, matches: int | None) -> bool:
    """Can the answer be relied on? Never if it was not verified (`matches` None): a percentile is not a probability."""
    return matches is not None and confidence >= SURE

"""The constants of confidence from labelled answers: a logistic fit in which every dataset and way weighs the same.

    loss = −Σ w (y log c + (1 − y) log(1 − c)) + 4 · mean over groups (mean c − recall)² + 0.01 ‖b‖²

c is the confidence, y whether the answer is right, a group one dataset asked in one way; photos outside the map are
wrong answers and weigh 8 % of all others. The second term is what expected recall needs: a mean that fits each dataset.
b are the factors of place, agreement and lead as standardised over all answers; none is negative.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.optimize

from tfa.maps.confidence import Constants
from tfa_bench.studies.confidence_samples import Sample

OUTSIDE = 0.08  # weight of all photos outside a map beside all others
OF_MEANS, RIDGE = 4.0, 0.02


def fit_constants(own: Sequence[Sample], foreign: Sequence[Sample], temperature: float) -> Constants:
    """From groups of answers, and of answers to photos outside the map, with features of this temperature."""
    every = [*own, *foreign]
    features = np.concatenate([one.features.columns() for one in every])
    right = np.concatenate([one.right for one in every]).astype(np.float64)
    shares = [*np.full(len(own), 1 / len(own)), *np.full(len(foreign), OUTSIDE / max(len(foreign), 1))]
    counts = [len(one.right) for one in every]
    weight = np.repeat(np.array(shares) / counts, counts)
    group = np.repeat(np.arange(len(own)), counts[: len(own)])
    centre = weight @ features / weight.sum()
    spread = np.sqrt(weight @ (features - centre) ** 2 / weight.sum())
    spread = np.where(spread > 1e-6, spread, np.inf)  # what is the same of all answers, up to rounding, has no factor
    standard, inside = (features - centre) / spread, len(group)
    sizes = np.bincount(group).astype(np.float64)
    recall = np.bincount(group, right[:inside]) / sizes

    def loss(b: np.ndarray) -> tuple[float, np.ndarray]:
        logit = b[0] + standard @ b[1:]
        confidence = 1 / (1 + np.exp(-logit))
        error = np.bincount(group, confidence[:inside]) / sizes - recall
        value = (
            weight @ (np.logaddexp(0, logit) - right * logit) + OF_MEANS * (error**2).mean() + RIDGE * b[1:] @ b[1:] / 2
        )
        slope = weight * (confidence - right)
        slope[:inside] += (confidence * (1 - confidence))[:inside] * (2 * OF_MEANS * error / len(error) / sizes)[group]
        return float(value), np.array([slope.sum(), *(standard.T @ slope + RIDGE * b[1:])])

    bounds = [(None, None), *[(0, None)] * len(spread)]
    found = scipy.optimize.minimize(loss, np.zeros(len(bounds)), jac=True, bounds=bounds, method="L-BFGS-B").x
    factors = found[1:] / spread
    return Constants(temperature, float(found[0] - factors @ centre), *map(float, factors))

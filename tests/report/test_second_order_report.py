"""Resemblance of map images under second-order heads."""

import numpy as np
import pytest

from tests.worlds import world
from tfa.method.carriers import CARRIER_KERNELS
from tfa.pipeline import fit_second_order
from tfa.report.neighbors import measure_resemblance


@pytest.fixture(scope="module", params=CARRIER_KERNELS)
def head(request):
    return fit_second_order(world(30), request.param)


def test_images_answer_each_other_as_if_they_asked(head):
    scorer = head.scorer(0)
    alive = np.delete(np.arange(30), [4, 9])
    found = measure_resemblance(scorer, alive)
    scores = scorer.scores(world(30))[np.ix_(alive, alive)].astype(float)
    np.fill_diagonal(scores, -np.inf)
    best = np.take_along_axis(scores, found.first, axis=1)
    tolerance = 1e-4 * np.abs(scores[np.isfinite(scores)]).max()
    np.testing.assert_allclose(best, -np.sort(-scores, axis=1)[:, :5], atol=tolerance)
    psi = scorer.compile().database[alive].astype(float)
    psi -= psi.mean(axis=0)
    psi /= np.linalg.norm(psi, axis=1, keepdims=True)
    cosines = psi @ psi.T
    np.fill_diagonal(cosines, -np.inf)
    np.testing.assert_allclose(found.best, cosines.max(axis=1), atol=1e-3)

"""Spectrum, similarities and resemblance of second-order heads."""

import numpy as np
import pytest

from tests.worlds import world
from tfa.method.carriers import CARRIER_KERNELS
from tfa.method.second_order import describe_second_order
from tfa.pipeline import fit_second_order
from tfa.report.evidence import describe_spectrum
from tfa.report.neighbors import measure_resemblance, sample_similarity
from tfa.report.page import _plots

GAMMAS = {"original": 0.0, "partial": 0.5, "blend": 0.5, "full": 1.0, "tempered": 0.625}


@pytest.fixture(scope="module", params=CARRIER_KERNELS)
def head(request):
    return fit_second_order(world(30), request.param)


def descriptors_of(scorer):
    return describe_second_order(world(30), [scorer.sides[0].patch_directions], dtype="float64")[0]


def test_the_spectrum_is_that_of_the_descriptors(head):
    scorer, carrier = head.scorer(0), head.decisions.carrier
    spectrum, descriptors = describe_spectrum(scorer), descriptors_of(scorer)
    expected = np.linalg.eigvalsh(np.cov(descriptors.T, bias=True))[::-1][: spectrum["rank"]]
    np.testing.assert_allclose(spectrum["eigenvalues"], expected, rtol=1e-3, atol=1e-8)
    if carrier in GAMMAS:
        assert spectrum["gamma"] == GAMMAS[carrier]
    moment = descriptors.T @ descriptors / len(descriptors)
    width = np.trace(moment) ** 2 / np.linalg.norm(moment) ** 2
    assert spectrum["participation"] == pytest.approx(width, rel=1e-4)


def test_similarities_are_those_of_descriptors_and_of_images_that_ask(head):
    scorer, tokens = head.scorer(0), world(30)
    alive = np.delete(np.arange(30), [4, 9])
    pairs = sample_similarity(scorer, alive, most=40)
    near = np.linspace(0, 26, 20).round().astype(int)  # half of the pairs: an image and the next
    asked, answered = alive[near], alive[near + 1]
    scores = scorer.scores(tokens)[asked, answered]
    np.testing.assert_allclose(pairs["final"][:20], scores, rtol=1e-5, atol=1e-4 * np.abs(scores).max())
    descriptors = descriptors_of(scorer)
    if all(term.gamma is not None for term in scorer.terms):  # the map has shaped rows alone
        descriptors = descriptors - descriptors.mean(axis=0)
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    expected = (descriptors[asked] * descriptors[answered]).sum(axis=1)
    np.testing.assert_allclose(pairs["original"][:20], expected, atol=1e-4)
    assert sample_similarity(scorer, alive[:1]) is None


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


def test_what_is_not_shaped_is_drawn_once():
    for carrier, lines in (("original", 1), ("partial", 2)):
        scorer = fit_second_order(world(30), carrier).scorer(0)
        evidence = {"candidates": [], "spectrum": describe_spectrum(scorer), "similarity": None}
        [(drawn, caption)] = _plots({**evidence, "decisions": {"assignment": "hard"}})
        assert drawn.count("<polyline") == lines
        assert ("Shaping raises" in caption) == (lines == 2)
        assert "residuals" not in caption

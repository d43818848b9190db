"""Usual evidence: hand-made scores, and a real head."""

import numpy as np
import pytest

import tfa
from tests.worlds import world
from tfa.types import HeadSpec
from tfa.verification.usual_evidence import cache_evidence, measure_on_database, measure_usual_evidence, space_evenly


def test_usual_evidence_is_the_median_of_the_largest_roots_among_the_top_images():
    scores = np.tile(np.arange(30.0, 0, -1), (3, 1))
    votes = np.zeros((3, 30))
    votes[0, 3], votes[1, 19], votes[2, 0] = 4.0, 9.0, 16.0
    votes[:, 20] = 100.0  # the 21st image is not compared
    found = measure_usual_evidence(scores, lambda row, images: votes[row, images])
    assert found == {"photos": 3, "usual_evidence": 3.0}


def test_a_photo_without_images_does_not_count():
    scores = np.array([[-np.inf, -np.inf], [1.0, -np.inf]])
    assert measure_usual_evidence(scores, lambda row, images: images + 1.0) == {"photos": 1, "usual_evidence": 1.0}
    assert measure_usual_evidence(scores[:1], lambda row, images: images) == {"photos": 0, "usual_evidence": None}


@pytest.mark.parametrize("kind", ["paper", "second"])
def test_a_map_image_is_compared_with_its_top_images_but_not_with_itself(kind):
    tokens = world()
    fit = tfa.fit if kind == "paper" else tfa.pipeline.fit_second_order
    head = fit(tokens, spec=HeadSpec(words=4), dtype="float64")
    compared = {}

    def evidence(image, others):
        compared[image] = others.tolist()
        return np.ones(len(others))

    found = measure_on_database(head.scorer(), evidence, 7)
    assert found == {"photos": 7, "usual_evidence": 1.0}
    scores = head.scores(tokens, 0)
    np.fill_diagonal(scores, -np.inf)
    ranked = np.argsort(-scores, axis=1, kind="stable")
    assert compared == {image: ranked[image, :20].tolist() for image in space_evenly(24, 7).tolist()}


def test_evidence_is_computed_once_per_pair():
    calls = []

    def evidence(row, images):
        calls.extend((row, int(image)) for image in images)
        return images * 2.0

    cached = cache_evidence(evidence)
    assert cached(0, np.array([1, 2])).tolist() == [2, 4]
    assert cached(0, np.array([2, 3])).tolist() == [4, 6]
    assert calls == [(0, 1), (0, 2), (0, 3)]

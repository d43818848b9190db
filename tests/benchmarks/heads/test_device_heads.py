"""Heads of the package score queries on the device of a run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.method.described_queries import DescribedQueries
from tfa.method.device_scorer import DeviceScorer
from tfa.types import HeadSpec
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared

NAMES = ("tfa", "tfa-ensemble", "dual", "hard-original", "tfa-support-only", "second-order", "second-partial")


@pytest.fixture(scope="module")
def places():
    tokens = world(24, 40, 8)
    return Tokens(tokens.patches, tokens.cls, grid=(5, 8))


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_numpy(name, places, monkeypatch):
    used = []
    scores_of = DeviceScorer.scores
    monkeypatch.setattr(DeviceScorer, "scores", lambda own, tokens: used.append(own) or scores_of(own, tokens))
    head = head_card(name).fit(Photos(places), Shared(spec=HeadSpec(words=5), device="torch"))
    queries, replica = Photos(DescribedQueries(seen_again(places))), head.replicas[-1]
    expected = dataclasses.replace(head, device="cpu").scores(queries, replica)
    assert used == []
    for _ in range(2):
        found = head.scores(queries, replica)
        # Integer rows are exact on the device, so scores of a stored head differ by its query's rounding.
        tolerance = 2e-2 if name == "second-order" else 3e-5
        np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())
    assert len(used) == 2
    assert used[0] is used[1]  # copied to the device once


def test_a_calibrated_head_is_copied_to_the_device_again(places):
    head = head_card("tfa-c8+").fit(Photos(places), Shared(spec=HeadSpec(words=5), device="torch"))
    queries = Photos(seen_again(places))
    head.scores(queries, "0")
    tuned = head.calibrate(queries.select(slice(0, 8)))
    expected = dataclasses.replace(tuned, device="cpu").scores(queries, "0")
    np.testing.assert_allclose(tuned.scores(queries, "0"), expected, atol=3e-5 * np.abs(expected).max())

"""What a confidence is worth: hand-made answers, and a made-up town."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.bench.fields import town
from tests.fakes import FakeEncoder
from tfa.base.config import HeadSpec
from tfa.bench.heads.catalogue import head_card
from tfa.bench.heads.contract import Photos
from tfa.bench.records import Truth
from tfa.bench.run import Bench
from tfa.bench.studies.confidence import ConfidenceStudy, study_confidence
from tfa.method.described_queries import DescribedQueries

PLACES = 7


def made(sure, right, out_of_map=()):
    return ConfidenceStudy("made", "head", "other", np.array(sure), np.array(right, bool), np.array(out_of_map, float))


def test_accepted_answers_by_hand():
    study = made([0.95, 0.9, 0.6, 0.2], [1, 0, 1, 1], [0.91, 0.1])
    assert study.accepted(0.9) == {"threshold": 0.9, "precision": 0.5, "answered": 0.5, "out_of_map": 0.5}
    assert study.accepted(0.99) == {"threshold": 0.99, "precision": None, "answered": 0.0, "out_of_map": 0.0}
    assert made([0.5], [1]).accepted(0.5)["out_of_map"] is None


def test_the_share_answered_at_a_precision_is_the_largest_there_is():
    study = made([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1], [0.85])
    assert study.answered_at(1.0) == 0.25
    assert study.answered_at(0.75) == 1.0  # 3 of 4 are right
    assert study.answered_at(0.75, out_of_map=True) == 0.25  # 3 of 5 are not enough
    assert made([0.9, 0.8], [0, 1]).answered_at(0.9) == 0.0


def test_equal_confidences_are_accepted_together():
    assert made([0.9, 0.9], [1, 0]).answered_at(1.0) == 0.0
    assert made([0.9, 0.9], [1, 0]).answered_at(0.5) == 1.0


@pytest.fixture(scope="module")
def bench():
    database, queries = town(PLACES)
    names = [[f"{i:02}.png" for i in range(len(t))] for t in (database, queries)]
    positives = tuple(np.array([2 * place]) for place in range(PLACES))
    truth = Truth("town", "Town", tuple(names[0]), tuple(names[1]), positives, {}, "by hand")
    return Bench(None, truth, FakeEncoder(), Photos(database), Photos(DescribedQueries(queries)), "", HeadSpec(words=4))


@pytest.mark.parametrize("name", ["tfa-v-always", "tfa", "tfa-c4-v-always"])
def test_a_head_is_evaluated_on_its_queries_and_out_of_map_queries(bench, name):
    study = study_confidence(bench, head_card(name), bench)
    evaluated = 3 * (PLACES - 4 if "c4" in name else PLACES)  # three replicas
    assert (len(study.sure), len(study.right), len(study.out_of_map_sure)) == (evaluated, evaluated, 3 * PLACES)
    assert study.out_of_map == "town"
    facts = json.loads(json.dumps(study.to_dict()))
    assert facts["recall"] == study.right.mean()
    if name.endswith("-v-always"):
        assert study.right.all()
        assert ((study.sure > 0) & (study.sure < 1)).all()  # a probability, not a z-score


def test_without_out_of_map_queries_nothing_is_said_of_them(bench):
    facts = study_confidence(bench, head_card("tfa")).to_dict()
    assert (facts["out_of_map_queries"], facts["out_of_map"]) == (0, "")
    assert facts["answered_at_with_out_of_map"] == {"0.95": None, "0.99": None}

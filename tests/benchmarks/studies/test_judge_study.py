"""The judge compared with labels: hand-made tables and a synthetic town."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from studies.judge import BUDGET, JudgedCandidate, JudgeStudy, JudgeTable, markdown, page, study_judge
from tests.benchmarks.fields import town
from tests.fakes import FakeEncoder
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.described_queries import DescribedQueries
from tfa.types import HeadSpec
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.judge import fit_judged
from tfa_bench.records import Truth
from tfa_bench.run import Bench

pytestmark = pytest.mark.slow

PLACES = BUDGET + 6


def table(*facts: tuple[str, float, float], chosen: str = "b") -> JudgeTable:
    found = tuple(JudgedCandidate(name, value, 0.1, value - 1, 0.05, recall) for name, value, recall in facts)
    return JudgeTable("9 photos", "a", chosen, found)


def test_rank_correlation_and_loss_by_hand():
    ordered = table(("b", 3.0, 0.9), ("a", 2.0, 0.5), ("c", 1.0, 0.4))
    assert (ordered.rank_correlation, ordered.loss) == (pytest.approx(1), 0)
    turned = table(("b", 3.0, 0.4), ("a", 2.0, 0.5), ("c", 1.0, 0.9))
    assert (turned.rank_correlation, turned.loss) == (pytest.approx(-1), pytest.approx(0.5))
    assert table(("b", 3.0, 0.4), ("a", 2.0, 0.4)).rank_correlation is None


def test_the_page_marks_who_was_chosen_and_who_was_there_before():
    text = markdown(JudgeStudy("t", "Town", "fake", table(("b", 3.0, 0.9), ("a", 2.0, 0.5)), None))
    assert "| 9 photos | **b** | 3.000 ± 0.100 | +2.000 ± 0.050 | 90.0 |" in text
    assert "| 9 photos | a | 2.000 ± 0.100 | default | 50.0 |" in text
    assert "rank correlation of value and R@1 1.00; the head chosen is 0.0 points below the best" in text


def test_the_page_begins_with_what_was_chosen_everywhere():
    one = JudgeStudy("t", "Town", "fake", table(("b", 3.0, 0.5), ("a", 2.0, 0.4), ("c", 1.0, 0.9)), None)
    two = JudgeStudy("v", "Village", "fake", table(("b", 3.0, 0.4), ("a", 2.0, 0.4)), None)
    text = page([one, two])
    assert "| Town | 9 photos | b | 50.0 | a | 40.0 | c | 90.0 | -0.50 |" in text
    assert "| Village | 9 photos | b | 40.0 | a | 40.0 | b | 40.0 | not defined |" in text
    assert text.endswith("\n".join(map(markdown, (one, two))))
    again = [JudgeStudy.from_dict(json.loads(json.dumps(study.to_dict()))) for study in (one, two)]
    assert again == [one, two]


def made_up(places: int) -> Bench:
    database, queries = town(places)
    names = [[f"{i:03}.png" for i in range(len(t))] for t in (database, queries)]
    positives = tuple(np.array([2 * place]) for place in range(places))
    truth = Truth("town", "Town", tuple(names[0]), tuple(names[1]), positives, {}, "by hand")
    return Bench(None, truth, FakeEncoder(), Photos(database), Photos(DescribedQueries(queries)), "", HeadSpec(words=4))


@pytest.fixture(scope="module")
def bench():
    return made_up(PLACES)


@pytest.fixture(scope="module")
def shared(bench):
    return Shared(spec=bench.spec)


@pytest.fixture(scope="module")
def study(bench, shared):
    return study_judge(bench, shared)


def recall(scores: np.ndarray, queries: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == 2 * queries).mean())


def test_values_are_those_of_the_heads_and_recalls_are_plain_counts(study, bench, shared):
    everyone = np.arange(PLACES)
    judged = fit_judged(bench.database.tokens, spec=bench.spec)
    known = {name: one.value for name, one in judged.evidence.candidates.items()}
    assert {one.name: one.value for one in study.database.candidates} == known
    assert study.database.chosen == judged.decisions.name
    found = {one.name: one.recall for one in study.database.candidates}
    for name, head in (("second_order/partial", "second-partial"), ("soft/partial", "soft-partial")):
        fitted = head_card(head).fit(bench.database, shared)
        assert found[name] == pytest.approx(recall(fitted.scores(bench.queries, "0"), everyone))


def test_with_64_queries_the_others_are_evaluated(study, bench, shared):
    [fold] = head_card("judged-c64").plan.splits(PLACES)[0].folds
    head = (
        head_card("judged-c64-no-judge").fit(bench.database, shared).calibrate(bench.queries.select(fold.calibration))
    )
    incumbent = head.retriever.decisions.name
    assert study.target.incumbent == incumbent
    [own] = [one for one in study.target.candidates if one.name == incumbent]
    scores = head.scores(bench.queries.select(fold.evaluated), "0")
    assert own.recall == pytest.approx(recall(scores, fold.evaluated))
    assert (own.difference, own.difference_error) == (0, 0)
    values = [one.value for one in study.target.candidates]
    assert values == sorted(values, reverse=True)


def test_it_can_be_written_down(study):
    facts = json.loads(json.dumps(study.to_dict()))
    assert facts["dataset"] == "town"
    assert len(facts["target"]["candidates"]) == 22
    assert facts["database"]["loss"] >= 0
    assert markdown(study).count("**") == 4


def test_few_queries_judge_nothing_and_an_unknown_grid_is_an_error(bench):
    assert study_judge(made_up(8)).target is None
    nowhere = dataclasses.replace(bench, database=Photos(Tokens(np.asarray(bench.database.tokens.patches))))
    with pytest.raises(BadTokens, match="needs the patch grid"):
        study_judge(nowhere)

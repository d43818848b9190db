"""The target-calibrated controller against its plain statement."""

import dataclasses
import json

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch, FewPhotos
from tfa.method.decisions import TargetDecisions
from tfa.method.evidence import Subsamples
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_residuals
from tfa.pipeline import calibrate, fit
from tfa.reference import database as reference
from tfa.reference import target as reference_target
from tfa.types import HeadSpec

pytestmark = pytest.mark.slow

SPEC = HeadSpec(words=6)


def described(tokens, head):
    both = {}
    for assignment in ("hard", "soft"):
        rows = [
            [reference.residual_descriptor(p, v.centers.astype(np.float64), assignment, 0.01) for p in tokens.patches]
            for v in head.vocabularies
        ]
        both[assignment] = ([np.stack([r[0] for r in s]) for s in rows], [np.stack([r[1] for r in s]) for s in rows])
    return {a: both[a][0] for a in both}, {a: both[a][1] for a in both}


CASES = [  # seed, noise of the database, noise and size of the target, with a global token
    (0, 0.2, 0.15, 12, True),
    (1, 0.5, 0.6, 16, True),
    (2, 0.9, 0.3, 9, False),
    (3, 0.3, 1.2, 20, True),
    (5, 0.7, 0.1, 14, True),
    (8, 0.25, 2.5, 24, True),
]


@pytest.mark.parametrize(
    ("case", "dtype", "device"),
    [
        (CASES[0], "float64", "cpu"),
        (CASES[2], "float64", "cpu"),
        *(pytest.param(case, "float64", "cpu", marks=pytest.mark.slow) for case in (CASES[1], *CASES[3:])),
        (CASES[3], "float32", "cpu"),
        pytest.param(CASES[1], "float64", "torch", marks=pytest.mark.slow),
    ],
)
def test_equals_the_plain_formulas(case, dtype, device):
    tolerance = 1e-9 if dtype == "float64" else 2e-4
    seed, noise, target_noise, size, has_cls = case
    database = world(26, seed=seed, noise=noise)
    target = seen_again(database, seed + 50, target_noise).select(np.random.default_rng(seed).permutation(26)[:size])
    if not has_cls:
        database, target = (Tokens([np.asarray(p) for p in t.patches]) for t in (database, target))
    head = fit(database, SPEC, dtype=dtype, device=device)
    made = calibrate(head, target, device=device)
    plain = reference_target.calibrate(*described(database, head), *described(target, head), database.cls, target.cls)
    d, e = made.decisions, made.evidence
    assert (d.route, d.carrier, d.admit_cls) == (plain.route, plain.carrier, plain.admit_cls)
    assert d.soft_weight == pytest.approx(plain.soft_weight, abs=tolerance)
    assert set(d.strengths) == set(plain.strengths)
    for a, (c, beta) in plain.strengths.items():
        assert d.strengths[a]["c"] == pytest.approx(c, abs=tolerance)
        assert d.strengths[a]["beta"] == pytest.approx(beta, abs=tolerance)
    assert e.route.m_A == pytest.approx(plain.relation_median["A"], abs=tolerance)
    assert e.route.m_G == pytest.approx(plain.relation_median["G"], abs=tolerance)
    np.testing.assert_allclose(e.route.interval_A, plain.relation_interval["A"], atol=tolerance)
    np.testing.assert_allclose(e.route.interval_G, plain.relation_interval["G"], atol=tolerance)
    np.testing.assert_allclose(e.route.interval_capacity, plain.capacity_interval, atol=tolerance)
    for a in ("hard", "soft"):
        assert e.route.capacity[a] == pytest.approx(plain.capacity[a], abs=tolerance)
        assert e.route.information_database[a] == pytest.approx(plain.information_database[a], abs=tolerance)
    np.testing.assert_allclose(d.sigma_local, plain.sigma_local, rtol=max(tolerance, 1e-9))
    if has_cls:
        np.testing.assert_allclose(d.sigma_cls, plain.sigma_cls, rtol=1e-6)
        token = e.global_token
        for name, ours in (("l", token.local), ("g", token.cls)):
            for letter in "BJHQT":
                assert getattr(ours, letter) == pytest.approx(getattr(plain, letter)[name], abs=tolerance), letter
        assert d.local_weight == pytest.approx(plain.local_weight, abs=tolerance)
        np.testing.assert_allclose(token.corr, plain.corr, atol=tolerance)
        for ratio in ("r_T", "r_C", "r_J"):
            assert getattr(token, ratio) == pytest.approx(
                getattr(plain, ratio), rel=1e-3 if dtype == "float32" else 1e-8
            )
    queries = seen_again(database, seed + 99, target_noise)
    v, _ = described(queries, head)
    for s in range(3):
        expected = plain.scores({a: v[a][s] for a in v}, queries.cls, s)
        np.testing.assert_allclose(made.scores(queries, s), expected, atol=max(tolerance * 10, 1e-9))
        compiled = made.compile(s)
        again = compiled.query(queries) @ compiled.database.T + compiled.bias
        np.testing.assert_allclose(again, expected, atol=max(tolerance * 10, 1e-9))


def test_the_frozen_head_never_sees_a_later_query():
    database = world(30)
    made = calibrate(fit(database, SPEC), seen_again(database, 4).select(range(12)), score=True)
    queries = seen_again(database, 9, 0.4)
    together = made.scores(queries)
    order = np.random.default_rng(1).permutation(30)
    np.testing.assert_array_equal(made.scores(queries.select(order)), together[order])
    np.testing.assert_array_equal(np.concatenate([made.scores(queries.select([i])) for i in order]), together[order])
    np.testing.assert_array_equal(made.scores(queries), together)


def test_calibration_says_what_it_saw_and_why():
    database = world(24)
    made = calibrate(fit(database, SPEC), seen_again(database).select(range(10)), score=True)
    assert made.data_used == "target"
    facts = json.loads(json.dumps(made.evidence.to_dict()))
    assert {"m_A", "m_G", "interval_A", "interval_G", "interval_capacity", "capacity"} <= set(facts)
    assert set(facts["global_token"]["local"]) == {"B", "J", "H", "Q", "T"}
    assert {"route", "strengths", "carrier", "admit_cls", "score"} == set(facts["reasons"])
    assert TargetDecisions.from_dict(json.loads(json.dumps(made.decisions.to_dict()))) == made.decisions


def test_score_calibration_on_the_very_queries_does_not_lower_recall():
    database, queries = world(40, noise=0.5), seen_again(world(40, noise=0.5), 3, 0.8)
    head = fit(database, SPEC)
    plain = calibrate(head, queries)
    scored = calibrate(head, queries, score=True)

    def recall(made):
        return np.mean([(made.search(queries, 1, s)[0][:, 0] == np.arange(40)).mean() for s in range(3)])

    assert recall(scored) >= recall(plain) - 0.01
    total = sum(scored.scores(queries, s) for s in range(3))
    np.testing.assert_allclose(scored.scores(queries, "ensemble"), total, atol=1e-3)


def test_bad_targets():
    head = fit(world(), SPEC)
    with pytest.raises(BadTokens, match="at least 2"):
        calibrate(head, world(1))
    with pytest.raises(ChannelMismatch, match="4 channels"):
        calibrate(head, Tokens(np.ones((9, 3, 4))))
    with pytest.raises(ChannelMismatch, match="global tokens"):
        calibrate(head, Tokens(np.asarray(world(9).patches), np.ones((9, 3))))
    with pytest.warns(FewPhotos, match="5 target photos"):
        calibrate(head, world(5))


def test_a_target_without_global_tokens_leaves_them_out():
    head = fit(world(), SPEC)
    made = calibrate(head, Tokens(np.asarray(seen_again(world()).patches)))
    assert not made.decisions.admit_cls
    assert made.evidence.global_token is None


def test_mixture_weighs_both_branches():
    database = world(24)
    head = fit(database, SPEC, dtype="float64")
    from tfa.method.head import assemble

    made = calibrate(head, seen_again(database).select(range(12)))
    strengths = {"hard": {"c": 0.3, "beta": 0.2}, "soft": {"c": 0.1, "beta": 0.4}}
    mixture = dataclasses.replace(
        made.decisions, route="mixture", soft_weight=0.3, strengths=strengths, carrier="adaptive", admit_cls=False
    )
    queries = seen_again(database, 7)
    scores = {}
    for name, decisions in {
        "mixture": mixture,
        "hard": dataclasses.replace(mixture, route="hard"),
        "soft": dataclasses.replace(mixture, route="soft"),
    }.items():
        scores[name] = assemble(head, decisions, made.evidence, backend_for("cpu")).scores(queries)
    np.testing.assert_allclose(scores["mixture"], 0.7 * scores["hard"] + 0.3 * scores["soft"], atol=1e-12)


def test_pseudo_scores_of_the_whole_descriptors_are_computed_once(monkeypatch):
    from tfa.method import target as controller

    head, counted = fit(world(24), SPEC), []
    original = controller.BranchKernel.pseudo_block

    def counting(kernel):
        counted.append(kernel)
        return original(kernel)

    monkeypatch.setattr(controller.BranchKernel, "pseudo_block", counting)
    described_target = describe_residuals(
        seen_again(world(24)).select(range(12)),
        [v.centers for v in head.vocabularies],
        ASSIGNMENT_KINDS,
        SPEC.temperature,
        backend_for("cpu"),
    )
    targets = {
        key: controller.TargetBranch.of(head.branches[key], described_target[key], backend_for("cpu"))
        for key in head.branches
    }
    every = controller.select_counted(head.branches)
    controller.judge_route(targets, Subsamples.draw(12, int(every.sum())), every, backend_for("cpu"))
    assert len(counted) == 6  # two assignments under three constructions


def test_zero_strengths_give_the_original_score():
    database = world(24)
    head = fit(database, SPEC, dtype="float64")
    from tfa.method.head import assemble

    made = calibrate(head, seen_again(database).select(range(12)))
    plain = dataclasses.replace(
        made.decisions, route="soft", soft_weight=1.0, carrier="adaptive", admit_cls=False,
        strengths={"soft": {"c": 0.0, "beta": 0.0}},
    )  # fmt: skip
    build = (made.evidence, backend_for("cpu"))
    adaptive = assemble(head, plain, *build).scores(database)
    original = assemble(head, dataclasses.replace(plain, carrier="original"), *build).scores(database)
    np.testing.assert_array_equal(adaptive, original)

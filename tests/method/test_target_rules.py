"""Every branch of every rule of the target-calibrated controller, and the statistics it judges by."""

import dataclasses

import numpy as np
import pytest

from tfa.method import database
from tfa.method.database import admit_target_token, pick_route
from tfa.method.decisions import BranchQuality, GlobalEvidence, RouteEvidence
from tfa.method.evidence import RelationView, extreme_support, measure_information, relation_terms
from tfa.method.target import local_share, mixture_weight
from tfa.reference import database as reference


def route_of(a, g, capacity=(-1, 1), m_A=0.0, m_G=0.0):
    return RouteEvidence({}, {}, {}, capacity, m_A, m_G, a, g)


@pytest.mark.parametrize(
    ("evidence", "route", "because"),
    [
        (route_of((-2, -1), (-2, -1)), "hard", "both views"),
        (route_of((-2, 1), (-2, 1), (-3, -1), -0.1, -0.1), "hard", "less information"),
        (route_of((-2, 1), (-2, 1), (-3, -1), -0.1, 0.1), "soft", "no reason to discard"),
        (route_of((-2, 1), (-2, 1), (-3, -1), 0.1, -0.1), "soft", "no reason to discard"),
        (route_of((-2, -1), (-2, 1)), "soft", "no reason to discard"),
        (route_of((0.1, 1), (-2, 1)), "mixture", "favors soft"),
        (route_of((0, 1), (0, 1)), "soft", "no reason to discard"),
    ],
)
def test_route(evidence, route, because):
    assert pick_route(evidence) == route
    assert because in database.explain_route(route, 0.5, evidence)


def test_mixture_weight():
    assert mixture_weight(0) == pytest.approx(0.5)
    assert (mixture_weight(5), mixture_weight(-5)) == (pytest.approx(1), pytest.approx(0, abs=1e-15))
    assert mixture_weight(0.5) == pytest.approx(np.sin(np.pi * 1.5 / 4) ** 2)


def token_of(q_local, q_cls, r_T, r_C=0.5, r_J=0.5, corr=(0.1, -0.1, -0.1)):
    quality = BranchQuality(1, 1, 1, q_local, 1)
    return GlobalEvidence(quality, dataclasses.replace(quality, Q=q_cls), r_T, r_C, r_J, corr)


@pytest.mark.parametrize(
    ("token", "admitted", "because"),
    [
        (token_of(0.5, 0.5, 1.0), True, "used: quality"),
        (token_of(0.5, 0.6, 0.99), False, "distinguishes target photos less"),
        (token_of(0.5, 0.4, 1.5), False, "left out: quality"),
        (token_of(0.5, 0.4, 1.0, 1.0, 1.0, (-0.1, -0.2, -0.3)), True, "complements"),
        (token_of(0.5, 0.4, 1.0, 1.0, 1.0, (-0.1, 0.0, -0.3)), False, "left out"),
        (token_of(0.5, 0.4, 1.0, 0.9, 1.0, (-0.1, -0.2, -0.3)), False, "left out"),
        (token_of(0.5, 0.4, 0.9, 1.0, 1.0, (-0.1, -0.2, -0.3)), False, "left out"),
        (token_of(0.5, 0.4, 1.0, 1.0, 0.9, (-0.1, -0.2, -0.3)), False, "left out"),
    ],
)
def test_admission(token, admitted, because):
    assert admit_target_token(token) == admitted
    assert because in database.explain_target_token(token, admitted, True)


def test_shares_and_other_reasons():
    assert local_share(0.6, 0.2) == pytest.approx(0.75)
    assert local_share(0, 0) == 0.5
    assert "no global token" in database.explain_target_token(None, False, True)
    assert "do not vary" in database.explain_target_token(token_of(1, 1, 1), False, False)


# --- invariants of the statistics --------------------------------------------------------------------------------


def test_a_collapsed_retriever_has_no_information():
    np.testing.assert_allclose(measure_information(np.full((3, 10), 4), 20), 0, atol=1e-9)
    perfect = measure_information(np.tile(np.arange(10), (3, 1)), 20)
    np.testing.assert_allclose(perfect, 1, atol=1e-9)


def test_relation_of_a_retriever_that_answers_itself_is_perfect():
    rng = np.random.default_rng(0)
    x = reference.l2(rng.normal(size=(12, 5)))
    gram = x @ x.T
    terms = relation_terms(
        RelationView(gram, gram, gram), np.stack([rng.choice(12, 8, replace=False) for _ in range(5)])
    )
    for values in (terms.alignment, terms.reciprocal_rank, terms.mutual, terms.rank_preservation):
        np.testing.assert_allclose(values, 1, atol=1e-9)


def test_relation_of_a_collapsed_retriever_is_nothing():
    x = reference.l2(np.random.default_rng(0).normal(size=(12, 5)))
    gram = x @ x.T
    collapsed = RelationView(gram, np.full((12, 12), gram[3, 3]), np.repeat(gram[:, 3:4], 12, axis=1))
    terms = relation_terms(collapsed, np.arange(12)[None, :])
    assert (terms.alignment[0], terms.rank_preservation[0]) == (0, 0)
    assert terms.mutual[0] == pytest.approx(1 / 12)


def test_extreme_support():
    assert extreme_support(np.tile(np.arange(8), (3, 1)), 20) == pytest.approx(1)
    assert extreme_support(np.zeros((3, 8), int), 20) == pytest.approx(np.sqrt(1 / 8 / 8))

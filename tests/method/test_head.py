"""The fitted head against the plain formulas; its evidence; its compiled form."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.method.head import assemble
from tfa.pipeline import fit
from tfa.reference import database as reference
from tfa.types import HeadSpec

SPEC = HeadSpec(words=8)


def plain_descriptors(tokens, head, assignment, construction):
    centers = head.vocabularies[construction].centers.astype(np.float64)
    return np.stack([reference.residual_descriptor(p, centers, assignment, 0.01)[0] for p in tokens.patches])


def plain_head(tokens, head):
    both = {a: [plain_descriptors(tokens, head, a, s) for s in range(3)] for a in ("hard", "soft")}
    return reference.decide(both, tokens.cls)


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_decisions_and_scores_equal_the_plain_formulas(seed, dtype, tolerance, device):
    tokens = world(20 + seed, seed=seed, noise=0.1 + 0.15 * seed)
    queries = seen_again(tokens)
    head = fit(tokens, SPEC, dtype=dtype, device=device)
    plain = plain_head(tokens, head)
    made, d = plain, head.decisions
    assert (d.assignment, d.carrier, d.admit_cls) == (made.assignment, made.carrier, made.admit_cls)
    assert (d.c, d.beta) == (pytest.approx(made.c, abs=tolerance), pytest.approx(made.beta, abs=tolerance))
    np.testing.assert_allclose(d.sigma_local, made.sigma_local, rtol=tolerance)
    np.testing.assert_allclose(d.sigma_cls, made.sigma_cls, rtol=tolerance)
    for s in range(3):
        v = plain_descriptors(queries, head, d.assignment, s)
        scores = head.scores(queries, replica=s)
        assert scores.dtype == np.dtype(dtype)
        np.testing.assert_allclose(scores, plain.scores(v, queries.cls, s), atol=tolerance)


def test_both_assignments_and_several_carriers_are_reached_above():
    made = {(h.decisions.assignment, h.decisions.carrier) for h in
            (fit(world(20 + s, seed=s, noise=0.1 + 0.15 * s), SPEC) for s in range(6))}  # fmt: skip
    assert {a for a, _ in made} == {"hard", "soft"}
    assert {m for _, m in made} >= {"partial", "adaptive"}


@pytest.mark.parametrize("carrier", ["original", "partial", "adaptive"])
@pytest.mark.parametrize("assignment", ["hard", "soft"])
@pytest.mark.parametrize("admit", [True, False])
def test_every_head_compiles_to_one_vector(carrier, assignment, admit):
    tokens, queries = world(), seen_again(world())
    fitted = fit(tokens, SPEC, dtype="float64")
    decisions = dataclasses.replace(
        fitted.decisions, carrier=carrier, assignment=assignment, admit_cls=admit, c=0.4, beta=0.3
    )
    head = assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))
    for replica in (0, 2, "ensemble"):
        compiled = head.compile(replica)
        scores = compiled.query(queries) @ compiled.database.T + compiled.bias
        np.testing.assert_allclose(scores, head.scores(queries, replica), atol=1e-9)
    pca = reference.Pca.fit(plain_descriptors(tokens, head, assignment, 1))
    v, d = (plain_descriptors(t, head, assignment, 1) for t in (queries, tokens))
    expected = pca.carrier(carrier, v, d, 0.4, 0.3)
    if admit:
        cosine = reference.l2(queries.cls) @ reference.l2(tokens.cls).T
        expected = (expected / decisions.sigma_local[1] + cosine / decisions.sigma_cls[1]) / 2
    np.testing.assert_allclose(head.scores(queries, 1), expected, atol=1e-9)


def test_ensemble_is_the_sum_of_the_replicas():
    tokens, queries = world(), seen_again(world())
    head = fit(tokens, SPEC, dtype="float64")
    total = sum(head.scores(queries, s) for s in range(3))
    np.testing.assert_allclose(head.scores(queries, "ensemble"), total, atol=1e-12)


def test_scores_do_not_depend_on_what_else_is_asked():
    tokens = world(30)
    queries = seen_again(world(30), noise=0.4)
    head = fit(tokens, SPEC)
    together = head.scores(queries)
    order = np.random.default_rng(0).permutation(30)
    np.testing.assert_array_equal(head.scores(queries.select(order)), together[order])
    alone = np.concatenate([head.scores(queries.select([i])) for i in range(30)])
    np.testing.assert_array_equal(alone, together)


@given(st.integers(0, 50))
@settings(max_examples=8, deadline=None)
def test_permuting_the_database_permutes_the_answer_when_words_are_given(seed):
    """The halves and the k-means draw depend on order; with given words and fixed decisions scores must not."""
    tokens, queries = world(12, seed=seed), seen_again(world(12, seed=seed))
    centers = [reference.l2(np.random.default_rng(s).normal(size=(5, 6))) for s in range(3)]
    order = np.random.default_rng(seed).permutation(12)
    one = fit(tokens, centers=centers, dtype="float64")
    other = fit(tokens.select(order), centers=centers, dtype="float64")
    decisions = dataclasses.replace(one.decisions, carrier="partial", admit_cls=False)
    scores = [assemble(h, decisions, h.evidence, backend_for("cpu")).scores(queries) for h in (one, other)]
    np.testing.assert_allclose(scores[1], scores[0][:, order], atol=1e-9)


def test_a_duplicate_database_image_ties_and_the_smaller_index_wins():
    tokens = world(20)
    doubled = tokens.select([*range(20), 3, 7, 3])
    head = fit(doubled, SPEC)
    queries = seen_again(tokens)
    scores = head.scores(queries)
    np.testing.assert_array_equal(scores[:, 3], scores[:, 20])
    np.testing.assert_array_equal(scores[:, 3], scores[:, 22])
    indices, _ = head.search(queries.select([3]), k=3)
    assert indices[0].tolist() == [3, 20, 22]


def test_search_ranks_and_breaks_ties():
    head = fit(world(10), SPEC)
    indices, scores = head.search(world(10), k=4)
    assert indices.dtype == np.int64
    assert indices[:, 0].tolist() == list(range(10))
    assert (np.diff(scores, axis=1) <= 0).all()
    assert head.search(world(10), k=99)[0].shape == (10, 10)
    assert head.search(Tokens(np.empty((0, 12, 6)), np.empty((0, 6))))[0].shape == (0, 10)


def test_sampled_pca_has_the_same_interface_and_the_plain_numbers():
    whole = world(40, noise=0.5)  # without global tokens: the local score is all there is
    tokens, queries = (Tokens(np.asarray(t.patches)) for t in (whole, seen_again(whole)))
    spec = HeadSpec(words=6, max_pca=30, pca_sample=20, max_pseudo=15)
    head = fit(tokens, spec, dtype="float64")
    sample = np.sort(np.random.default_rng(0).permutation(40)[:20])
    branch = head.branches["soft", 1]
    np.testing.assert_array_equal(branch.split.anchors, sample)
    np.testing.assert_array_equal(branch.split.pseudo, np.sort(np.random.default_rng(0).permutation(40)[:15]))
    v = plain_descriptors(tokens, head, "soft", 1)
    pca = reference.Pca.fit(v[sample])
    np.testing.assert_allclose(branch.features(0.5) @ branch.features(0.5).T, pca.whitened(v, v, 0.5), atol=1e-9)
    one, two = np.random.default_rng(0).permutation(40)[0::2], np.random.default_rng(0).permutation(40)[1::2]
    moved = np.linalg.norm(v[one].mean(axis=0) - v[two].mean(axis=0)) / np.linalg.norm(v[sample].mean(axis=0))
    assert branch.half_displacement == pytest.approx(moved)
    chosen = head.branches[head.decisions.assignment, 0]
    q = plain_descriptors(queries, head, head.decisions.assignment, 0)
    d = plain_descriptors(tokens, head, head.decisions.assignment, 0)
    expected = reference.Pca.fit(d[sample]).carrier(head.decisions.carrier, q, d, head.decisions.c, head.decisions.beta)
    np.testing.assert_allclose(head.scores(queries), expected, atol=1e-9)
    assert chosen.split.images == 40


def test_a_sample_as_large_as_the_database_changes_nothing():
    tokens = world(20)
    whole = fit(tokens, HeadSpec(words=6), dtype="float64")
    sampled = fit(tokens, HeadSpec(words=6, max_pca=19, pca_sample=20), dtype="float64")
    np.testing.assert_allclose(sampled.scores(tokens), whole.scores(tokens), atol=1e-9)


def test_evidence_is_json_with_reasons_in_words():
    evidence = json.loads(json.dumps(fit(world(), SPEC).evidence.to_dict()))
    assert set(evidence["assignments"]) == {"hard", "soft"}
    assert {"c", "beta", "rho", "alpha", "participation"} <= set(evidence["assignments"]["soft"])
    assert len(evidence["assignments"]["hard"]["rho"]) == 3
    for name in ("hard/original", "hard/partial", "hard/adaptive", "soft/original", "soft/partial", "soft/adaptive"):
        assert 1 <= evidence["candidates"][name]["support"] <= 24
        assert len(evidence["candidates"][name]["agreement"]) == 3
    assert set(evidence["reasons"]) == {"assignment", "strengths", "admit_cls", "carrier"}
    assert all(len(reason) > 20 for reason in evidence["reasons"].values())


def test_a_head_says_what_it_saw():
    head = fit(world(), SPEC)
    assert head.data_used == "database"
    assert {b.geometry.data_used for b in head.branches.values()} == {"database"}


def test_twins_of_one_construction_only_are_no_twins_of_the_ensemble():
    tokens = world(12)
    centers = [reference.l2(np.random.default_rng(s).normal(size=(4, 6))) for s in range(3)]
    patches = np.asarray(tokens.patches).copy()
    patches[3], patches[8] = centers[0][1], centers[0][2]  # blank under construction 0, and only there
    fitted = fit(Tokens(patches), centers=centers, dtype="float64")
    decisions = dataclasses.replace(fitted.decisions, assignment="hard", carrier="original")
    head = assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))
    assert head.scorer(0).duplicates is not None
    queries = Tokens(patches)
    np.testing.assert_allclose(
        head.scores(queries, "ensemble"), sum(head.scores(queries, s) for s in range(3)), atol=1e-12
    )

"""The plain target-calibrated controller as a whole, on small worlds."""

import functools

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.reference import database as reference
from tfa.reference import target as plain


def described(tokens: Tokens, vocabularies):
    """Descriptors and masses of both assignments in every construction."""
    v, mass = {}, {}
    for a in plain.ASSIGNMENTS:
        both = [[reference.residual_descriptor(p, c, a, 0.05) for p in tokens.patches] for c in vocabularies]
        v[a], mass[a] = ([np.stack([image[k] for image in images]) for images in both] for k in (0, 1))
    return v, mass


def vocabularies_of(tokens: Tokens):
    patches = reference.l2(np.concatenate(list(tokens.patches)))
    return [reference.kmeans(patches, 6, s) for s in range(3)]


@functools.cache
def made(seed, noise, shift, cls=True):
    """A head calibrated on ten of sixteen places seen again, with the descriptors and tokens of the ten."""
    database = world(16, seed=seed, noise=noise)
    target = seen_again(Tokens(database.patches[:10], database.cls[:10]), noise=shift)
    vocabularies = vocabularies_of(database)
    v, mass = described(database, vocabularies)
    target_v, target_mass = described(target, vocabularies)
    tokens = (database.cls, target.cls) if cls else (None, None)
    return plain.calibrate(v, mass, target_v, target_mass, *tokens), target_v, tokens[1]


# Worlds that take every route and both decisions about the global token.
WORLDS = [(1, 0.3, 0.15), (0, 0.3, 0.8), (7, 0.6, 0.6), (5, 0.3, 0.8)]
CASES = [WORLDS[0], *(pytest.param(of, marks=pytest.mark.slow) for of in WORLDS[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("of", CASES)
def test_a_small_world(of):
    head, target, cls = made(*of)
    assert set(head.strengths) == ({"hard", "soft"} if head.route == "mixture" else {head.route})
    assert set(head.rho) == set(head.alpha) == set(head.displacement) == set(head.strengths)
    for c, beta in head.strengths.values():
        assert 0 <= c <= 1
        assert 0 <= beta <= 1
    for b in "lg":
        assert min(head.B[b], head.J[b], head.H[b], head.Q[b]) >= 0
        assert max(head.J[b], head.H[b]) <= 1
    assert head.capacity_interval[0] <= head.capacity_interval[1]
    for r, m in head.relation_median.items():
        assert head.relation_interval[r][0] <= m <= head.relation_interval[r][1]
    assert list(head.candidates) == list(plain.CARRIERS)
    assert 0 <= head.local_weight <= 1
    hits = [head.scores(plain.at(target, s), cls, s).argmax(axis=1) == np.arange(10) for s in range(3)]
    assert np.mean(hits) > 3 / 16  # the same places, seen again: far better than chance


@pytest.mark.slow
def test_the_small_worlds_take_every_route():
    heads = [made(*of)[0] for of in WORLDS]
    assert {head.route for head in heads} == {"hard", "soft", "mixture"}
    assert {head.admit_cls for head in heads} == {True, False}


@pytest.mark.parametrize("of", CASES)
def test_the_final_score_is_the_carrier_or_the_weighted_sum(of):
    head, target, cls = made(*of)
    for s in range(3):
        v = plain.at(target, s)
        local = head.local.scores(head.carrier, v, plain.at(head.database, s), s)
        expected = local
        if head.admit_cls:
            similar = reference.l2(cls) @ reference.l2(head.cls).T
            share = head.Q["l"] / (head.Q["l"] + head.Q["g"])
            expected = share * local / head.sigma_local[s] + (1 - share) * similar / head.sigma_cls[s]
        np.testing.assert_allclose(head.scores(v, cls, s), expected, atol=1e-12)


@pytest.mark.slow
def test_without_global_tokens_they_are_refused():
    head, _, _ = made(1, 0.3, 0.15, cls=False)
    assert not head.admit_cls
    assert head.sigma_cls == [0, 0, 0]
    assert (head.Q["g"], head.local_weight) == (0, 1)


def test_the_mixture_mixes_scores_of_both_assignments():
    tokens = world(12)
    database, _ = described(tokens, vocabularies_of(tokens))
    pcas = {a: [reference.Pca.fit(d) for d in ds] for a, ds in database.items()}
    d, q = plain.at(database, 1), {a: ds[1][:5] for a, ds in database.items()}
    strengths = {"hard": (0.2, 0.1), "soft": (0.6, 0.4)}
    for carrier in plain.CARRIERS:
        mixed = plain.Local(0.3, strengths, pcas).scores(carrier, q, d, 1)
        hard, soft = (pcas[a][1].carrier(carrier, q[a], d[a], *strengths[a]) for a in plain.ASSIGNMENTS)
        np.testing.assert_allclose(mixed, 0.7 * hard + 0.3 * soft, atol=1e-12)


def test_calibration_images_like_the_database_whiten_fully_and_centre_nothing():
    # Calibration images that are the database transfer perfectly and move no mean: ρ = 1, so c = 1 and β = 0.
    v = [reference.l2(np.random.default_rng(s).normal(size=(12, 5)) * [3, 2, 1, 1, 0.5] + 1) for s in range(3)]
    strengths = plain.transfer_strengths(v, v, [reference.Pca.fit(x) for x in v])
    assert strengths.rho == pytest.approx([1, 1, 1])
    assert strengths.displacement == pytest.approx([0, 0, 0], abs=1e-12)
    assert (strengths.c, strengths.beta) == (pytest.approx(1), pytest.approx(0, abs=1e-12))

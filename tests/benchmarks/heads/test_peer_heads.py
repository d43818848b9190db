"""Pooled tokens, TF-VPR and RIA against plain loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.benchmarks.heads.plain import TOKENS, card, unit, unit_patches
from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.method.vocabulary import sample_patches
from tfa_bench.heads.contract import ONLY, Photos, Shared
from tfa_bench.heads.peers import pooled, tfvpr
from tfa_bench.heads.vectors import content_order, join_tokens, random_start

# Pooling


def test_generalized_mean_keeps_the_sign():
    patches = np.array([[0.6, -0.8], [1.0, 0.0]])
    cubes = [(0.216 + 1) / 2, -0.512 / 2]
    expected = unit([cubes[0] ** (1 / 3), -(abs(cubes[1]) ** (1 / 3))])
    np.testing.assert_allclose(pooled.generalized_mean(patches), expected)


def test_mean_is_of_unit_patches():
    head = card(pooled, "mean").fit(Photos(Tokens(np.array([[[10.0, 0.0], [0.0, 0.1]]]))), Shared())
    np.testing.assert_allclose(head.gallery[ONLY], [[math.sqrt(0.5)] * 2], atol=1e-6)


def test_the_global_token_is_compared_by_cosine():
    head = card(pooled, "cls").fit(Photos(TOKENS), Shared())
    units = np.array([unit(token) for token in TOKENS.cls])
    np.testing.assert_allclose(head.scores(Photos(TOKENS), ONLY), units @ units.T, atol=1e-6)


@pytest.mark.parametrize(("module", "name"), [(pooled, "cls"), (tfvpr, "tfvpr"), (tfvpr, "tfvpr-transductive")])
def test_a_missing_global_token_is_named(module, name):
    with pytest.raises(BadTokens, match=r"global \(CLS\) token"):
        card(module, name).fit(Photos(Tokens(TOKENS.patches)), Shared())


@pytest.mark.parametrize(("module", "name"), [(pooled, "cls"), (pooled, "mean"), (tfvpr, "tfvpr"), (pooled, "ria")])
def test_queries_of_another_encoder_are_refused(module, name):
    head = card(module, name).fit(Photos(TOKENS), Shared())
    with pytest.raises(ChannelMismatch, match=r"6 channels.* 5"):
        head.scores(Photos(world()), head.replicas[0])


# TF-VPR


def plain_softmax(values):
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def plain_tfvpr(patches, token, directions, alpha):
    smoothed = []
    for patch in patches:
        similar = [float(patch @ other) for other in patches]
        kept = sorted(range(len(patches)), key=lambda j: -similar[j])[:8]
        weights = plain_softmax([similar[j] for j in kept])
        around = sum(weight * patches[j] for weight, j in zip(weights, kept, strict=True))
        smoothed.append(unit(0.8 * patch + 0.2 * around))
    gathered = np.zeros(directions.shape)
    for patch in smoothed:
        for k, weight in enumerate(plain_softmax([alpha * float(center @ patch) for center in directions])):
            gathered[k] += weight * patch
    return unit(np.concatenate([unit(token), *[unit(block) for block in gathered]]))


def test_tfvpr_descriptors_equal_the_plain_loop():
    directions = np.array([unit(row) for row in np.random.default_rng(4).normal(size=(16, 5))])
    described = tfvpr.describe_attention(TOKENS, tfvpr.Attention(directions.astype(np.float32), 7.5))
    for image in range(len(TOKENS)):
        expected = plain_tfvpr(unit_patches(image), TOKENS.cls[image], directions, 7.5)
        np.testing.assert_allclose(described[image], expected, atol=1e-6)


def test_tfvpr_has_seventeen_blocks_of_equal_norm():
    head = card(tfvpr, "tfvpr").fit(Photos(TOKENS), Shared())
    blocks = head.gallery[ONLY].reshape(len(TOKENS), 17, 5)
    np.testing.assert_allclose(np.linalg.norm(blocks, axis=2), 1 / math.sqrt(17), atol=1e-6)


def test_the_second_centre_has_a_hundredth_of_the_weight_at_the_mean_gap():
    directions = np.eye(3)[:2]
    patches = np.array([[0.8, 0.6, 0.0], [0.6, 0.8, 0.0], [1.0, 0.0, 0.0]])
    alpha = tfvpr.sharpness(patches, directions)
    assert alpha == pytest.approx(-math.log(0.01) / ((0.2 + 0.2 + 1.0) / 3))
    assert tfvpr.sharpness(patches, np.ones((4, 3))) == 0


def test_lloyd_restarts_an_empty_cluster_at_the_farthest_point():
    corners = np.repeat(np.eye(4), 5, axis=0)
    start = corners[random_start(len(corners), 4, tfvpr.SEED)]
    assert len({tuple(center) for center in start}) < 4  # two centres start as one, so a cluster is empty at once
    assert {tuple(center) for center in tfvpr.lloyd(corners, 4)} == {tuple(corner) for corner in np.eye(4)}


def test_lloyd_ends_at_a_fixed_point():
    points = sample_patches(world(noise=0.6), 10_000, "float64")
    centers = tfvpr.lloyd(points, 6)
    nearest = np.array([np.argmin([((point - center) ** 2).sum() for center in centers]) for point in points])
    for k, center in enumerate(centers):
        np.testing.assert_allclose(center, points[nearest == k].mean(axis=0), atol=1e-9)


def test_transductive_centres_see_both_sides_whatever_their_order():
    one, other = world(), seen_again(world(seed=7))
    both, turned = join_tokens(one, other), join_tokens(other, one)
    assert len(both) == len(one) + len(other)
    first, second = (tfvpr.fit_attention(tokens, content_order(tokens)) for tokens in (both, turned))
    np.testing.assert_array_equal(first.directions, second.directions)
    assert first.alpha == second.alpha
    alone = tfvpr.fit_attention(one, content_order(one))
    assert not np.array_equal(alone.directions, first.directions)


def test_transductive_is_the_database_head_until_it_is_calibrated():
    database, shared = Photos(TOKENS), Shared()
    plain, transductive = (card(tfvpr, name).fit(database, shared) for name in ("tfvpr", "tfvpr-transductive"))
    np.testing.assert_array_equal(plain.scores(database, ONLY), transductive.scores(database, ONLY))
    assert transductive.calibrate(Photos(seen_again(TOKENS))).data_used == "target"


# RIA


def test_the_projection_is_orthonormal_and_no_wider_than_the_tokens():
    np.testing.assert_allclose(pooled.projection(40, 8, 0).T @ pooled.projection(40, 8, 0), np.eye(8), atol=1e-12)
    assert pooled.projection(5, 128, 0).shape == (5, 5)


@pytest.mark.parametrize(("name", "of_spectrum"), [("ria", "log"), ("ria-power", "sqrt")])
def test_ria_scores_are_cosines_of_mapped_covariances_for_three_seeds(name, of_spectrum):
    head = card(pooled, name).fit(Photos(TOKENS), Shared())
    assert head.replicas == ("0", "1", "42")
    columns = pooled.projection(5, 128, 42)
    mapped = []
    for image in range(len(TOKENS)):
        spread, vectors = np.linalg.eigh(
            np.cov((unit_patches(image) @ columns).T) + pooled.COVARIANCE_RIDGE * np.eye(5)
        )
        mapped.append(vectors @ np.diag(pooled.MAPS[of_spectrum](spread)) @ vectors.T)
    expected = [[np.trace(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)) for b in mapped] for a in mapped]
    np.testing.assert_allclose(head.scores(Photos(TOKENS), "42"), expected, atol=1e-4)


@pytest.mark.slow
def test_ria_seeds_project_differently():
    wide = world(images=4, patches=20, channels=160)
    head = card(pooled, "ria-power").fit(Photos(wide), Shared())
    assert head.gallery["0"].shape == (4, 128 * 129 // 2)
    assert not np.allclose(head.scores(Photos(wide), "0"), head.scores(Photos(wide), "1"), atol=1e-6)

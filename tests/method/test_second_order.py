"""Second-order descriptors against the plain formulas, their invariances and their edge cases."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import seen_again, world
from tfa.core import arrays
from tfa.core.arrays import Spill
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method import second_order
from tfa.method.second_order import (
    COVARIANCE_RIDGE,
    choose_images,
    covariance,
    describe_second_order,
    descriptor_width,
    find_leading_directions,
    fit_directions,
    from_half_vector,
    half_vector,
    spectral_map,
)
from tfa.reference import second_order as reference

ALL = 1_000_000  # patches: no sample
# float32 keeps the patches to 6e-8; log C of a direction with little spread is the ridge's, so that is what 1e-5 of C
# and 12 of log C can make of it.
FLOAT32 = 2e-5


def described(tokens, directions, dtype="float64"):
    return describe_second_order(tokens, [directions], dtype=dtype)[0]


def ragged(counts=(9, 4, 1, 9, 30, 2, 17, 9, 12), channels=6, seed=0):
    rng = np.random.default_rng(seed)
    return Tokens([rng.normal(size=(n, channels)) + rng.normal(size=channels) for n in counts])


# --- Directions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_patches", [ALL, 60])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_directions_equal_the_plain_formula(dtype, tolerance, max_patches, monkeypatch):
    monkeypatch.setattr(second_order, "_BLOCK", 20)  # several blocks of each pattern
    tokens = ragged()
    fitted = fit_directions(tokens, max_patches, dtype=dtype)
    assert len(fitted) == 3
    for s, directions in enumerate(fitted):
        assert directions.dtype == np.float64
        expected = reference.directions(list(tokens.patches), s, max_patches)
        np.testing.assert_allclose(directions, expected, atol=tolerance)


def test_constructions_use_halves_by_hand():
    for s in range(3):
        half = choose_images(9, s)
        assert half.tolist() == sorted(np.random.default_rng(s).permutation(9).tolist()[:5])
        assert choose_images(7, s).tolist() == list(range(7))
        assert len(choose_images(8, s)) == 4
    # Nine images, each with a direction of its own: a construction finds those of its five images.
    patches = np.zeros((9, 2, 9))
    for image in range(9):
        patches[image, :, image] = 1, -1
    for s, directions in enumerate(fit_directions(Tokens(patches), ALL)):
        used = directions[:5][:, choose_images(9, s)]
        np.testing.assert_allclose(used @ used.T, np.eye(5), atol=1e-6)


def test_few_images_give_the_same_directions_in_every_construction():
    one, two, three = fit_directions(world(images=7), ALL)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


def test_directions_are_orthonormal_and_their_largest_entry_is_positive():
    for directions in fit_directions(world(images=20, patches=30, channels=150), ALL):
        assert directions.shape == (128, 150)
        np.testing.assert_allclose(directions @ directions.T, np.eye(128), atol=1e-12)
        assert (np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1) > 0).all()


def test_sign_rule_and_order_by_hand():
    # Largest eigenvalue 5 along (3, 4)/5, then 1 along (4, −3)/5.
    u, v = np.array([0.6, 0.8]), np.array([0.8, -0.6])
    found = find_leading_directions(5 * np.outer(u, u) + np.outer(v, v))
    np.testing.assert_allclose(found, [u, v], atol=1e-12)
    np.testing.assert_allclose(find_leading_directions(5 * np.outer(u, u) + np.outer(v, v), 1), [u], atol=1e-12)


@pytest.mark.parametrize("max_patches", [1, 2])
def test_a_construction_without_a_drawn_patch_still_has_directions(max_patches):
    for directions in fit_directions(world(images=12), max_patches):
        np.testing.assert_allclose(directions @ directions.T, np.eye(6), atol=1e-12)


def test_directions_do_not_depend_on_the_number_of_cores(monkeypatch):
    monkeypatch.setattr(second_order, "_BLOCK", 20)
    tokens, found = ragged(), []
    for cores in (1, 3):
        monkeypatch.setattr(arrays, "count_cores", lambda cores=cores: cores)
        monkeypatch.setattr(second_order, "count_cores", lambda cores=cores: cores)
        found.append(fit_directions(tokens, ALL))
    np.testing.assert_array_equal(found[0], found[1])


# --- Descriptors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", FLOAT32)])
@pytest.mark.parametrize("tokens", [world(noise=0.5), ragged(), world(images=3, patches=40, channels=140)])
def test_descriptors_equal_the_plain_formula(tokens, dtype, tolerance):
    directions = fit_directions(tokens, ALL)
    found = describe_second_order(tokens, directions, dtype=dtype)
    for s, one in enumerate(directions):
        assert found[s].dtype == dtype
        assert found[s].shape == (len(tokens), descriptor_width(min(128, tokens.channels)))
        for image, patches in enumerate(tokens.patches):
            np.testing.assert_allclose(found[s][image], reference.descriptor(patches, one), atol=tolerance)


def test_hand_computed_two_patches():
    # Unit patches e1, e2: minus their mean ±(1, −1)/2, so C = ½ [[1, −1], [−1, 1]] + ε I with eigenvalues 1 + ε and ε.
    found = described(Tokens(np.array([[[5.0, 0], [0, 0.2]]])), np.eye(2))[0]
    large, small = math.log(1 + COVARIANCE_RIDGE), math.log(COVARIANCE_RIDGE)
    matrix = np.array([[large + small, small - large], [small - large, large + small]]) / 2
    expected = np.array([matrix[0, 0], math.sqrt(2) * matrix[0, 1], matrix[1, 1]])
    np.testing.assert_allclose(found, expected / np.linalg.norm(matrix), atol=1e-12)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 50))
@settings(max_examples=25, deadline=None)
def test_order_and_length_of_patches_do_not_matter(seed, scale):
    rng = np.random.default_rng(seed)
    patches, directions = rng.normal(size=(9, 6)), np.linalg.qr(rng.normal(size=(6, 4)))[0].T
    lengths = scale * rng.uniform(0.5, 2, (9, 1))
    one, other = described(Tokens([patches, (lengths * patches)[rng.permutation(9)]]), directions)
    np.testing.assert_allclose(one, other, atol=1e-9)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_scores_do_not_depend_on_the_axes_of_the_directions(seed):
    """log(R C Rᵀ) = R log C Rᵀ: only what the directions span matters to an inner product."""
    rng = np.random.default_rng(seed)
    tokens, directions = Tokens(rng.normal(size=(3, 9, 6))), np.linalg.qr(rng.normal(size=(6, 4)))[0].T
    turned = np.linalg.qr(rng.normal(size=(4, 4)))[0] @ directions
    one, other = described(tokens, directions), described(tokens, turned)
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-9)


def test_bits_depend_neither_on_neighbours_nor_on_cores_nor_on_other_constructions(monkeypatch):
    tokens = Tokens([*ragged(channels=40).patches] * 5)
    directions = fit_directions(tokens, ALL)
    together = describe_second_order(tokens, directions)
    for image in (0, 4, 31, 44):
        alone = describe_second_order(tokens.select([image]), directions)
        for s in range(3):
            np.testing.assert_array_equal(together[s][image], alone[s][0])
    np.testing.assert_array_equal(described(tokens, directions[1], "float32"), together[1])
    monkeypatch.setattr(arrays, "count_cores", lambda: 1)
    np.testing.assert_array_equal(describe_second_order(tokens, directions), together)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("patches", [np.full((1, 6), 0.3), np.tile([3.0, 1, 0, 2, 7, 1], (9, 1)), np.zeros((4, 6))])
def test_images_without_spread_are_the_ridge(patches, dtype):
    # C = ε I, log C = log ε · I: −1/√m on the diagonal.
    found = described(Tokens([patches]), np.eye(6), dtype)[0]
    np.testing.assert_allclose(found, half_vector(-np.eye(6) / math.sqrt(6)), atol=1e-6)


def test_identical_images_have_identical_descriptors():
    one = world(images=1).patches[0]
    tokens = Tokens([one] * 9)
    for rows in describe_second_order(tokens, fit_directions(tokens, ALL)):
        assert np.isfinite(rows).all()
        assert (rows == rows[0]).all()


@pytest.mark.parametrize("images", [1, 2])
def test_one_and_two_images(images):
    tokens = world(images=images)
    for rows in describe_second_order(tokens, fit_directions(tokens, ALL)):
        assert rows.shape == (images, 21)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_half_precision_tokens_and_spilled_rows_are_the_same_numbers():
    tokens = world(noise=0.5)
    halves = Tokens(np.asarray(tokens.patches, np.float16))
    directions = fit_directions(halves, ALL)
    wide = Tokens(np.asarray(halves.patches, np.float32))
    np.testing.assert_array_equal(fit_directions(wide, ALL), directions)
    spilled = describe_second_order(halves, directions, spill=Spill(0))
    assert all(isinstance(rows, np.memmap) for rows in spilled)
    np.testing.assert_array_equal(spilled, describe_second_order(wide, directions))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_values_that_are_not_finite_name_the_image(bad, dtype):
    patches = np.ones((3, 2, 4), dtype)
    patches[1, 0, 2] = bad
    tokens = Tokens(patches, names=["first.jpg", "second.jpg", "third.jpg"])
    with pytest.raises(BadTokens, match=r"second\.jpg"):
        fit_directions(tokens, ALL)
    with pytest.raises(BadTokens, match=r"second\.jpg"):
        describe_second_order(tokens, [np.eye(4)])


def test_no_images():
    with pytest.raises(BadTokens, match="no patches"):
        fit_directions(Tokens([]), ALL)
    assert describe_second_order(Tokens([]), [np.eye(4)])[0].shape == (0, 10)


# --- Matrices and half-vectors ---------------------------------------------------------------------------


def test_covariance_is_of_patches_and_a_single_patch_has_none():
    centred = world().patches[0] - world().patches[0].mean(axis=0)
    np.testing.assert_allclose(covariance(centred), np.cov(centred.T) + COVARIANCE_RIDGE * np.eye(6), atol=1e-12)
    np.testing.assert_allclose(covariance(np.zeros((1, 3))), COVARIANCE_RIDGE * np.eye(3))


def test_maps_of_known_matrices():
    np.testing.assert_allclose(spectral_map(np.eye(4), np.log), np.zeros((4, 4)), atol=1e-12)
    np.testing.assert_allclose(spectral_map(np.diag([math.e, 4.0]), np.log), np.diag([1, math.log(4)]), atol=1e-12)
    matrix = np.cov(world().patches[0].T)
    root = spectral_map(matrix, np.sqrt)
    np.testing.assert_allclose(root @ root, matrix, atol=1e-12)


def test_half_vectors_have_the_inner_product_of_their_matrices_and_lead_back():
    one, other = (np.cov(world().patches[i].T) for i in (0, 1))
    assert len(half_vector(one)) == descriptor_width(6) == 21
    assert half_vector(one) @ half_vector(other) == pytest.approx(np.trace(one @ other))
    np.testing.assert_allclose(from_half_vector(half_vector(one)), one, atol=1e-15)
    for size in (1, 2, 127, 128, 300):
        assert from_half_vector(np.zeros(descriptor_width(size))).shape == (size, size)


# --- What it is for --------------------------------------------------------------------------------------


def test_places_are_found_when_every_patch_moves_the_same_way():
    """A shift common to all patches of the queries, as of season or light, is not what they are recognised by."""
    database = world(images=20, patches=60, channels=12, noise=0.1)
    queries = Tokens(np.asarray(seen_again(database, noise=0.1).patches) + np.linspace(-0.4, 0.4, 12))
    for directions in fit_directions(database, ALL):
        scores = described(queries, directions) @ described(database, directions).T
        assert (scores.argmax(axis=1) == np.arange(20)).mean() >= 0.9

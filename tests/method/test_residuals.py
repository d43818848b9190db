"""Residual descriptors against the plain formula, and where it has corners."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worlds import world
from tfa.core.arrays import Spill, backend_for, to_numpy
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method import residuals
from tfa.method.residuals import ASSIGNMENT_KINDS, describe_batch, describe_residuals, hard_weights, soft_weights
from tfa.reference import database as reference

CPU = backend_for("cpu")


def described(tokens, centers, assignment, dtype="float64", device="cpu", temperature=0.01):
    return describe_residuals(tokens, [centers], [assignment], temperature, backend_for(device), dtype=dtype)[
        assignment, 0
    ]


def unit_centers(words=8, channels=6, seed=20_000):  # no seed of a test below: words must not be patches
    return reference.l2(np.random.default_rng(seed).normal(size=(words, channels)))


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("assignment", ASSIGNMENT_KINDS)
def test_equals_the_plain_formula(assignment, dtype, tolerance, device):
    tokens, centers = world(noise=0.5), unit_centers()
    fast = described(tokens, centers, assignment, dtype, device)
    for image, patches in enumerate(tokens.patches):
        v, norms = reference.residual_descriptor(patches, centers, assignment, 0.01)
        np.testing.assert_allclose(fast.descriptors[image], v, atol=tolerance)
        np.testing.assert_allclose(fast.mass[image], norms, atol=tolerance * 20, rtol=tolerance)


def test_hand_computed_four_patches():
    # Words e1, e2. Patches e1, e1, (e1+e2)/√2 (a tie: the first word wins), e2.
    h = np.sqrt(0.5)
    tokens = Tokens(np.array([[[2.0, 0], [1, 0], [1, 1], [0, 3]]]))
    fast = described(tokens, np.eye(2), "hard")
    # Block 1: only (h, h) − e1 remains; block 2: e2 − e2 = 0 stays zero.
    expected = np.array([h - 1, h]) / np.hypot(h - 1, h)
    np.testing.assert_allclose(fast.descriptors[0], [*expected, 0, 0], atol=1e-15)
    np.testing.assert_allclose(fast.mass[0], [np.hypot(h - 1, h), 0], atol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_patch_equal_to_its_word_leaves_nothing(dtype):
    centers = unit_centers(4, 6)
    tokens = Tokens(np.repeat(3.7 * centers[2], 9).reshape(6, 9).T[None].repeat(1, axis=0))
    fast = described(tokens, centers, "hard", dtype)
    assert not fast.descriptors.any()
    assert not fast.mass.any()


def test_faint_words_keep_their_direction_in_float32():
    """Weights of e^-190 are flushed by float32; the block must still be the unit vector the formula gives."""
    centers = np.array([[1.0, 0], [-0.95, np.sqrt(1 - 0.95**2)]])
    tokens = Tokens(np.array([[[1.0, 0.05], [1.0, -0.02]]]))
    v, _ = reference.residual_descriptor(tokens.patches[0], centers, "soft", 0.01)
    fast = described(tokens, centers, "soft", "float32")
    assert np.abs(v[2:]).max() > 0.3
    np.testing.assert_allclose(fast.descriptors[0], v, atol=1e-4)


def test_images_of_different_patch_counts_equal_one_by_one():
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(n, 6)) for n in (4, 4, 9, 1, 4)]
    together = described(Tokens(images), unit_centers(), "soft")
    for index, image in enumerate(images):
        alone = described(Tokens([image]), unit_centers(), "soft")
        np.testing.assert_array_equal(together.descriptors[index], alone.descriptors[0])


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 50))
@settings(max_examples=25, deadline=None)
def test_order_of_patches_and_their_length_do_not_matter(seed, scale):
    rng = np.random.default_rng(seed)
    patches = rng.normal(size=(11, 6))
    for assignment in ASSIGNMENT_KINDS:
        one = described(Tokens(patches[None]), unit_centers(), assignment)
        other = described(Tokens(scale * patches[rng.permutation(11)][None]), unit_centers(), assignment)
        np.testing.assert_allclose(one.descriptors, other.descriptors, atol=1e-9)
        norm = np.linalg.norm(one.descriptors)
        assert norm == pytest.approx(1) or norm == 0


def test_weights():
    similarity = np.array([[[0.3, 0.3, 0.1]]])
    np.testing.assert_array_equal(hard_weights(similarity)[0, 0], [1, 0, 0])
    weights, largest = soft_weights(similarity, 0.1)
    np.testing.assert_allclose(to_numpy(weights * largest).sum(), 1)
    np.testing.assert_allclose((weights * largest)[0, 0, 2] / (weights * largest)[0, 0, 0], np.exp(-2))


@pytest.mark.parametrize("patches", [1, 7, 40])
@pytest.mark.parametrize("words", [8, 5])
def test_all_six_in_one_pass_equal_each_alone(patches, words):
    tokens = Tokens(np.random.default_rng(5).normal(size=(4, patches, 6)))
    centers = [unit_centers(words, seed=s) for s in range(3)]
    together = describe_residuals(tokens, centers, ASSIGNMENT_KINDS, 0.01, CPU)
    assert set(together) == {(a, s) for a in ASSIGNMENT_KINDS for s in range(3)}
    for (assignment, s), one in together.items():
        alone = described(tokens, centers[s], assignment, "float32")
        np.testing.assert_array_equal(one.descriptors, alone.descriptors)
        np.testing.assert_array_equal(one.mass, alone.mass)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float32", 2e-6)])
def test_image_by_image_equals_the_formulas_for_batches(dtype, tolerance):
    patches, centers = (
        np.random.default_rng(1).normal(size=(5, 33, 6)).astype(dtype),
        [unit_centers(seed=s) for s in (1, 2)],
    )
    fast = describe_residuals(Tokens(patches), centers, ("soft", "hard"), 0.01, CPU, dtype=dtype)
    plain = describe_batch(patches, [center.astype(dtype) for center in centers], ASSIGNMENT_KINDS, 0.01)
    for key, (descriptors, norms) in plain.items():
        np.testing.assert_allclose(fast[key].descriptors, descriptors, atol=tolerance)
        np.testing.assert_allclose(fast[key].mass, norms, atol=40 * tolerance, rtol=tolerance)


def test_half_tokens_give_what_the_same_numbers_give_in_float32_every_time():
    halves = np.random.default_rng(2).normal(size=(3, 20, 6)).astype(np.float16)
    for assignment in ASSIGNMENT_KINDS:
        half, again = (described(Tokens(halves), unit_centers(), assignment, "float32") for _ in range(2))
        wide = described(Tokens(halves.astype(np.float32)), unit_centers(), assignment, "float32")
        np.testing.assert_array_equal(half.descriptors, wide.descriptors)
        np.testing.assert_array_equal(half.descriptors, again.descriptors)
        np.testing.assert_array_equal(half.mass, wide.mass)


def test_descriptors_in_a_mapped_file_equal_those_in_memory():
    tokens, centers = world(noise=0.5), [unit_centers(seed=s) for s in range(3)]
    memory = describe_residuals(tokens, centers, ASSIGNMENT_KINDS, 0.01, CPU, spill=Spill(1 << 30))
    mapped = describe_residuals(tokens, centers, ASSIGNMENT_KINDS, 0.01, CPU, spill=Spill(0))
    for key, one in memory.items():
        assert isinstance(mapped[key].descriptors, np.memmap)
        np.testing.assert_array_equal(one.descriptors, mapped[key].descriptors)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_names_its_image(value):
    patches = np.ones((3, 4, 6), np.float16)
    patches[2, 1, 0] = value
    with pytest.raises(BadTokens, match=r"image 2: .*non-finite"):
        described(Tokens(patches), unit_centers(), "soft", "float32")


@pytest.mark.parametrize("cores", [1, 3])
def test_descriptors_do_not_depend_on_the_number_of_cores(monkeypatch, cores):
    tokens = Tokens(np.random.default_rng(6).normal(size=(19, 60, 24)))
    centers = [np.ascontiguousarray(np.random.default_rng(s).normal(size=(8, 24))) for s in range(3)]
    here = describe_residuals(tokens, centers, ASSIGNMENT_KINDS, 0.01, CPU)
    monkeypatch.setattr(residuals, "count_cores", lambda: cores)
    for key, one in describe_residuals(tokens, centers, ASSIGNMENT_KINDS, 0.01, CPU).items():
        np.testing.assert_array_equal(one.descriptors, here[key].descriptors)
        np.testing.assert_array_equal(one.mass, here[key].mass)


def test_no_image_has_no_descriptor():
    fast = described(world().select(slice(0, 0)), unit_centers(), "hard")
    assert fast.descriptors.shape == (0, 48)

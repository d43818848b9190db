"""Vocabularies against plain Lloyd, and their edge cases."""

import tracemalloc

import numpy as np
import pytest

from tests.worlds import world
from tfa.core.arrays import backend_for, to_numpy
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.method.vocabulary import (
    Lloyd,
    ProductThreads,
    Start,
    fit_vocabularies,
    grid_patches,
    round_to_grid,
    sample_patches,
    squared_norms,
    unit_patches,
    wrap_vocabularies,
)
from tfa.reference import database as reference

CPU = backend_for("cpu")


def drawn(tokens, dtype="float32"):
    return sample_patches(tokens, 10_000, dtype, grid_patches)


def run_to_the_end(patches, words, threads):
    lloyd = Lloyd(patches, words, (0, 1, 2), CPU, threads)
    while lloyd.step():
        pass
    return lloyd


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize("seed", [0, 3])
def test_three_constructions_in_one_pass_equal_plain_lloyd(device, seed):
    patches = drawn(world(seed=seed, noise=0.4), "float64")
    for vocabulary in fit_vocabularies(patches, 8, backend_for(device)):
        expected = reference.kmeans(patches, 8, vocabulary.seed)
        np.testing.assert_allclose(to_numpy(vocabulary.centers), expected, atol=1e-12)
        assert vocabulary.data_used == "database"
        assert vocabulary.iterations > 1


def test_constructions_differ_by_their_seed_only():
    patches = drawn(world(noise=0.6))
    one, two, _ = fit_vocabularies(patches, 8, backend_for("cpu"))
    assert not np.allclose(one.centers, two.centers)
    again = fit_vocabularies(patches, 8, backend_for("cpu"), seeds=(1,))[0]
    np.testing.assert_array_equal(again.centers, two.centers)


def test_an_emptied_word_restarts_at_the_farthest_patch():
    # Two words start on the same patch (the k-means++ draw has no mass left), so one is empty at once.
    patches = np.repeat(np.eye(3), 4, axis=0)
    vocabulary = fit_vocabularies(patches, 5, backend_for("cpu"), seeds=(0,))[0]
    assert np.isfinite(vocabulary.centers).all()
    assert vocabulary.distortion == pytest.approx(0, abs=1e-12)
    found = {tuple(np.round(center, 6)) for center in vocabulary.centers}
    assert found == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


def test_zero_patches_and_one_word():
    patches = np.zeros((6, 4))
    assert fit_vocabularies(patches, 1, backend_for("cpu"), seeds=(0,))[0].centers.tolist() == [[0, 0, 0, 0]]


def test_sample_is_uniform_over_all_patches_sorted_and_repeatable():
    tokens = Tokens([np.full((n, 1), i + 1.0) * np.array([[1.0, i]]) for i, n in enumerate([3, 50, 7, 40])])
    sample = sample_patches(tokens, 20, "float64")
    assert sample.shape == (20, 2)
    everything = np.concatenate([reference.l2(p) for p in tokens.patches])
    chosen = np.sort(np.random.default_rng(0).choice(100, 20, replace=False, shuffle=False))
    np.testing.assert_allclose(sample, everything[chosen])


def test_sample_loads_one_image_at_a_time():
    class Lazy(list):
        loaded = 0
        shapes = [(5, 2)] * 4

        def __getitem__(self, index):
            Lazy.loaded += 1
            return np.ones((5, 2))

        def __len__(self):
            return 4

    tokens = Tokens.__new__(Tokens)
    tokens.patches, tokens.names, tokens.cls, tokens.depths = Lazy(), None, None, 1
    tokens.shapes = np.array(Lazy.shapes)
    sample_patches(tokens, 3)
    assert Lazy.loaded <= 3


def test_supplied_centers_are_used_as_given_and_checked():
    centers = [np.full((4, 2), s + 0.5) for s in range(3)]
    assert [v.centers[0, 0] for v in wrap_vocabularies(centers, 2)] == [0.5, 1.5, 2.5]
    with pytest.raises(BadSpec, match="three arrays"):
        wrap_vocabularies(centers[:2], 2)
    with pytest.raises(BadSpec, match="2 channels, the tokens 5"):
        wrap_vocabularies(centers, 5)
    with pytest.raises(BadSpec, match="non-finite"):
        wrap_vocabularies([*centers[:2], np.full((4, 2), np.nan)], 2)


def test_no_patches_is_an_error():
    with pytest.raises(BadTokens, match="no patches"):
        sample_patches(Tokens([]), 10)


@pytest.mark.parametrize("device", ["cpu", "torch"])
def test_the_start_knows_the_nearest_of_its_words(device):
    patches = drawn(world(noise=0.5), "float64")
    x, squared = backend_for(device).put(patches), (patches**2).sum(axis=1)
    with ProductThreads(2) as threads:
        start = Start(x, 7, (0, 1), squared, threads)
        words = to_numpy(start.draw())
    for s in range(2):
        distance = ((patches[:, None] - words[s][None]) ** 2).sum(axis=2)
        np.testing.assert_array_equal(start.labels[s], distance.argmin(axis=1))
        np.testing.assert_allclose(start.nearest[s], distance.min(axis=1), atol=1e-12)
        np.testing.assert_allclose(start.mass[s].sum(), distance.min(axis=1).sum())


class ShuffledThreads(ProductThreads):
    """Threads that take their parts in a random order."""

    def each(self, call, parts):
        super().each(call, np.random.default_rng(len(parts)).permutation(parts).tolist())


def fit_words(patches, threads):
    with threads:
        return run_to_the_end(patches, 8, threads)


@pytest.mark.parametrize("channels", [6, 384])
def test_blocks_threads_and_order_of_sums_change_no_bit(channels, monkeypatch):
    tokens = world(images=40, channels=channels, noise=0.6)
    patches = drawn(tokens)
    expected = fit_words(patches, ProductThreads(1))
    words = [vocabulary.centers for vocabulary in fit_vocabularies(patches, 8, CPU)]

    def same(lloyd, columns=slice(None)):
        np.testing.assert_array_equal(lloyd.means, expected.means[:, :, columns])
        np.testing.assert_array_equal(lloyd.labels, expected.labels)
        assert lloyd.distortion == expected.distortion

    for rows in (1024, 16, 7):  # products of other shapes run other kernels, which add in another order
        monkeypatch.setattr("tfa.method.vocabulary.ROWS", rows)
        monkeypatch.setattr("tfa.method.vocabulary.START_ROWS", rows + 4)
        monkeypatch.setattr("tfa.method.vocabulary.MOVED_ROWS", rows)
        for threads in (ProductThreads(1), ProductThreads(2), ShuffledThreads(4)):
            same(fit_words(patches, threads))
    order = np.random.default_rng(0).permutation(channels)  # every inner product adds its terms in another order
    same(fit_words(np.ascontiguousarray(patches[:, order]), ProductThreads(2)), order)
    same(fit_words(patches.astype(np.float64), ProductThreads(2)))  # nothing was rounded in float32
    for vocabulary, centers in zip(fit_vocabularies(patches[:, order].copy(), 8, CPU), words, strict=True):
        np.testing.assert_array_equal(vocabulary.centers, centers[:, order])
    for vocabulary, centers in zip(fit_vocabularies(patches, 8, backend_for("torch")), words, strict=True):
        np.testing.assert_array_equal(vocabulary.centers, centers)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_grid_patches_depend_on_no_library(dtype):
    patches = np.random.default_rng(0).normal(size=(9, 385)).astype(dtype)
    patches[4] = 0
    out = np.empty(patches.shape, np.float32)
    assert grid_patches(patches, out)
    np.testing.assert_array_equal(out, round_to_grid(out))
    np.testing.assert_allclose(out, reference.l2(patches.astype(np.float64)), atol=2.0**-12 + 1e-6)
    alone = np.empty_like(out)
    for row in range(9):  # other shapes, other memory layout
        assert grid_patches(np.asfortranarray(patches[row : row + 1]), alone[row : row + 1])
    np.testing.assert_array_equal(alone, out)
    patches[1, 3] = np.inf
    assert not grid_patches(patches, out)


def test_more_rows_than_a_block_are_all_assigned_and_summed(monkeypatch):
    patches = drawn(world(noise=0.5), "float64")
    monkeypatch.setattr("tfa.method.vocabulary.ROWS", 7)
    monkeypatch.setattr("tfa.method.vocabulary.START_ROWS", 11)
    monkeypatch.setattr("tfa.method.vocabulary.MOVED_ROWS", 3)
    for vocabulary in fit_vocabularies(patches, 6, CPU):
        np.testing.assert_allclose(vocabulary.centers, reference.kmeans(patches, 6, vocabulary.seed), atol=1e-12)


def test_where_no_patch_changes_its_word_running_on_changes_nothing(monkeypatch):
    monkeypatch.setattr("tfa.method.vocabulary.STOP_DECREASE", -1.0)  # only standing still stops
    patches = drawn(world(noise=0.3))
    with ProductThreads() as threads:
        lloyd = run_to_the_end(patches, 6, threads)
        centers, labels, distortion = lloyd.centers.copy(), lloyd.labels.copy(), list(lloyd.distortion)
        lloyd.active = [0, 1, 2]
        assert not lloyd.step()
    np.testing.assert_array_equal(lloyd.centers, centers)
    np.testing.assert_array_equal(lloyd.labels, labels)
    assert lloyd.distortion == pytest.approx(distortion, rel=1e-6)


def test_sums_do_not_drift_and_tell_the_distortion():
    patches = drawn(world(noise=0.9))
    with ProductThreads() as threads:
        lloyd = run_to_the_end(patches, 12, threads)
    for s in range(3):
        assert lloyd.iterations[s] > 3
        anew = np.stack([patches[lloyd.labels[s] == k].sum(axis=0, dtype=np.float64) for k in range(12)])
        np.testing.assert_allclose(lloyd.sums[s], anew, atol=2e-6 * len(patches) / 12)
        np.testing.assert_array_equal(lloyd.counts[s], np.bincount(lloyd.labels[s], minlength=12))
        # The words were moved after the last assignment, so they are nearer to their patches than it says.
        now = ((patches - lloyd.means[s][lloyd.labels[s]]) ** 2).sum(axis=1).mean()
        assert now * (1 - 1e-6) <= lloyd.distortion[s] <= now * (1 + 1e-3)


def test_the_patches_are_not_copied():
    patches = np.random.default_rng(0).normal(size=(8000, 256)).astype(np.float32)
    unit_patches(patches.copy(), patches)
    tracemalloc.start()
    fit_vocabularies(patches, 4, CPU)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < patches.nbytes / 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_unit_patches_of_any_dtype(dtype):
    patches = np.random.default_rng(0).normal(size=(5, 4)).astype(dtype)
    patches[2] = 0
    unit = np.empty((5, 4), np.float32)
    assert unit_patches(patches, unit)
    np.testing.assert_allclose(unit, reference.l2(patches.astype(np.float64)), atol=1e-6)
    for value in (np.nan, np.inf, -np.inf):
        patches[1, 3] = value
        with np.errstate(invalid="ignore"):
            assert not unit_patches(patches, unit)
    long = np.full((1, 4), 60_000, dtype)  # longer than what is looked at closely, but finite
    assert unit_patches(long, unit[:1])
    np.testing.assert_allclose(unit[0], 0.5)


def test_squared_norms_are_float64():
    patches = np.random.default_rng(0).normal(size=(2500, 3)).astype(np.float32)
    with ProductThreads() as threads:
        norms = squared_norms(patches, threads)
    assert norms.dtype == np.float64
    np.testing.assert_allclose(norms, (patches.astype(np.float64) ** 2).sum(axis=1), rtol=1e-6)


def test_a_sampled_value_that_is_not_finite_names_its_image():
    patches = np.ones((3, 4, 5), np.float16)
    patches[1, 2, 3] = np.inf
    with pytest.raises(BadTokens, match=r"second\.jpg.*non-finite"):
        sample_patches(Tokens(patches, names=["first.jpg", "second.jpg", "third.jpg"]), 100)

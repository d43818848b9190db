"""Vocabularies against plain Lloyd, and their edge cases."""

import numpy as np
import pytest

from tests.core.worlds import world
from tfa import reference
from tfa.arrays import backend_for, to_numpy
from tfa.errors import BadSpec, BadTokens
from tfa.tokens import Tokens
from tfa.vocabulary import fit_vocabularies, given_vocabularies, sample_patches


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize("seed", [0, 3])
def test_three_constructions_in_one_pass_equal_plain_lloyd(device, seed):
    patches = sample_patches(world(seed=seed, noise=0.4), 10_000, "float64")
    for vocabulary in fit_vocabularies(patches, 8, backend_for(device)):
        expected = reference.kmeans(patches, 8, vocabulary.seed)
        np.testing.assert_allclose(to_numpy(vocabulary.centers), expected, atol=1e-12)
        assert vocabulary.saw == "database"
        assert vocabulary.iterations > 1


def test_constructions_differ_by_their_seed_only():
    patches = sample_patches(world(noise=0.6), 10_000)
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
    tokens.patches, tokens.names, tokens.cls = Lazy(), None, None
    tokens.shapes = np.array(Lazy.shapes)
    sample_patches(tokens, 3)
    assert Lazy.loaded <= 3


def test_supplied_centers_are_used_as_given_and_checked():
    centers = [np.full((4, 2), s + 0.5) for s in range(3)]
    assert [v.centers[0, 0] for v in given_vocabularies(centers, 2)] == [0.5, 1.5, 2.5]
    with pytest.raises(BadSpec, match="three arrays"):
        given_vocabularies(centers[:2], 2)
    with pytest.raises(BadSpec, match="2 channels, the tokens 5"):
        given_vocabularies(centers, 5)
    with pytest.raises(BadSpec, match="non-finite"):
        given_vocabularies([*centers[:2], np.full((4, 2), np.nan)], 2)


def test_no_patches_is_an_error():
    with pytest.raises(BadTokens, match="no patches"):
        sample_patches(Tokens([]), 10)

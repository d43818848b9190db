"""AnyLoc against plain loops written from its definition, and the order its words are drawn in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.heads.plain import TOKENS, card, unit, unit_patches
from tests.worlds import world
from tfa.errors import BadSpec, ChannelMismatch
from tfa.method.vocabulary import sample_patches
from tfa_bench.heads.contract import ONLY, Photos, Shared
from tfa_bench.heads.peers import anyloc
from tfa_bench.heads.vectors import content_order


def plain_cosine_kmeans(patches, words, seed):
    start = np.random.default_rng(seed).permutation(len(patches))[:words]
    centers = [patches[i].copy() for i in start]
    for _ in range(100):
        members = [[] for _ in range(words)]
        for patch in patches:
            members[int(np.argmax([patch @ unit(center) for center in centers]))].append(patch)
        updated = [np.mean(own, axis=0) if own else np.zeros(patches.shape[1]) for own in members]
        change = sum(((new - old) ** 2).sum() for new, old in zip(updated, centers, strict=True))
        centers = updated
        if change <= 1e-4:
            break
    return np.array(centers)


def plain_vlad(patches, centers):
    blocks = np.zeros(centers.shape)
    for patch in patches:
        word = int(np.argmax([patch @ unit(center) for center in centers]))
        blocks[word] += patch - centers[word]
    return unit(np.concatenate([unit(block) for block in blocks]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", anyloc.SEEDS)
def test_cosine_kmeans_equals_the_plain_loop(seed):
    patches = sample_patches(world(images=30, noise=0.8), 10_000, "float64")
    centers = anyloc.kmeans(patches, 11, seed)
    np.testing.assert_allclose(centers, plain_cosine_kmeans(patches, 11, seed), atol=1e-9)
    assert (np.linalg.norm(centers, axis=1) < 0.999).all()  # means of unit vectors, not normalised


def test_patches_that_are_not_compared_again_keep_the_word_they_would_get():
    patches = sample_patches(world(images=400, noise=0.8), 10_000, "float64")
    compared: list[int] = []

    class Watched(anyloc._Assignment):
        def compare(self, directions):
            compared.append(int((self.margins <= anyloc.ROUNDING).sum()))
            super().compare(directions)
            np.testing.assert_array_equal(self.labels, (self.patches @ directions.T).argmax(axis=1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyloc, "_Assignment", Watched)
        anyloc.kmeans(patches, 9, 0)
    assert len(compared) > 5
    assert min(compared) < compared[0] / 2


def test_a_word_without_patches_is_zero():
    patches = np.repeat(np.eye(3), 4, axis=0)
    centers = anyloc.kmeans(patches, 8, 0)
    assert np.isfinite(centers).all()
    assert (np.linalg.norm(centers, axis=1) == 0).sum() == 5


def test_more_words_than_patches_repeat_their_start():
    assert anyloc.kmeans(np.eye(3), 7, 1).shape == (7, 3)


@pytest.mark.parametrize("center_norm", anyloc.CENTER_NORMS)
def test_anyloc_descriptors_equal_the_plain_loop(center_norm):
    centers = np.random.default_rng(2).normal(size=(4, 5)) * [[0.3], [0.5], [0.9], [0.4]]
    given = anyloc.with_norm(centers, center_norm)
    described = anyloc.describe_hard_vlad(TOKENS, given)
    for image in range(len(TOKENS)):
        np.testing.assert_allclose(described[image], plain_vlad(unit_patches(image), given), atol=1e-6)


def test_raw_and_unit_centres_differ_unless_the_centres_are_unit():
    short = np.eye(5)[:3] * 0.4
    raw, normed = (anyloc.describe_hard_vlad(TOKENS, anyloc.with_norm(short, norm)) for norm in ("raw", "unit"))
    assert np.abs(raw - normed).max() > 0.01
    whole = np.eye(5)[:3]
    raw, normed = (anyloc.describe_hard_vlad(TOKENS, anyloc.with_norm(whole, norm)) for norm in ("raw", "unit"))
    np.testing.assert_array_equal(raw, normed)


def test_an_unknown_centre_norm_is_refused():
    with pytest.raises(BadSpec, match=r"'l1'.*'raw' or 'unit'"):
        anyloc.with_norm(np.eye(2), "l1")


def test_anyloc_has_three_vocabularies_that_two_cards_share():
    database, shared = Photos(TOKENS), Shared()
    raw = card(anyloc, "anyloc").fit(database, shared)
    normed = card(anyloc, "anyloc-unit").fit(database, shared)
    assert raw.replicas == ("0", "1", "2")
    assert raw.gallery["0"].shape == (len(TOKENS), 64 * 5)
    assert not np.array_equal(raw.gallery["0"], raw.gallery["1"])
    for replica in raw.replicas:
        centers = raw.describe[replica].keywords["centers"]
        np.testing.assert_array_equal(normed.describe[replica].keywords["centers"], anyloc.with_norm(centers, "unit"))


def test_a_released_vocabulary_is_used_as_it_is(tmp_path):
    centers = np.random.default_rng(3).normal(size=(4, 5)) * 0.5
    np.save(tmp_path / "words.npy", centers)
    released = anyloc.anyloc_from_file(tmp_path / "words.npy")
    head = released.fit(Photos(TOKENS), Shared())
    assert (released.name, head.data_used, head.replicas) == ("anyloc-released", "nothing", (ONLY,))
    assert released.settings["words"] == 4
    expected = np.array([plain_vlad(unit_patches(i), centers) for i in range(len(TOKENS))])
    np.testing.assert_allclose(head.scores(Photos(TOKENS), ONLY), expected @ expected.T, atol=1e-6)
    with pytest.raises(ChannelMismatch, match=r"6 channels.* 5"):
        released.fit(Photos(world()), Shared())


def test_the_order_by_content_follows_the_images_not_their_places():
    order = content_order(TOKENS)
    assert sorted(order) == list(range(len(TOKENS)))
    turned = TOKENS.select(np.arange(len(TOKENS))[::-1])
    np.testing.assert_array_equal(len(TOKENS) - 1 - content_order(turned), order)

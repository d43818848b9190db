"""SegVLAD: its parts against plain loops, its answers against order, batches and duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

from tests.benchmarks.heads.sam.test_sam import tiny_config
from tests.fakes import FakeEncoder, random_image
from tfa.core.tokens import Tokens
from tfa.errors import BadImage, BadTokens, ChannelMismatch
from tfa.photos.images import as_rgb
from tfa.search.gallery import inner
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.peers import segvlad
from tfa_bench.heads.peers.segvlad import (
    CARDS,
    SegVladHead,
    Superpixels,
    segment_vectors,
    segvlad_with_sam,
    similarity_range,
    super_segments,
    vote,
)
from tfa_bench.heads.vectors import fit_whitening

(CARD,) = CARDS


def photos(folder: Path, seeds: Sequence[int]) -> Photos:
    """Random images, saved, with the tokens of the fake encoder."""
    paths = []
    for seed in seeds:
        path = folder / f"{seed}.png"
        random_image(seed).save(path)
        paths.append(path)
    encoder = FakeEncoder()
    patches, cls = encoder.encode([as_rgb(path) for path in paths])
    return Photos(Tokens(patches, cls, grid=encoder.grid), tuple(paths))


def _squared_distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return ((one[:, None].astype(float) - other[None]) ** 2).sum(axis=-1)


def fit(database: Photos) -> SegVladHead:
    head = CARD.fit(database, Shared())
    assert isinstance(head, SegVladHead)
    return head


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Photos:
    return photos(tmp_path_factory.mktemp("database"), range(8))


@pytest.fixture(scope="module")
def queries(tmp_path_factory) -> Photos:
    return photos(tmp_path_factory.mktemp("queries"), [3, 20, 21, 5, 22])


@pytest.fixture(scope="module")
def head(database) -> SegVladHead:
    return fit(database)


def test_the_vlad_of_a_segment_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    patches, centers = rng.normal(size=(12, 5)), rng.normal(size=(3, 5))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    cells = rng.random((4, 12)) < 0.5
    for segment, found in zip(cells, segment_vectors(patches, cells, centers), strict=True):
        blocks = np.zeros((3, 5))
        for patch in patches[segment]:
            unit = patch / np.linalg.norm(patch)
            word = max(range(3), key=lambda k: unit @ centers[k])
            blocks[word] += unit - centers[word]
        blocks = np.array([block / (np.linalg.norm(block) or 1) for block in blocks])
        assert np.allclose(found.reshape(3, 5), blocks / np.linalg.norm(blocks))


def test_a_patch_that_equals_its_word_adds_nothing():
    centers = np.eye(2, 3, dtype=np.float32)
    patches = np.array([[3, 0, 0], [0, 1, 1]], np.float32)
    vectors = segment_vectors(patches, np.array([[True, False], [True, True]]), centers)
    assert (vectors[0] == 0).all()
    assert (vectors[1, :3] == 0).all()
    assert np.linalg.norm(vectors[1, 3:]) == pytest.approx(1)


def test_whitening_is_that_of_a_plain_pca():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 6)) @ rng.normal(size=(6, 40)) + rng.normal(size=40)
    fresh = rng.normal(size=(5, 40))
    plain = PCA(4, whiten=True, svd_solver="full").fit(rows).transform(fresh)
    ours = fit_whitening(rows, 4)
    assert ours.projection is not None
    found = (fresh - ours.mean) @ ours.projection
    assert np.allclose(np.abs(found), np.abs(plain))
    assert np.allclose(np.abs(ours(fresh)), np.abs(plain) / np.linalg.norm(plain, axis=1, keepdims=True))
    whole = fit_whitening(rows, 1024).projection
    assert whole is not None
    assert whole.shape == (40, 6), "no more directions than the rows have"


def test_whitening_in_pieces_of_channels_is_the_same(monkeypatch):
    rows = np.random.default_rng(2).normal(size=(10, 30))
    at_once = fit_whitening(rows, 5)(rows)
    monkeypatch.setattr("tfa_bench.heads.vectors.CHANNELS_AT_ONCE", 7)
    assert np.allclose(np.abs(fit_whitening(rows, 5)(rows)), np.abs(at_once))


def test_equal_rows_are_not_whitened():
    rows = np.ones((3, 4), np.float32) / 2
    assert np.allclose(fit_whitening(rows, 2)(rows), rows)


def test_votes_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    similarities, owner = rng.uniform(-2, 2, size=(3, 120)), np.arange(120) // 12
    expected = np.zeros(10)
    for row in similarities:
        for match in sorted(range(120), key=lambda g: -row[g])[:50]:
            expected[owner[match]] += max((row[match] - 0.5) / 1.5, 0)
    assert np.allclose(vote(similarities, owner, 0.5, 2.0), expected)


def test_the_range_is_of_segments_of_other_photos():
    gallery = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]])
    assert similarity_range(gallery, np.array([0, 0, 1, 2]), np.array([0, 1])) == pytest.approx((-2.0, 1.2))
    assert similarity_range(gallery, np.zeros(4, int), np.arange(4)) == segvlad.FULL_RANGE


def test_the_fitted_head_scores_as_its_definition(head, database, queries):
    found = head.scores(queries, "0")
    assert found.shape == (5, 8)
    assert found.dtype == np.float32
    for index, path in enumerate(queries.paths):
        cells = super_segments(Superpixels().segment(as_rgb(path)), (4, 4))
        vectors = head.whitening(segment_vectors(queries.tokens.load(index, index + 1)[0], cells, head.centers))
        expected = np.zeros(8)
        closeness = inner(vectors, head.gallery)  # for the order alone: many segments here are as near as others
        for near, similarities in zip(closeness, 2 - _squared_distances(vectors, head.gallery), strict=True):
            for match in np.argsort(-near, kind="stable")[:50]:
                photo = np.flatnonzero(head.column == head.owner[match])[0]
                expected[photo] += max((similarities[match] - head.low) / (head.high - head.low), 0)
        assert np.allclose(found[index], expected, atol=1e-3)


def test_a_photo_of_the_database_finds_itself(head, queries):
    assert head.scores(queries, "0")[[0, 3]].argmax(axis=1).tolist() == [3, 5]


def test_answers_do_not_depend_on_the_other_queries(head, queries):
    together = head.scores(queries, "0")
    alone = np.concatenate([head.scores(queries.select([index]), "0") for index in range(len(queries))])
    assert np.array_equal(together, alone)
    assert head.scores(queries.select([]), "0").shape == (0, 8)


def test_the_order_of_the_database_plays_no_part(head, database, queries):
    order = np.random.default_rng(4).permutation(8)
    assert np.array_equal(fit(database.select(order)).scores(queries, "0"), head.scores(queries, "0")[:, order])


def test_a_duplicate_ties_and_changes_nothing_else(head, database, queries):
    scores = fit(database.select([*range(8), 3, 0])).scores(queries, "0")
    assert np.array_equal(scores[:, 8:], scores[:, [3, 0]])
    assert np.array_equal(scores[:, :8], head.scores(queries, "0"))


def test_more_segments_than_the_sample_are_fitted_too(database, queries, monkeypatch):
    monkeypatch.setattr(segvlad, "SAMPLED_SEGMENTS", 20)
    monkeypatch.setattr(segvlad, "SEGMENTS_PER_DIMENSION", 2)  # of so few segments a 48th tells nothing apart
    small = fit(database)
    assert small.whitening.projection is not None
    assert small.whitening.projection.shape[1] <= 19
    order = np.arange(8)[::-1]
    scores = small.scores(queries, "0")
    assert np.array_equal(fit(database.select(order)).scores(queries, "0"), scores[:, order])
    assert scores[[0, 3]].argmax(axis=1).tolist() == [3, 5]


def test_photos_of_which_no_segment_is_sampled_are_fitted_too(database, queries, monkeypatch):
    monkeypatch.setattr(segvlad, "SAMPLED_SEGMENTS", 5)  # of eight photos
    scores = fit(database).scores(queries, "0")
    assert scores.shape == (5, 8)
    assert np.isfinite(scores).all()


def test_a_small_map_has_dimensions_in_proportion_to_its_segments(database):
    head = fit(database)
    assert head.whitening.projection is not None
    assert head.whitening.projection.shape[1] == max(len(head.gallery) // segvlad.SEGMENTS_PER_DIMENSION, 1)


def test_a_photo_without_votes_scores_nothing():
    similarities = np.array([[2.0, 1.0, -2.0]])
    assert vote(similarities, np.array([0, 1, 2]), 0.0, 2.0).tolist() == [1.0, 0.5, 0.0]


def test_a_database_of_one_photo_is_fitted(database, queries):
    scores = fit(database.select([3])).scores(queries, "0")
    assert scores.shape == (5, 1)
    assert np.isfinite(scores).all()


def test_what_is_missing_is_said(head, database, tmp_path):
    with pytest.raises(BadTokens, match="segments the photos"):
        fit(Photos(database.tokens))
    gridless = Photos(Tokens(database.tokens.patches), database.paths)
    with pytest.raises(BadTokens, match=r"grid=\(rows, columns\)"):
        fit(gridless)
    with pytest.raises(BadTokens, match="at least one"):
        fit(database.select([]))
    with pytest.raises(ChannelMismatch, match="fitted on 12"):
        head.scores(Photos(Tokens(np.ones((1, 16, 3)), grid=(4, 4)), database.paths[:1]), "0")
    with pytest.raises(BadImage, match=r"gone\.png"):
        head.scores(Photos(database.tokens.select([0]), (tmp_path / "gone.png",)), "0")


def test_the_card_says_whose_segments_they_are():
    assert CARD.name == "segvlad-superpixels"
    assert CARD.needs_files
    assert CARD.sees == "database"
    assert "not SAM" in CARD.note
    assert CARD.settings["segmenter"] == "superpixels (ours)"


@pytest.mark.slow
def test_the_card_of_sam_fits_with_its_masks(database, queries, tmp_path, monkeypatch):
    import torch
    from transformers import SamModel

    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    SamModel(tiny_config()).save_pretrained(tmp_path)
    card = segvlad_with_sam(tmp_path)
    assert (card.name, card.title) == ("segvlad", "SegVLAD-PreT")
    assert card.settings["segmenter"] == "SAM 16x2"
    fitted = card.fit(database.select(slice(0, 3)), Shared())
    assert fitted.scores(queries.select([0]), "0").shape == (1, 3)
    assert len(list((tmp_path / "cache" / "masks").rglob("*.safetensors"))) == len({*range(3), 3})  # the query is 3

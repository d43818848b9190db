"""Compact tokens, and verification on tokens alone."""

import json

import numpy as np
import pytest

import tfa
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.types import RerankSpec
from tfa.verification.patches import CompactTokens, quantize_rows, restore_rows


@pytest.fixture
def field():
    """Tokens of 9 images with a 3 × 5 grid of 20 channels."""
    return Tokens(np.random.default_rng(0).normal(size=(9, 15, 20)).astype(np.float16), grid=(3, 5))


def test_compact_tokens_are_projected_rounded_patches(field):
    compact = CompactTokens.fit(field, RerankSpec(dimensions=8))
    assert (len(compact), compact.grid, compact.bytes_per_image) == (9, (3, 5), 15 * 8)
    assert compact.chunks[0].dtype == np.int8
    exact = compact.compaction.compact(np.asarray(field.patches))
    np.testing.assert_array_equal(compact.rows(np.array([7, 2])), restore_rows(quantize_rows(exact[[7, 2]])))
    np.testing.assert_allclose(compact.query(field.select([3, 1])), exact[[3, 1]], atol=1e-6)
    again = CompactTokens.fit(field, RerankSpec(dimensions=8))
    np.testing.assert_array_equal(again.chunks[0], compact.chunks[0])


def test_compact_tokens_grow_and_are_read_in_any_order(field):
    whole = CompactTokens.fit(field)
    grown = CompactTokens.of(field.select(slice(0, 4)), whole.compaction).grown(field.select(slice(4, 9)))
    assert [len(chunk) for chunk in grown.chunks] == [4, 5]
    np.testing.assert_array_equal(grown.rows([8, 0, 4, 4, 3]), whole.rows([8, 0, 4, 4, 3]))
    assert grown.rows([]).shape == (0, 15, 20)
    for start, stop in ((0, 9), (2, 6), (4, 9)):
        np.testing.assert_array_equal(grown.patch_tensors(start, stop)["patches"], whole.chunks[0][start:stop])
    with pytest.raises(BadTokens, match="grid of 3 × 5"):
        grown.grown(Tokens(np.ones((1, 16, 20)), grid=(4, 4)))
    with pytest.raises(BadTokens, match="grid=\\(rows, columns\\)"):
        CompactTokens.of(Tokens(np.ones((2, 15, 20))), whole.compaction)


def test_tensors_and_from_tensors_are_each_others_inverse(field):
    compact = CompactTokens.fit(field)
    galleries = [compact.patch_tensors(0, 5), compact.patch_tensors(5, 9)]
    entry = json.loads(json.dumps(compact.to_dict()))
    again = CompactTokens.from_tensors(entry, compact.compaction_tensors(), galleries)
    assert (again.grid, again.spec) == (compact.grid, compact.spec)
    np.testing.assert_array_equal(again.rows(range(9)), compact.rows(range(9)))
    np.testing.assert_array_equal(again.query(field), compact.query(field))
    with pytest.raises(ValueError, match="int8"):
        CompactTokens.from_tensors({**entry, "grid": [3, 6]}, compact.compaction_tensors(), galleries)


@pytest.mark.parametrize(("photos", "threads"), [(1, None), (1, 1), (3, 2), (3, None)])
def test_matches_do_not_depend_on_threads_or_company(field, photos, threads):
    compact = CompactTokens.fit(field)
    queries = [compact.query(field.select([row]))[0] for row in range(photos)]
    images = [np.arange(row, row + 5) for row in range(photos)]
    together = compact.match_each(queries, compact.grid, images, threads)
    assert [len(found) for found in together] == [5] * photos
    for query, some, found in zip(queries, images, together, strict=True):
        for one, other in zip(found, compact.matches(query, compact.grid, some), strict=True):
            np.testing.assert_array_equal(one.ours, other.ours)
            np.testing.assert_array_equal(one.theirs, other.theirs)
            assert one.evidence == other.evidence


# --- on tokens ---------------------------------------------------------------------------------------------------


def test_verify_on_tokens_finds_what_lies_alike(field):
    rng = np.random.default_rng(1)
    patches = np.asarray(field.patches, np.float32)
    again = Tokens(patches + 0.05 * rng.normal(size=patches.shape), grid=(3, 5))
    found = tfa.rerank_candidates(again, field)
    assert found.indices.shape == found.evidence.shape == found.inliers.shape == (9, 9)
    assert found.indices[:, 0].tolist() == list(range(9))
    assert (found.inliers[:, 0] == 15).all()
    assert (np.diff(found.evidence, axis=1) <= 0).all()  # without scores evidence alone decides


def test_verify_on_tokens_keeps_to_the_best_of_the_scores(field):
    scores = np.zeros((1, 9))
    scores[0, [4, 6, 2]] = 3.0, 2.9, 2.8
    found = tfa.rerank_candidates(field.select([2]), field, scores, spec=tfa.RerankSpec(candidates=3))
    assert set(found.indices[0].tolist()) == {2, 4, 6}
    assert found.indices[0, 0] == 2
    without = tfa.rerank_candidates(field.select([2]), field, scores, spec=tfa.RerankSpec(candidates=2))
    assert set(without.indices[0].tolist()) == {4, 6}


def test_verify_on_tokens_says_what_is_missing(field):
    with pytest.raises(BadTokens, match=r"\(2, 9\), must be \(queries, database images\) = \(1, 9\)"):
        tfa.rerank_candidates(field.select([0]), field, np.zeros((2, 9)))
    with pytest.raises(BadTokens, match="grid=\\(rows, columns\\)"):
        tfa.rerank_candidates(field, Tokens(np.asarray(field.patches)))
    with pytest.raises(BadTokens, match="query tokens: the patch grid"):
        tfa.rerank_candidates(Tokens(np.ones((1, 6, 20))), field)
    with pytest.raises(ChannelMismatch, match="7 channels, database tokens 20"):
        tfa.rerank_candidates(Tokens(np.ones((1, 15, 7))), field)

"""Verification against plain loops: compaction, mutual matches, votes, evidence."""

import numpy as np
import pytest

from tfa.core.arrays import l2_normalize
from tfa.verification import matching
from tfa.verification import patches as patch_module
from tfa.verification.matching import (
    Matches,
    compute_displacements,
    find_matches,
    find_mutual,
    find_nearest,
    find_strongest_windows,
    fit_similarity,
    measure_evidence,
)
from tfa.verification.patches import Compaction, fit_compaction, quantize_rows, restore_rows
from tfa.verification.reranking import combine_scores, compute_leads

GRID = (8, 9)


def unit(*shape, seed=0):
    return l2_normalize(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


# --- compaction --------------------------------------------------------------------------------------------------


def test_compaction_keeps_the_largest_directions_and_whitens_them_partly():
    rng = np.random.default_rng(0)
    patches = l2_normalize(rng.normal(size=(4000, 6)) * np.array([5, 4, 3, 0.1, 0.1, 0.1]))
    compaction = fit_compaction(patches, 3)
    assert compaction.dimensions == 3
    projected = (patches - patches.mean(axis=0)) @ compaction.projection
    variance = np.linalg.eigvalsh(np.cov(patches.T, bias=True))[::-1]
    # λ^(−1/4) on a direction of variance λ leaves variance √λ.
    np.testing.assert_allclose(projected.var(axis=0), np.sqrt(variance[:3]), rtol=1e-3)
    rows = compaction.compact(patches[:10].reshape(2, 5, 6))
    assert rows.shape == (2, 5, 3)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=-1), 1, atol=1e-5)


def test_compaction_has_no_more_directions_than_the_patches():
    flat = l2_normalize(np.random.default_rng(0).normal(size=(50, 2)) @ np.random.default_rng(1).normal(size=(2, 7)))
    assert fit_compaction(flat, 128).dimensions == 2
    alike = np.tile(l2_normalize(np.ones((1, 5))), (9, 1))
    compaction = fit_compaction(alike, 4)
    assert compaction.dimensions == 1
    assert np.isfinite(compaction.compact(alike)).all()


def test_rounding_moves_an_entry_by_less_than_a_level():
    rows = unit(40, 128)
    levels = quantize_rows(rows)
    assert levels.dtype == np.int8
    assert (np.abs(levels).max(axis=1) == patch_module._INT8_LEVELS).all()
    largest = np.abs(rows).max(axis=1, keepdims=True)
    assert (
        np.abs(levels * (largest / patch_module._INT8_LEVELS) - rows) <= 0.501 * largest / patch_module._INT8_LEVELS
    ).all()
    np.testing.assert_allclose(np.linalg.norm(restore_rows(levels), axis=1), 1, atol=1e-6)
    assert ((restore_rows(levels) * rows).sum(axis=1) > 0.9995).all()
    assert not restore_rows(quantize_rows(np.zeros((1, 3)))).any()  # a patch without direction has none afterwards


# --- matches -----------------------------------------------------------------------------------------------------


def matched(similarities):
    """Rows, columns and distinctiveness of the mutual matches of one pair."""
    best, highest, second, columns = find_nearest(similarities.copy())  # it overwrites what it is given
    candidate, ours = find_mutual(best[None], highest[None], columns[None])
    assert not candidate.any()
    return ours, best[ours], (highest - second)[ours]


def test_mutual_matches_are_those_of_two_loops():
    similarities = np.random.default_rng(3).normal(size=(30, 25))
    pairs = [
        (i, int(similarities[i].argmax()))
        for i in range(30)
        if int(similarities[:, similarities[i].argmax()].argmax()) == i
    ]
    second = [np.sort(similarities[i])[-2] for i, _ in pairs]
    ours, theirs, distinct = matched(similarities)
    assert list(zip(ours, theirs, strict=True)) == pairs
    np.testing.assert_allclose(distinct, [similarities[pair] - s for pair, s in zip(pairs, second, strict=True)])


def test_of_equal_patches_the_first_is_matched():
    rows = unit(3, 5)
    similarities = np.stack([rows[0], rows[0], rows[1]]) @ np.stack([rows[2], rows[1], rows[0], rows[0]]).T
    ours, theirs, distinct = matched(similarities)
    assert (ours.tolist(), theirs.tolist()) == ([0, 2], [2, 1])
    assert distinct[0] == 0 < distinct[1]  # what is there twice tells nothing


def test_displacements_are_counted_in_cells_of_each_grid():
    down, right = compute_displacements(np.array([0, 5]), np.array([7, 0]), (2, 3), (3, 4))
    assert (down.tolist(), right.tolist()) == ([1, -1], [3, -2])


@pytest.mark.parametrize("windows", [matching.ONE_WINDOW, matching.BY_EVIDENCE, ((3, 1.0), (7, 0.5))])
@pytest.mark.parametrize("seed", range(4))
def test_the_strongest_window_is_that_of_all_loops(seed, windows):
    rng = np.random.default_rng(seed)
    reach = (5, 7)
    down, right, weights = rng.integers(-5, 6, 20), rng.integers(-7, 8, 20), rng.integers(1, 4, 20)
    votes = {
        (y, x, index): weight * int(weights[(np.abs(down - y) <= side // 2) & (np.abs(right - x) <= side // 2)].sum())
        for index, (side, weight) in enumerate(windows)
        for y in range(-5, 6)
        for x in range(-7, 8)
    }
    # Two candidates with the same votes, and one without any between them.
    whose = np.repeat([0, 2], 20)
    moved = (np.tile(down, 2), np.tile(right, 2))
    found = np.stack(find_strongest_windows(whose, moved, np.tile(weights / 8, 2), reach, 3, windows), axis=1)
    assert found[0].tolist() == found[2].tolist()
    assert tuple(found[0]) == next(place for place, count in votes.items() if count == max(votes.values()))


def test_no_match_gives_no_evidence():
    nothing = np.empty(0, np.int64)
    assert len(find_strongest_windows(nothing, (nothing, nothing), np.empty(0), (3, 3), 4)[0]) == 4
    none = Matches(nothing, nothing, np.empty(0), np.empty(0, bool))
    assert (none.count, none.evidence) == (0, 0.0)


def shifted(photo, down, right, seed=9):
    """The photo's patches moved on the grid; what comes into view is new."""
    fresh = unit(*GRID, photo.shape[-1], seed=seed)
    rows, columns = GRID
    source = photo.reshape(*GRID, -1)
    fresh[max(down, 0) : rows + min(down, 0), max(right, 0) : columns + min(right, 0)] = source[
        max(-down, 0) : rows + min(-down, 0), max(-right, 0) : columns + min(-right, 0)
    ]
    return fresh.reshape(rows * columns, -1)


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, 0), (0, -3), (-1, 4)])
def test_the_matches_of_a_shifted_photo_are_its_overlap(down, right):
    photo = unit(72, 64)
    other = shifted(photo, down, right)
    found = find_matches(photo, other[None], GRID, GRID)[0]
    overlap = (8 - abs(down)) * (9 - abs(right))
    moved = compute_displacements(found.ours, found.theirs, GRID, GRID)
    true = (moved[0] == down) & (moved[1] == right)
    assert true.sum() == overlap
    assert found.consistent[true].all()
    assert overlap <= found.count <= len(found.ours)  # what is new may match by chance and move alike too
    assert found.distinct[true].min() > found.distinct[~true].max(initial=0)
    assert find_matches(photo, photo[None], GRID, GRID)[0].count == 72


def test_evidence_is_that_of_the_matches_of_each_candidate():
    photo = unit(72, 16)
    candidates = np.stack([unit(72, 16, seed=s) for s in (1, 2, 3)] + [shifted(photo, 1, 1)])
    counts = measure_evidence(photo, candidates, GRID, GRID)
    np.testing.assert_allclose(
        counts, [find_matches(photo, candidate[None], GRID, GRID)[0].evidence for candidate in candidates]
    )
    assert counts[3] > counts[:3].max()
    assert measure_evidence(photo, candidates[:0], GRID, GRID).tolist() == []
    for together, candidate in zip(find_matches(photo, candidates, GRID, GRID), candidates, strict=True):
        alone = find_matches(photo, candidate[None], GRID, GRID)[0]
        for part in ("ours", "theirs", "distinct", "consistent"):
            np.testing.assert_array_equal(getattr(together, part), getattr(alone, part))


def test_photos_of_unlike_grids_are_compared():
    large = unit(8, 9, 32)
    part = np.ascontiguousarray(large[2:7, 3:8]).reshape(25, 32)  # the same scene, seen by a smaller grid
    found = find_matches(part, large.reshape(72, 32)[None], (5, 5), GRID)[0]
    assert found.count == 25
    assert compute_displacements(found.ours, found.theirs, (5, 5), GRID)[0].tolist() == [2] * 25


# --- what evidence is used for -----------------------------------------------------------------------------------


def test_more_evidence_and_a_higher_score_are_both_better():
    base = combine_scores(np.zeros(1), np.array([20]))[0]
    assert combine_scores(np.zeros(1), np.array([200]))[0] > base
    assert combine_scores(np.ones(1), np.array([20]))[0] >= base


def test_leads_by_hand():
    np.testing.assert_allclose(compute_leads(np.array([1.0, 4.0, 9.0])), [-1, 0, 1])


def test_a_compaction_is_what_its_arrays_are():
    compaction = Compaction(np.zeros(3, np.float32), np.eye(3, 2, dtype=np.float32))
    np.testing.assert_allclose(compaction.compact(np.array([[3.0, 4.0, 0.0]])), [[0.6, 0.8]], atol=1e-6)


# --- shift and scale ---------------------------------------------------------------------------------------------


def match_cells(shift, scale, grid=(23, 23), wrong=0):
    """Return matches of two photos: q = scale (m − middle) + middle − shift in columns, rounded to cells."""
    rng, middle = np.random.default_rng(2), np.array(grid) / 2
    theirs = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), axis=1) + 0.5
    ours = np.floor(scale * (theirs - middle) + middle - (0, scale * shift)).astype(int)
    inside = ((ours >= 0) & (ours < grid)).all(axis=1)
    query = ours[inside, 0] * grid[1] + ours[inside, 1]
    consistent = rng.random(inside.sum()) < 0.5  # the window holds a part of the right matches
    query[:wrong] = rng.integers(0, grid[0] * grid[1], wrong)
    consistent[:wrong] = False
    return Matches(query, np.flatnonzero(inside), np.ones(inside.sum()), consistent)


@pytest.mark.parametrize(("shift", "scale"), [(0, 1.0), (4, 1.0), (-3, 1.25), (2, 0.8)])
def test_a_shift_and_a_scale_are_fitted_to_the_matches(shift, scale):
    found = fit_similarity(match_cells(shift, scale, wrong=60), (23, 23), (23, 23))
    np.testing.assert_allclose(found, (shift / 23, scale), atol=(0.25 / 23 + 0.01 * abs(shift)))


def test_few_or_close_matches_give_no_shift():
    one = match_cells(0, 1.0)
    few = Matches(one.ours[:11], one.theirs[:11], one.distinct[:11], np.ones(11, bool))
    close = Matches(one.ours[:0], one.theirs[:0], one.distinct[:0], np.ones(0, bool))
    corner = np.array([row * 23 + column for row in range(4) for column in range(4)])
    near = Matches(corner, corner, np.ones(16), np.ones(16, bool))
    assert [fit_similarity(matches, (23, 23), (23, 23)) for matches in (few, close, near)] == [None] * 3

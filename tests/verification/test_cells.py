"""Patches centered on their cell, against the plain formulas."""

import numpy as np
import pytest

from tfa import Tokens
from tfa.core.arrays import l2_normalize
from tfa.online.adaptation import CellMeans
from tfa.reference import verification as plain
from tfa.types import RerankSpec
from tfa.verification.matching import BY_EVIDENCE, ONE_WINDOW, measure_evidence
from tfa.verification.patches import CompactTokens, find_cells

GRID, DIMENSIONS = (5, 6), 12
rng = np.random.default_rng(0)
LAYOUT = 2 * rng.normal(size=(30, 16))  # what every photo has in a cell
IMAGES = (rng.normal(size=(9, 30, 16)) + LAYOUT).astype(np.float32)
UNIT = l2_normalize(IMAGES.astype(np.float64))
SPEC = RerankSpec(dimensions=DIMENSIONS)


@pytest.fixture(scope="module")
def compact():
    return CompactTokens.fit(Tokens(IMAGES, grid=GRID), SPEC)


def reference(unit, means):
    return l2_normalize((unit - means) @ plain.projection(UNIT, DIMENSIONS))


def same_up_to_sign(found, expected, atol=1e-4):
    signs = np.sign((found * expected).sum(axis=tuple(range(found.ndim - 1))))
    np.testing.assert_allclose(found * signs, expected, atol=atol)


def test_patches_of_the_map_are_those_of_the_plain_formula(compact):
    same_up_to_sign(compact.query(Tokens(IMAGES, grid=GRID)), reference(UNIT, plain.cell_means(UNIT)))
    assert compact.compaction.cells.shape == (30, DIMENSIONS)
    assert compact.bytes_per_image == 30 * DIMENSIONS  # cell means are stored once a map


def test_evidence_is_that_of_the_plain_formula(compact):
    rows = compact.query(Tokens(IMAGES, grid=GRID))
    expected = [plain.evidence(rows[0].astype(np.float64), row, GRID, GRID) for row in rows[1:].astype(np.float64)]
    # Votes are rounded to 2⁻²⁰, at most 30 of them with a weight of 2.1.
    np.testing.assert_allclose(measure_evidence(rows[0], rows[1:], GRID, GRID), expected, atol=1e-4)
    assert (compact.evidence(rows[0], GRID, np.arange(9)) > 0).all()


def test_what_every_photo_has_in_a_cell_is_no_evidence():
    images = Tokens((np.random.default_rng(4).normal(size=(60, 30, 16)) + LAYOUT).astype(np.float32), grid=GRID)
    strange = Tokens((np.random.default_rng(5).normal(size=(1, 30, 16)) + LAYOUT).astype(np.float32), grid=GRID)
    made = [CompactTokens.fit(images, SPEC, cells=cells) for cells in (True, False)]
    assert [one.windows for one in made] == [BY_EVIDENCE, ONE_WINDOW]
    aligned = []
    for tokens in made:
        found = tokens.matches(tokens.query(strange)[0], GRID, np.arange(9))
        aligned.append(np.mean(np.concatenate([one.ours == one.theirs for one in found])))
    assert aligned[0] < 0.5 < aligned[1]


def test_a_few_photos_are_not_their_own_mean():
    two = CompactTokens.fit(Tokens(IMAGES[:2], grid=GRID), SPEC)
    rows = two.rows([0, 1])
    assert ((rows[0] * rows[1]).sum(axis=-1) > -0.9).mean() > 0.9  # means without pseudo-counts would give −1
    assert np.isfinite(CompactTokens.fit(Tokens(IMAGES[:1], grid=GRID), SPEC).rows([0])).all()


def test_a_cell_without_a_drawn_patch_has_the_mean_of_all():
    few = CompactTokens.fit(Tokens(IMAGES, grid=GRID), RerankSpec(dimensions=4, max_patches=20))
    assert few.compaction.cells.shape == (30, 4)
    assert (few.compaction.cells == 0).all(axis=1).any()


@pytest.mark.parametrize("cells", [True, False])
@pytest.mark.parametrize("patches", ["full", "small"])
def test_compact_tokens_are_restored_from_their_tensors(cells, patches):
    spec = RerankSpec(dimensions=DIMENSIONS, patches=patches)
    made = CompactTokens.fit(Tokens(IMAGES, grid=GRID), spec, cells=cells)
    entry, tensors = made.to_dict(), made.compaction_tensors()
    assert entry.get("cells", False) is cells
    again = CompactTokens.from_tensors(entry, tensors, [made.patch_tensors(0, 9)])
    query = Tokens(IMAGES[:1] + 1, grid=GRID)
    np.testing.assert_array_equal(again.query(query), made.query(query))
    assert again.windows == made.windows
    if cells:
        with pytest.raises(ValueError, match="cells must be 30 × 12"):
            CompactTokens.from_tensors(entry, {**tensors, "cells": tensors["cells"][1:]}, [])


# --- other grids -------------------------------------------------------------------------------------------------


def test_a_cell_of_another_grid_is_the_one_at_its_place():
    assert find_cells(GRID, GRID).tolist() == list(range(30))
    assert find_cells((1, 2), (2, 4)).tolist() == [5, 7]
    assert find_cells((4, 2), (2, 1)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert find_cells((10, 12), GRID).reshape(10, 12)[::2, ::2].ravel().tolist() == list(range(30))


def test_a_photo_of_a_finer_grid_is_centered_as_the_map_is(compact):
    fine = np.repeat(np.repeat(IMAGES[:1].reshape(1, *GRID, 16), 2, axis=1), 2, axis=2).reshape(1, 120, 16)
    photo = Tokens(fine, grid=(10, 12))
    rows = compact.query(photo)[0].reshape(10, 12, DIMENSIONS)
    expected = compact.query(Tokens(IMAGES[:1], grid=GRID))[0]
    np.testing.assert_allclose(rows[1::2, 1::2].reshape(30, -1), expected, rtol=1e-5, atol=1e-6)
    assert compact.project(photo) is None  # its patches are not in the stream's cells
    assert len(compact.evidence(rows.reshape(120, -1), (10, 12), np.arange(3))) == 3


# --- streams -----------------------------------------------------------------------------------------------------


def stream_of(count, seed=3):
    return (np.random.default_rng(seed).normal(size=(count, 30, 16)) + LAYOUT + 1).astype(np.float32)


def test_the_means_of_a_stream_are_those_of_the_plain_formula(compact):
    photos = stream_of(40)
    projected = compact.project(Tokens(photos, grid=GRID))
    unit, means = l2_normalize(photos.astype(np.float64)), CellMeans()
    cells = plain.cell_means(UNIT)
    for t in range(40):
        expected = plain.stream_means(unit[:t], cells, UNIT.mean(axis=(0, 1)))
        same_up_to_sign(means.center(projected[t], compact.compaction.cells), reference(unit[t], expected))
        means.observe(projected[t])


def test_a_stream_starts_with_the_cells_of_the_map(compact):
    photo = Tokens(stream_of(1), grid=GRID)
    found = CellMeans().center(compact.project(photo)[0], compact.compaction.cells)
    np.testing.assert_allclose(found, compact.query(photo)[0], atol=1e-6)


def test_cell_means_are_restored_and_start_over_in_another_map(compact):
    projected = compact.project(Tokens(stream_of(6), grid=GRID))
    means = CellMeans()
    assert means.tensors() == {}
    for one in projected[:5]:
        means.observe(one)
    tensors = means.tensors()
    cells = compact.compaction.cells
    again = CellMeans.from_tensors(tensors)
    np.testing.assert_array_equal(again.center(projected[5], cells), means.center(projected[5], cells))
    assert sum(array.nbytes for array in tensors.values()) < 2 * cells.nbytes  # it does not grow with photos
    other = projected[5][:, :3]
    np.testing.assert_array_equal(means.center(other, cells[:, :3]), l2_normalize(other - cells[:, :3]))
    means.observe(other)
    assert means.tensors()["cells"].shape == (30, 3)
    assert means.tensors()["cell_counts"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="cell means have shape"):
        CellMeans.from_tensors({**tensors, "cell_shift": np.zeros(3)})

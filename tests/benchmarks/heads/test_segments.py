"""Segments by hand: cells below a mask, neighbours of a mask, super-segments, superpixels."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from tests.fakes import random_image
from tfa.errors import MissingExtra
from tfa_bench.heads.peers.segvlad import Superpixels, cells_of, centroids, neighborhoods, super_segments


def squares(rows: int, columns: int, side: int = 4) -> np.ndarray:
    """A board of squares, row by row, one mask each."""
    labels = np.arange(rows * columns).reshape(rows, columns).repeat(side, axis=0).repeat(side, axis=1)
    return labels[None] == np.arange(rows * columns)[:, None, None]


def test_a_cell_belongs_to_a_mask_if_one_pixel_of_it_does():
    masks = np.zeros((2, 4, 6), dtype=bool)
    masks[0, 1, 2] = True  # the last pixel of the first cell of a 2 × 2 grid
    masks[1, 1:3, 3] = True  # the first column of the right half, both rows of cells
    assert cells_of(masks, (2, 2)).tolist() == [[True, False, False, False], [False, True, False, True]]


def test_a_pixel_on_the_border_of_two_cells_belongs_to_both():
    masks = np.zeros((1, 1, 3), dtype=bool)
    masks[0, 0, 1] = True  # from 1/3 to 2/3 of the width
    assert cells_of(masks, (1, 2)).tolist() == [[True, True]]


def test_a_mask_coarser_than_the_grid_fills_all_cells_below_it():
    left = np.array([[[True, False]]])
    assert cells_of(left, (2, 4)).tolist() == [[True, True, False, False] * 2]


def test_centroids_are_means_of_pixels():
    masks = np.zeros((1, 3, 5), dtype=bool)
    masks[0, 0, 1] = masks[0, 2, 4] = True
    assert centroids(masks).tolist() == [[2.5, 1.0]]


def test_four_squares_are_neighbours_but_for_one_diagonal():
    direct = neighborhoods(squares(2, 2), order=1)
    assert np.array_equal(direct, direct.T)
    assert direct.diagonal().all()
    assert direct[0, 1] and direct[0, 2] and direct[1, 3] and direct[2, 3]  # noqa: PT018
    assert direct[0, 3] != direct[1, 2], "a triangulation of four corners has one diagonal"
    assert neighborhoods(squares(2, 2)).all()


def test_order_three_reaches_three_steps():
    masks = squares(1, 6)
    masks = masks & (np.arange(4)[:, None] >= np.arange(6).repeat(4) % 3)  # off the line, so that qhull takes them
    direct = neighborhoods(masks, order=1).astype(int)
    assert np.array_equal(neighborhoods(masks), direct @ direct @ direct > 0)


def test_masks_on_one_line_are_neighbours_along_it():
    masks = squares(1, 6)[[3, 0, 5, 1, 4, 2]]
    place = np.array([3, 0, 5, 1, 4, 2])
    apart = np.abs(place[:, None] - place)
    assert np.array_equal(neighborhoods(masks, order=1), apart <= 1)
    assert np.array_equal(neighborhoods(masks), apart <= 3)


@pytest.mark.parametrize(("count", "row"), [(1, [True]), (2, [True, True]), (3, [True, True, False])])
def test_up_to_three_masks_all_take_the_first_two(count, row):
    assert neighborhoods(squares(1, count)).tolist() == [row] * count


def test_a_super_segment_is_the_union_of_its_masks():
    masks = squares(1, 6)
    cells = super_segments(masks, (1, 6), order=2)
    assert np.array_equal(cells, np.abs(np.arange(6)[:, None] - np.arange(6)) <= 2)


def test_empty_masks_count_for_nothing_and_no_mask_means_the_whole_image():
    masks = np.concatenate([np.zeros((1, 4, 24), dtype=bool), squares(1, 6)])
    assert np.array_equal(super_segments(masks, (1, 6)), super_segments(squares(1, 6), (1, 6)))
    assert super_segments(np.zeros((0, 5, 5), dtype=bool), (2, 3)).tolist() == [[True] * 6]
    assert super_segments(np.zeros((2, 5, 5), dtype=bool), (2, 3)).tolist() == [[True] * 6]


def test_superpixels_cut_the_reduced_image_without_overlap_and_always_alike():
    image = random_image(3, (480, 360))
    masks = Superpixels().segment(image)
    assert masks.dtype == bool
    assert masks.shape[1:] == (180, 240)
    assert 4 < len(masks) < 40
    assert (masks.sum(axis=0) == 1).all()
    assert np.array_equal(masks, Superpixels().segment(image))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 2)])
def test_superpixels_take_any_image(size):
    masks = Superpixels().segment(Image.new("RGB", size))
    assert masks.any(axis=0).all()
    assert masks.shape[1:] == size[::-1]


def test_without_scikit_image_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-bench'"):
        Superpixels().segment(random_image(0))


def test_settings_name_the_segmenter_and_its_numbers():
    assert Superpixels(segments=9).settings["segments"] == 9
    assert Superpixels().settings["segmenter"] == "superpixels (ours)"

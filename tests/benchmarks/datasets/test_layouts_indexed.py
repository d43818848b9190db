"""Layouts whose positives are listed by number: Nardo-Air, Gardens Point, VPAIR."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfa_bench.datasets.files import BadDataset, natural_order
from tfa_bench.datasets.layouts.anyloc import gt_matches, gt_npy, vpair

HEADER = "query_ind,top_1_ref_ind,top_2_ref_ind,top_3_ref_ind,top_4_ref_ind,top_5_ref_ind\n"


def pictures(folder: Path, count: int, name: str = "img{}.png") -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (2, 2)).save(folder / name.format(number))


def pairs(path: Path, rows: list[tuple[object, object]]) -> None:
    array = np.empty((len(rows), 2), object)
    for index, (query, found) in enumerate(rows):
        array[index, 0], array[index, 1] = query, found
    np.save(path, array, allow_pickle=True)


@pytest.fixture
def nardo(tmp_path: Path) -> Path:
    pictures(tmp_path / "reference_images", 12)
    pictures(tmp_path / "query_images", 2)
    (tmp_path / "gt_matches.csv").write_text(HEADER + "0,10,2,3,4,5\n1,1,0,2,11,3\n")
    return tmp_path


def test_numbers_count_images_in_natural_order(nardo: Path) -> None:
    found = gt_matches.load(nardo)
    assert [image.name for image in found.database][:3] == ["img0.png", "img1.png", "img2.png"]
    assert [own.tolist() for own in found.positives] == [[2, 3, 4, 5, 10], [0, 1, 2, 3, 11]]
    assert found.notes == ()


def test_rows_go_to_the_query_they_name(nardo: Path) -> None:
    (nardo / "gt_matches.csv").write_text(HEADER + "1,1,0,2,11,3\n0,10,2,3,4,5\n")
    assert [own.tolist() for own in gt_matches.load(nardo).positives] == [[2, 3, 4, 5, 10], [0, 1, 2, 3, 11]]


def test_rows_that_count_no_queries_are_taken_in_order_and_noted(nardo: Path) -> None:
    (nardo / "gt_matches.csv").write_text(HEADER + "40,10,2,3,4,5\n41,1,0,2,11,3\n")
    found = gt_matches.load(nardo)
    assert [own.tolist() for own in found.positives] == [[2, 3, 4, 5, 10], [0, 1, 2, 3, 11]]
    assert "rows are used in file order" in found.notes[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,10,2,3,4,5\n1,1,0,2,12,3\n", r"gt_matches\.csv, line 3: 12 is not the index of a database image"),
        ("0,10,2,3,4,5\n1,1,0,2,x,3\n", r"gt_matches\.csv, line 3: 'x' is not a number for top_4_ref_ind"),
        ("0,10,2,3,4,5\n1,1,0,2\n", r"gt_matches\.csv, line 3: 4 fields, the header has 6"),
        ("first,10,2,3,4,5\n1,1,0,2,3,4\n", r"gt_matches\.csv, line 2: query_ind is 'first'"),
        ("0,10,2,3,4,5\n", "has 1 rows for 2 queries"),
    ],
)
def test_a_broken_row_is_named_with_its_line(nardo: Path, rows: str, message: str) -> None:
    (nardo / "gt_matches.csv").write_text(HEADER + rows)
    with pytest.raises(BadDataset, match=message):
        gt_matches.load(nardo)


def test_a_table_without_its_columns_says_what_it_has(nardo: Path) -> None:
    (nardo / "gt_matches.csv").write_text("query,reference\n0,1\n")
    with pytest.raises(BadDataset, match="no column query_ind; the header has query, reference"):
        gt_matches.load(nardo)


def test_a_missing_folder_is_named(nardo: Path) -> None:
    with pytest.raises(BadDataset, match="queries is missing"):
        gt_matches.load(nardo, queries="queries")


@pytest.fixture
def gardens(tmp_path: Path) -> Path:
    pictures(tmp_path / "day_right", 11, "Image{}.jpg")
    pictures(tmp_path / "night_right", 3, "Image{}.jpg")
    pairs(tmp_path / "gardens_gt.npy", [(0, [0, 1]), (1, np.array([10, 2])), (2, [])])
    return tmp_path


def test_an_object_array_lists_positives_of_each_query(gardens: Path) -> None:
    found = gt_npy.load(gardens)
    assert [own.tolist() for own in found.positives] == [[0, 1], [2, 10], []]
    assert all(own.dtype == np.int64 for own in found.positives)
    assert found.database[10].name == "Image10.jpg"


def test_rows_before_the_first_query_are_passed_over(gardens: Path) -> None:
    rows: list[tuple[object, object]] = [(0, [7]), (1, [7]), (2, [0]), (3, [1]), (4, [2])]
    pairs(gardens / "eiffel_gt.npy", rows)
    found = gt_npy.load(gardens, positives="eiffel_gt.npy", skip=2)
    assert [own.tolist() for own in found.positives] == [[0], [1], [2]]
    assert found.notes == ()


def test_an_impossible_number_is_named_with_its_row(gardens: Path) -> None:
    pairs(gardens / "gardens_gt.npy", [(0, [0]), (1, [11]), (2, [0])])
    with pytest.raises(BadDataset, match=r"gardens_gt\.npy, row 1: 11 is not the index"):
        gt_npy.load(gardens)


def test_a_row_that_is_no_pair_is_named(gardens: Path) -> None:
    array = np.empty(3, object)
    array[:] = [[0, [1]], [1, [1], [2]], [2, [1]]]
    np.save(gardens / "gardens_gt.npy", array, allow_pickle=True)
    with pytest.raises(BadDataset, match=r"row 1: a row must be \[query, positives\]"):
        gt_npy.load(gardens)


def test_words_among_positives_are_an_error(gardens: Path) -> None:
    pairs(gardens / "gardens_gt.npy", [(0, [0]), (1, ["a"]), (2, [0])])
    with pytest.raises(BadDataset, match=r"row 1: .* is not a list of image numbers"):
        gt_npy.load(gardens)


def test_a_missing_ground_truth_is_named(gardens: Path) -> None:
    with pytest.raises(BadDataset, match=r"lost_gt\.npy is missing"):
        gt_npy.load(gardens, positives="lost_gt.npy")


@pytest.fixture
def vpair_root(tmp_path: Path) -> Path:
    for folder, count in (("reference_views", 4), ("queries", 3), ("distractors", 2)):
        pictures(tmp_path / folder, count, "0000{}.png")
    pairs(tmp_path / "vpair_gt.npy", [(0, [0, 1]), (1, [0, 1, 2]), (2, [3])])
    return tmp_path


def test_vpair_stands_without_distractors(vpair_root: Path) -> None:
    found = vpair.load(vpair_root)
    assert len(found.database) == 4
    assert [own.tolist() for own in found.positives] == [[0, 1], [0, 1, 2], [3]]


def test_distractors_follow_the_references_and_are_never_positive(vpair_root: Path) -> None:
    found = vpair.load(vpair_root, distractors=True)
    assert [image.parent.name for image in found.database] == ["reference_views"] * 4 + ["distractors"] * 2
    assert [own.tolist() for own in found.positives] == [[0, 1], [0, 1, 2], [3]]
    assert found.notes == ("2 distractors appended",)


def test_the_number_of_a_distractor_is_refused(vpair_root: Path) -> None:
    pairs(vpair_root / "vpair_gt.npy", [(0, [0]), (1, [4]), (2, [3])])
    with pytest.raises(BadDataset, match="row 1: 4 is not the index"):
        vpair.load(vpair_root, distractors=True)


def test_natural_order_reads_numbers_as_numbers() -> None:
    names = ["b1", "a10", "a2", "a2b", "10", "9"]
    assert [path.name for path in natural_order(map(Path, names))] == ["9", "10", "a2", "a2b", "a10", "b1"]

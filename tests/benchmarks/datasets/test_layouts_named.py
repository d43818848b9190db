"""Layouts that match images by name, by frame or by lists of paths, each on a tree of its true form."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.benchmarks.datasets.trees import picture, pictures, python2_pairs, ragged, save_objects, utm, with_npy_header
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts import dvgl, vpr_bench
from tfa_bench.datasets.layouts.labels import pairs
from tfa_bench.datasets.layouts.lists import gsv_cities, gsv_lists, msls


def rows(found):
    return [row.tolist() for row in found.positives]


def names(paths):
    return [path.name for path in paths]


# --- dvgl ---


@pytest.mark.parametrize("base", ["images/test", "test", "."])
def test_dvgl_matches_utm_names_within_25_metres(tmp_path, base):
    for number, north in enumerate([0, 25, 25.01]):
        picture(tmp_path / base / "database" / utm(500, north), number)
    picture(tmp_path / base / "queries" / utm(500, 0, "q"), 9)
    found = dvgl.load(tmp_path)
    assert [rows(found), len(found.database), found.conditions] == [[[0, 1]], 3, {}]


def test_dvgl_reads_conditions_beside_a_gallery(tmp_path):
    base = tmp_path / "images" / "test"
    picture(base / "gallery" / utm(0, 0))
    picture(base / "queries" / utm(0, 0, "plain"))
    pictures(base / "queries_night", [utm(0, 1), utm(0, 900)])
    pictures(base / "queries_rain", [utm(0, 2)])
    conditions = {"night": "queries_night", "rain": "queries_rain"}
    found = dvgl.load(tmp_path, conditions=conditions)
    assert {name: own.tolist() for name, own in found.conditions.items()} == {"night": [0, 1], "rain": [2]}
    assert rows(found) == [[0], [], [0]]
    lacking = dvgl.missing(tmp_path, conditions=conditions | {"sun": "queries_sun"})
    assert lacking == ["images/test/queries_sun"]


def test_dvgl_names_images_without_a_position(tmp_path):
    picture(tmp_path / "database" / utm(0, 0))
    picture(tmp_path / "queries" / "plain.jpg")
    with pytest.raises(BadDataset, match=r"1 of 1 images are not named .*plain\.jpg"):
        dvgl.load(tmp_path, tolerance=10)


def test_dvgl_matches_bare_frames_by_tolerance(tmp_path):
    pictures(tmp_path / "database", [f"{n}.png" for n in range(12)])
    pictures(tmp_path / "queries", [f"{n}.png" for n in range(12)])
    found = dvgl.load(tmp_path, tolerance=2)
    assert rows(found)[:3] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert names(found.queries)[-1] == "11.png"


def test_dvgl_says_which_folders_it_lacks(tmp_path):
    with pytest.raises(BadDataset, match="images/val/database, images/val/queries"):
        dvgl.load(tmp_path, split="val")


# --- vpr_bench ---


@pytest.fixture
def bench(tmp_path):
    pictures(tmp_path / "ref", [f"{n:07d}.jpg" for n in range(3)])
    pictures(tmp_path / "query", [f"{n:07d}.jpg" for n in range(2)], start=7)
    return tmp_path


def test_vpr_bench_reads_ground_truth_of_python_2_in_any_order(bench):
    pickled = python2_pairs([(1, [2, 1]), (0, [0])])
    (bench / "ground_truth_new.npy").write_bytes(with_npy_header(pickled, (2, 2)))
    assert rows(vpr_bench.load(bench)) == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([(0, [0]), (1, [3])], "3 is not the index of a database image"),
        ([(0, [0]), (0, [1])], "query 0 twice"),
        ([(0, [0]), (5, [1])], "not the 2 of the query images"),
    ],
)
def test_vpr_bench_refuses_ground_truth_of_other_images(bench, listed, message):
    (bench / "ground_truth_new.npy").write_bytes(with_npy_header(python2_pairs(listed), (2, 2)))
    with pytest.raises(BadDataset, match=message):
        vpr_bench.load(bench)


def test_vpr_bench_knows_other_folder_names_and_tolerance(tmp_path):
    pictures(tmp_path / "reference_combined", ["0.jpg", "1.jpg"])
    pictures(tmp_path / "query_combined", ["0.jpg", "1.jpg"])
    options = {"queries": ["query", "query_combined"], "database": ["ref", "reference_combined"], "tolerance": 0}
    assert rows(vpr_bench.load(tmp_path, **options)) == [[0], [1]]
    assert vpr_bench.missing(tmp_path, **options) == []
    with pytest.raises(BadDataset, match="query is missing"):
        vpr_bench.load(tmp_path)
    assert vpr_bench.missing(tmp_path) == ["query", "ref", "ground_truth_new.npy"]


# --- lists of paths ---


@pytest.mark.parametrize("place", [".", "datasets"])
@pytest.mark.parametrize("as_objects", [False, True])
def test_gsv_lists_read_paths_and_rows(tmp_path, place, as_objects):
    pictures(tmp_path / "database", ["a.jpg", "b.jpg"])
    pictures(tmp_path / "queries", ["q.jpg", "p.jpg"], start=5)
    kind = object if as_objects else str
    save_objects(tmp_path / place / "x_dbImages.npy", np.array(["database/b.jpg", "database/a.jpg"], kind))
    save_objects(tmp_path / place / "x_qImages.npy", np.array(["queries/q.jpg", "queries/p.jpg"], kind))
    save_objects(tmp_path / place / "x_gt.npy", ragged([[1, 0], []]))
    found = gsv_lists.load(tmp_path)
    assert names(found.database) == ["b.jpg", "a.jpg"]  # the order of the list is the order of its indices
    assert rows(found) == [[0, 1], []]


def test_gsv_lists_name_missing_images_and_lists(tmp_path):
    picture(tmp_path / "a.jpg")
    assert gsv_lists.missing(tmp_path) == ["*_dbImages.npy", "*_qImages.npy", "*_gt.npy"]
    np.save(tmp_path / "x_dbImages.npy", np.array(["a.jpg", "gone.jpg"]))
    np.save(tmp_path / "x_qImages.npy", np.array(["a.jpg"]))
    with pytest.raises(BadDataset, match=r"_gt\.npy is missing"):
        gsv_lists.load(tmp_path)
    np.save(tmp_path / "x_gt.npy", np.array([[0]]))
    with pytest.raises(BadDataset, match=r"1 of them are missing .*gone\.jpg"):
        gsv_lists.load(tmp_path)
    np.save(tmp_path / "x_dbImages.npy", np.array(["../../etc/passwd"]))
    with pytest.raises(BadDataset, match="outside the dataset's folder"):
        gsv_lists.load(tmp_path)


def test_two_gsv_lists_are_ambiguous(tmp_path):
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}_dbImages.npy", np.array(["a.jpg"]))
    with pytest.raises(BadDataset, match="both match"):
        gsv_lists.load(tmp_path)


def msls_tree(root, used, positives):
    pictures(root / "train_val/cph/database/images", ["a.jpg", "b.jpg"])
    pictures(root / "train_val/cph/query/images", ["0.jpg", "1.jpg", "2.jpg"], start=5)
    shown = [f"train_val/cph/query/images/{n}.jpg" for n in range(3)]
    save_objects(
        root / "msls_val/msls_val_dbImages.npy", np.array([f"train_val/cph/database/images/{n}.jpg" for n in "ab"])
    )
    save_objects(root / "msls_val/msls_val_qImages.npy", np.array(shown))
    save_objects(root / "msls_val/msls_val_qIdx.npy", np.array(used))
    save_objects(root / "msls_val/msls_val_pIdx.npy", ragged(positives))


def test_msls_has_only_the_chosen_queries(tmp_path):
    msls_tree(tmp_path, [0, 2], [[1], [0, 1]])
    found = msls.load(tmp_path)
    assert names(found.queries) == ["0.jpg", "2.jpg"]
    assert rows(found) == [[1], [0, 1]]
    assert "2 of 3" in found.notes[0]


@pytest.mark.parametrize(
    ("used", "positives", "message"),
    [([0, 3], [[1], [0]], "must choose"), ([1, 1], [[1], [0]], "must choose"), ([0], [[1], [0]], "2 rows")],
)
def test_msls_refuses_lists_that_disagree(tmp_path, used, positives, message):
    msls_tree(tmp_path, used, positives)
    with pytest.raises(BadDataset, match=message):
        msls.load(tmp_path)


# --- pairs, GSV-Cities ---


def test_pairs_match_stems_across_endings(tmp_path):
    pictures(tmp_path / "new", ["a.png", "b.png", "spare.png"])
    pictures(tmp_path / "old", ["b.jpg", "a.jpg"])
    found = pairs.load(tmp_path)
    assert (names(found.queries), rows(found)) == (["a.jpg", "b.jpg"], [[0], [1]])


def test_pairs_name_images_without_a_partner(tmp_path):
    pictures(tmp_path / "new", ["a.png"])
    pictures(tmp_path / "old", ["a.jpg", "c.jpg"])
    with pytest.raises(BadDataset, match=r"1 images .* no image of the same name .*\(first: c\)"):
        pairs.load(tmp_path)
    picture(tmp_path / "new" / "a.jpg")
    with pytest.raises(BadDataset, match="with two extensions"):
        pairs.load(tmp_path)
    assert pairs.missing(tmp_path / "nowhere") == ["new", "old"]


@pytest.fixture
def brussels(tmp_path):
    shots = [(1, 2015), (1, 2018), (2, 2015), (2, 2019)]
    listed = [f"Brussels_{place:07d}_{year}_07_120_50.8_4.35_pa_no-{year}.JPG" for place, year in shots]
    pictures(tmp_path / "Images" / "Brussels", listed)
    return tmp_path, listed


def test_gsv_cities_match_place_ids_of_listed_queries(brussels):
    root, listed = brussels
    (root / "queries.txt").write_text(f"{listed[1]}\n\n{listed[3]}\n")
    found = gsv_cities.load(root, city="Brussels")
    assert names(found.database) == [listed[0], listed[2]]
    assert rows(found) == [[0], [1]]


def test_gsv_cities_take_the_users_positives_first(brussels):
    root, listed = brussels
    (root / "queries.txt").write_text(listed[3])
    (root / "positives.json").write_text(json.dumps({listed[0]: [listed[2], listed[1]]}))
    found = gsv_cities.load(root, city="Brussels")
    assert (names(found.queries), len(found.database), rows(found)) == ([listed[0]], 3, [[0, 1]])


def test_gsv_cities_need_a_list_of_queries(brussels):
    root, listed = brussels
    with pytest.raises(BadDataset, match="not published"):
        gsv_cities.load(root, city="Brussels")
    assert gsv_cities.missing(root, city="Paris") == ["Images/Paris", "positives.json or queries.txt"]
    (root / "queries.txt").write_text("other.jpg")
    with pytest.raises(BadDataset, match=r"other\.jpg"):
        gsv_cities.load(root, city="Brussels")
    (root / "queries.txt").write_text("\n".join(listed))
    with pytest.raises(BadDataset, match="4 of 4"):
        gsv_cities.load(root, city="Brussels")

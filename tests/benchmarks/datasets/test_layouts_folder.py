"""The generic layout: listed positives, frames of the same number, distances, conditions."""

from __future__ import annotations

import json

import pytest

from tests.benchmarks.datasets.trees import picture, pictures
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts import folder


def rows(found):
    return [row.tolist() for row in found.positives]


def names(paths):
    return [path.name for path in paths]


@pytest.fixture
def town(tmp_path):
    pictures(tmp_path / "database", ["a.png", "b.png", "c.png"])
    pictures(tmp_path / "queries", ["p.png", "q.png"], start=10)
    return tmp_path


def list_positives(root, listed, name="positives.json"):
    (root / name).write_text(json.dumps(listed))


def test_folder_reads_listed_positives(town):
    list_positives(town, {"q.png": ["c.png", "a.png"], "p.png": []})
    found = folder.load(town)
    assert names(found.database) == ["a.png", "b.png", "c.png"]
    assert rows(found) == [[], [0, 2]]
    assert found.conditions == {}


def test_folder_reads_another_positives_file(town):
    list_positives(town, {"p.png": ["a.png"]})
    list_positives(town, {"p.png": ["b.png"]}, "strict.json")
    assert rows(folder.load(town, positives="strict.json")) == [[1], []]
    with pytest.raises(BadDataset, match=r"other\.json is missing"):
        folder.load(town, positives="other.json", tolerance=1)


def test_folder_takes_subfolders_of_queries_as_conditions(tmp_path):
    pictures(tmp_path / "database" / "north", ["a.png"])
    pictures(tmp_path / "queries" / "night", ["1.png", "2.png"])
    pictures(tmp_path / "queries" / "day", ["1.png"])
    list_positives(tmp_path, {"night/1.png": ["north/a.png"], "day/1.png": ["a.png"], "2.png": []})
    found = folder.load(tmp_path)
    assert {name: own.tolist() for name, own in found.conditions.items()} == {"day": [0], "night": [1, 2]}
    assert rows(found) == [[0], [0], []]


def test_folder_names_unknown_names_and_ambiguous_ones(town):
    list_positives(town, {"x.png": ["a.png"], "p.png": ["y.png", "z.png"]})
    with pytest.raises(BadDataset, match=r"1 unknown query names \(first: x\.png\); 2 unknown database names .*y\.png"):
        folder.load(town)
    picture(town / "database" / "more" / "a.png")
    list_positives(town, {"p.png": ["a.png"]})
    with pytest.raises(BadDataset, match=r"2 images are named a\.png"):
        folder.load(town)


@pytest.mark.parametrize("text", ["[]", '{"p.png": "a.png"}', '{"p.png": [1]}', "{", "\x00"])
def test_folder_refuses_positives_of_another_form(town, text):
    (town / "positives.json").write_text(text)
    with pytest.raises(BadDataset, match=r"positives\.json"):
        folder.load(town)


def test_folder_matches_frames_by_number(tmp_path):
    pictures(tmp_path / "database", ["8.png", "9.png", "10.png"])
    pictures(tmp_path / "queries", ["8.png", "9.png", "10.png"], start=5)
    found = folder.load(tmp_path, tolerance=1)
    assert names(found.queries) == ["8.png", "9.png", "10.png"]  # not 10, 8, 9
    assert rows(found) == [[0, 1], [0, 1, 2], [1, 2]]
    assert "± 1" in found.notes[0]
    picture(tmp_path / "queries" / "11.png")
    with pytest.raises(BadDataset, match="3 database images and 4 queries"):
        folder.load(tmp_path, tolerance=1)


def test_folder_matches_by_distance_with_the_border(town):
    lines = ["file,x,y", "a.png,0,0", "b.png,25,0", "c.png,26,0", "p.png,0,0", "q.png,51,0"]
    (town / "positions.csv").write_text("\n".join(lines))
    assert rows(folder.load(town, radius=25.0)) == [[0, 1], [2]]


def test_folder_measures_degrees_on_the_ground(town):
    # a thousandth of a degree of latitude is 111 m
    lines = ["file,lat,lon", "a.png,48,11", "b.png,48.001,11", "c.png,48,11.001", "p.png,48,11", "q.png,48.001,11"]
    (town / "positions.csv").write_text("\n".join(lines))
    assert rows(folder.load(town, radius=80.0)) == [[0, 2], [1]]
    assert rows(folder.load(town, radius=112.0)) == [[0, 1, 2], [0, 1]]


def test_folder_without_any_rule_needs_positives(town):
    with pytest.raises(BadDataset, match=r"positives\.json is missing"):
        folder.load(town)
    with pytest.raises(BadDataset, match="5 of 5 images have no position"):
        folder.load(town, radius=25.0)


def test_folder_tells_all_that_is_missing(tmp_path):
    assert folder.missing(tmp_path) == ["database", "queries", "positives.json"]

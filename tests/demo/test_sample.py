"""Sample photos of the demo: small, complete, and a part of them where fewer are needed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import tfa.demo
from tfa.demo.sample import copy_sample_town
from tfa.errors import BadSpec

SHIPPED = Path(tfa.demo.__file__).parent / "town"


def test_photos_take_at_most_two_megabytes():
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 2_000_000
    assert len([file for file in files if file.suffix == ".jpg"]) == 135


def test_a_copy_is_complete(tmp_path):
    town = copy_sample_town(tmp_path)
    assert (len(town.reference_files), len(town.query_files)) == (90, 45)
    assert sorted(file.name for file in town.references.iterdir()) == town.reference_files
    assert sorted(file.name for file in town.queries.iterdir()) == town.query_files
    assert json.loads(town.positives_json.read_text()) == town.positives
    assert list(town.positives) == town.query_files
    with open(town.positions_csv, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == town.reference_files
    np.testing.assert_array_equal([[float(row["x"]), float(row["y"])] for row in rows], town.reference_positions)
    assert town.query_positions.shape == (45, 2)


@pytest.mark.parametrize(("references", "queries", "answered"), [(24, 12, 12), (24, 8, 8), (2, 45, 1), (30, 15, 15)])
def test_fewer_references_are_the_beginning_of_the_route(tmp_path, references, queries, answered):
    town = copy_sample_town(tmp_path, references=references, queries=queries)
    assert town.reference_files == [f"ref_{number:03d}.jpg" for number in range(references)]
    assert len(town.query_files) == answered
    assert all(right and set(right) <= set(town.reference_files) for right in town.positives.values())


def test_a_second_copy_replaces_the_first(tmp_path):
    copy_sample_town(tmp_path)
    town = copy_sample_town(tmp_path, references=10, queries=3)
    assert len(list(town.references.iterdir())) == 10
    assert len(list(town.queries.iterdir())) == 3


@pytest.mark.parametrize("wrong", [{"references": 1}, {"queries": 0}])
def test_too_few_photos_are_refused(tmp_path, wrong):
    with pytest.raises(BadSpec, match="at least 2 references"):
        copy_sample_town(tmp_path, **wrong)

"""Distances of places and of best answers to the truth, and a truth in UTM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfa.evaluate.explorer import distance_row
from tfa.evaluate.ground_truth import read_ground_truth
from tfa.evaluate.judgement import PROBABILITY, EvaluatedHit, JudgedAnswer, JudgedPlace, Run, measure_distances
from tfa.types import ImageRecord, Position

HERE = Position(x=0, y=0)


def answer(distance: float | None, *place: float) -> JudgedAnswer:
    fused = JudgedPlace(HERE, place[1], place[0], place[2]) if place else None
    return JudgedAnswer((EvaluatedHit("a", True, None, None, distance, None),), 0.5, place=fused)


def test_places_stand_beside_the_best_answers_of_the_same_queries():
    given = (answer(10, 4, 5, 0.95), answer(30, 6, 5, 0.6), answer(500), answer(None), None, answer(20, 2, 5, 0.9))
    run = Run("none", "", PROBABILITY, 1, given)
    metres = measure_distances(run)
    assert metres.to_dict() == {
        "queries": 4,
        "placed": 3,
        "fused": {"median": 4.0, "ninety": pytest.approx(5.6)},
        "within_radius": pytest.approx(2 / 3),
        "agreed": 2,
        "fused_agreed": {"median": 3.0, "ninety": pytest.approx(3.8)},
        "best": {"median": 20.0, "ninety": pytest.approx(28.0)},
        "best_of_all": {"median": 25.0, "ninety": pytest.approx(359.0)},
    }
    row = distance_row(run.name, metres)
    assert (row["within radius"], row["agreed"], row["agreed: median"], row["agreed: 90 %"]) == (
        "67 %",
        "2",
        "3.0",
        "3.8",
    )
    alone = measure_distances(Run("none", "", PROBABILITY, 1, (answer(10, 4, 5, 0.6),)))
    assert (alone.agreed, alone.fused_agreed) == (0, None)
    assert measure_distances(Run("none", "", PROBABILITY, 1, (answer(None), None))) is None


def test_a_truth_in_utm_is_turned_into_the_kind_of_the_map(tmp_path):
    pytest.importorskip("pyproj")
    (tmp_path / "t.csv").write_text("file,x,y\nq.jpg,448251.8,5411932.7\n")
    image = ImageRecord(id=0, path="a.jpg", digest="", fitted=True, position=Position(lat=48.8582, lon=2.2945))
    found = read_ground_truth(tmp_path / "t.csv", [Path("q.jpg")], None, [image], 25, "31N")
    assert found.right[0].tolist() == [0]
    (tmp_path / "t.csv").write_text("file,lat,lon\nq.jpg,48.8582,2.2945\n")
    image = ImageRecord(id=0, path="a.jpg", digest="", fitted=True, position=Position(x=448251.8, y=5411932.7))
    found = read_ground_truth(tmp_path / "t.csv", [Path("q.jpg")], None, [image], 25, "31N")
    assert (found.right[0].tolist(), found.positions[0].is_global) == ([0], False)

"""Evaluation: the truth about queries, numbers against a plain recomputation, and evaluations side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.evaluate.judged_queries import made_judgement
from tfa.errors import BadPositions, BadSpec
from tfa.evaluate.explorer import short_names
from tfa.evaluate.ground_truth import GroundTruth, find_nearest_true, read_ground_truth
from tfa.evaluate.judgement import score_run
from tfa.evaluate.map_evaluation import MapEvaluation, compare_with_file, make_result
from tfa.evaluate.positives import BadEvaluation, to_points
from tfa.types import ImageRecord, Position

QUERIES = [Path("/walk/a.jpg"), Path("/walk/b.jpg"), Path("/walk/sub/c.jpg")]
IMAGES = [
    ImageRecord(id=7, path=f"/map/{at}.jpg", digest="", fitted=True, position=Position(x=10.0 * at, y=0.0))
    for at in range(4)
]
BARE = [replace(image, position=None) for image in IMAGES]


def truth_file(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def rows(truth: GroundTruth) -> list[list[int] | None]:
    return [None if own is None else own.tolist() for own in truth.right]


def test_positions_make_right_what_lies_within_the_radius(tmp_path):
    csv = truth_file(tmp_path, "where.csv", "file,x,y\na.jpg,3,4\nsub/c.jpg,0,500\n")
    truth = read_ground_truth(csv, QUERIES, Path("/walk"), IMAGES, 10.0)
    assert rows(truth) == [[0, 1], None, []]  # 5 m and √65 m; not listed; listed, but nothing is near
    assert truth.rule == "at most 10 m away"
    assert find_nearest_true(truth, IMAGES) == ["/map/0.jpg", None, None]
    assert rows(read_ground_truth(csv, QUERIES, None, IMAGES))[0] == [0, 1, 2]  # 25 m if not given
    assert read_ground_truth(csv, QUERIES, None, IMAGES, 9.0).fingerprint != truth.fingerprint


def test_degrees_are_distances_in_metres(tmp_path):
    north = [replace(IMAGES[0], position=Position(lat=52.0 + metres / 111_250, lon=13.0)) for metres in (0, 20, 60)]
    csv = truth_file(tmp_path, "where.csv", "file,lat,lon\na.jpg,52,13\nb.jpg,52,14\n")
    assert rows(read_ground_truth(csv, QUERIES, None, north)) == [[0, 1], [], None]
    a, b = to_points([Position(lat=0.0, lon=0.0), Position(lat=0.0, lon=0.001)])
    assert np.linalg.norm(a - b) == pytest.approx(111.3, abs=0.1)


def test_positives_name_queries_and_images_by_any_ending_of_their_paths(tmp_path):
    listed = {"walk/a.jpg": ["1.jpg", "map/3.jpg"], "sub/c.jpg": [], "other.jpg": ["0.jpg"], "b.jpg": ["gone.jpg"]}
    truth = read_ground_truth(truth_file(tmp_path, "positives.json", listed), QUERIES, None, BARE)
    assert rows(truth) == [[1, 3], [], []]
    assert truth.notes == (
        "positives.json names 1 photos that are not queries (first: other.jpg)",
        "positives.json names 1 images that are not in the map (first: gone.jpg)",
    )
    assert find_nearest_true(truth, BARE) == ["/map/3.jpg", None, None]


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("t.txt", "", BadEvaluation, r"t.txt must end in .csv \(file,lat,lon .* or in .json"),
        ("t.csv", "file,x,y\na.jpg,1\n", BadPositions, "line 2: y is '', must be a number"),
        ("t.csv", "file,x,y\nz.jpg,1,2\n", BadPositions, "none of its 1 rows matches a photo"),
        ("t.csv", "file,lat,lon\na.jpg,1,2\n", BadEvaluation, r"in a plane \(x, y\), but in .* on the globe"),
        ("t.json", '{"a.jpg": ["0.jpg"],\n "b.jpg" []}', BadEvaluation, "t.json cannot be read: .* line 2"),
        ("t.json", {"a.jpg": "0.jpg"}, BadEvaluation, "must hold one JSON object"),
        ("t.json", {"z.jpg": ["0.jpg"]}, BadEvaluation, "names none of the 3 queries .* first is 'z.jpg'"),
        ("t.json", {"a.jpg": ["z.jpg"]}, BadEvaluation, "names no map image .* first is 'z.jpg'"),
        ("t.json", {"a.jpg": ["0.jpg"], "walk/a.jpg": []}, BadEvaluation, "name the same query; keep one"),
    ],
)
def test_a_truth_that_cannot_be_used_says_why(tmp_path, name, content, error, words):
    with pytest.raises(error, match=words):
        read_ground_truth(truth_file(tmp_path, name, content), QUERIES, None, IMAGES)


def test_what_truth_and_map_lack_is_told(tmp_path):
    csv = truth_file(tmp_path, "where.csv", "file,x,y\na.jpg,3,4\n")
    with pytest.raises(BadEvaluation, match=r"none of the 4 map images has a position.* --positions"):
        read_ground_truth(csv, QUERIES, None, BARE)
    assert read_ground_truth(csv, QUERIES, None, [*IMAGES, BARE[0]]).notes == (
        "1 of 5 map images have no position and are never right",
    )
    for radius in (0.0, float("nan")):
        with pytest.raises(BadSpec, match="must be meters above 0"):
            read_ground_truth(csv, QUERIES, None, IMAGES, radius)
    listed = truth_file(tmp_path, "p.json", {"a.jpg": ["x.jpg"]})
    with pytest.raises(BadSpec, match="remove --radius"):
        read_ground_truth(listed, QUERIES, None, IMAGES, 5.0)
    twins = [Path("/a/x.jpg"), Path("/b/x.jpg")]
    with pytest.raises(BadEvaluation, match=r"2 map images are named 'x.jpg'; write more .*'a/x.jpg'"):
        read_ground_truth(listed, QUERIES, None, [replace(BARE[0], path=str(path)) for path in twins])


def test_numbers_are_those_of_a_plain_recomputation():
    judgement = made_judgement()
    [run] = judgement.runs
    numbers = score_run(judgement, run)
    ranks = [next((at for at, hit in enumerate(one.hits) if hit.right), None) for one in run.evaluated_answers]
    right_within = {k: sum(rank is not None and rank < k for rank in ranks) for k in (1, 5, 10)}  # 12 deep
    assert numbers.recalls == {str(k): count / 40 for k, count in right_within.items()}
    assert 0 < right_within[1] < right_within[10] < 40

    pairs = [(one.confidence, one.hits[0].right) for one in run.evaluated_answers]
    area, before, at_99 = 0.0, 0.0, 0.0
    for level in sorted({confidence for confidence, _ in pairs}, reverse=True):
        taken = [right for confidence, right in pairs if confidence >= level]
        precision, recall = sum(taken) / len(taken), sum(taken) / len(pairs)
        area, before = area + (recall - before) * precision, recall
        at_99 = max(at_99, recall) if precision >= 0.99 else at_99
    assert numbers.acceptance.area == pytest.approx(area)
    assert numbers.acceptance.recall_at_99 == at_99

    sure = [one.right for one in run.evaluated_answers if one.sure]
    assert (numbers.sure.answers, numbers.sure.right) == (len(sure), sum(sure))
    share = sum(confidence for confidence, _ in pairs) / len(pairs)
    expected = numbers.expected_recall
    assert (expected.share, expected.true) == (pytest.approx(share), numbers.recalls["1"])
    assert expected.holds == (expected.low <= expected.true <= expected.high)

    wrong = [one for one in run.evaluated_answers if not one.hits[0].right]
    assert len(numbers.mistakes) == len(wrong)
    told = [one.confidence for one in numbers.mistakes]
    assert told == sorted((one.confidence for one in wrong), reverse=True)
    for hub in numbers.hubs:
        assert hub.wrong == sum(one.hits[0].image == hub.image for one in wrong) >= 2
        assert hub.right == sum(one.right and one.hits[0].image == hub.image for one in run.evaluated_answers)
    assert sum(hub.wrong for hub in numbers.hubs) > 0


def test_a_saved_evaluation_stands_beside_a_later_one(tmp_path):
    truth = GroundTruth("as listed", "f", (), ())
    earlier, later = (MapEvaluation(made_judgement(seed), truth, "none", (), ()) for seed in (0, 1))
    file = truth_file(tmp_path, "before.json", make_result(earlier, worst=3).to_dict())
    both = compare_with_file(later, file)
    assert [run.name for run in both.runs] == ["none", "none of town.tfa"]
    before = score_run(earlier.judgement, earlier.judgement.runs[0])
    assert score_run(both, both.runs[1]).recalls == before.recalls
    assert len(json.loads(file.read_text())["heads"][0]["mistakes"]) == 3
    pairs = [
        (one.right, other.right)
        for one, other in zip(both.runs[0].evaluated_answers, both.runs[1].evaluated_answers, strict=True)
    ]
    [change] = make_result(later, 3, both.runs[1:]).to_dict()["changes"]
    assert (change["won"], change["lost"]) == (pairs.count((True, False)), pairs.count((False, True)))
    assert change["difference"]["mean"] == pytest.approx((change["won"] - change["lost"]) / 40)
    assert change["won"] != change["lost"]
    with pytest.raises(BadEvaluation, match="has another ground truth"):
        compare_with_file(replace(later, truth=replace(truth, fingerprint="g")), file)
    values = json.loads(file.read_text())
    del values["queries"][0]["answers"]
    with pytest.raises(BadEvaluation, match=r"is damaged: it.queries.0..answers is missing"):
        compare_with_file(later, truth_file(tmp_path, "cut.json", values))


def test_names_are_shown_below_what_they_share():
    assert short_names(["/a/b/c/1.jpg", "/a/b/2.jpg"]) == ["c/1.jpg", "2.jpg"]
    assert short_names(["q/1.jpg", "r/1.jpg"]) == ["q/1.jpg", "r/1.jpg"]
    assert short_names([]) == []

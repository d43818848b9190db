"""`tfa evaluate` and `tfa bench explore`: output, files and errors."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from tests.benchmarks.figure_records import write_photos, write_town
from tests.fakes import FakeEncoder, random_image
from tfa.demo.sample import copy_sample_town
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb

LISTED = {f"{place:02d}.png": [f"{place:02d}.png"] for place in range(14)}


@pytest.fixture
def evaluate(run, folder):
    """Of queries `camera/`, of which 03 is broken and 13 has no truth; 05 has another place."""
    listed = {name: right for name, right in LISTED.items() if name != "13.png"} | {"05.png": ["06.png"]}
    Path("truth.json").write_text(json.dumps({f"camera/{name}": right for name, right in listed.items()}))
    Path("camera/03.png").write_bytes(b"no photo")
    return lambda name, *args: run("evaluate", name, "camera", "--ground-truth", "truth.json", *args)


def test_every_head_has_a_row_and_what_is_left_out_is_said(evaluate):
    result = evaluate("calibrated.tfa", "--html", "page.html", "--out", "all.json", "--worst", 1)
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows if row and row[0] in ("none", "day", "night")] == [
        ["none", "12"], ["day", "12"], ["night", "*"],
    ]  # fmt: skip
    assert "14 images, 12 queries. Right answers: as listed in truth.json." in result.stdout
    assert "Percent. * = default. Expected recall is estimated without labels (90 % interval)." in result.stdout
    assert "Most confident mistakes of calibration night (1 of " in result.stdout
    assert "1 photo without ground truth left out (first: camera/13.png)" in result.stderr
    assert "1 file skipped:\n  camera/03.png cannot be opened: " in result.stderr
    written = json.loads(Path("all.json").read_text())
    assert [head["name"] for head in written["heads"]] == ["none", "day", "night"]
    assert written["without_ground_truth"] == ["camera/13.png"]
    assert [entry["number"] for entry in written["queries"]] == [0, 1, 2, *range(4, 13)]
    page = Path("page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("data:image/jpeg;base64,") > 12
    content = json.loads(re.search(r'id="content">(.*?)</script>', page)[1])
    hits = [answer[2][0] for run in content["runs"] for answer in run["answers"]]
    lined = [hit for hit in hits if len(hit) == 6]
    assert lined
    assert all(len(hit[5]) == 2 * hit[3] for hit in lined)  # two patches for each match


def test_json_tells_recalls_answers_and_the_expected_recall(evaluate):
    told = json.loads(evaluate("calibrated.tfa", "--json", "--calibration", "none", "-k", 3).stdout)
    [head] = told["heads"]
    assert (head["name"], head["active"], set(head["recalls"])) == ("none", False, {"1"})
    answers = [entry["answers"]["none"] for entry in told["queries"]]
    assert {len(answer["hits"]) for answer in answers} == {3}
    assert head["recalls"]["1"] == sum(answer["right"] for answer in answers) / 12
    expected = head["expected_recall"]
    assert expected["true"] == head["recalls"]["1"]
    assert expected["holds"] == (expected["low"] <= expected["true"] <= expected["high"])
    [mistake] = [one for one in head["mistakes"] if one["query"] == "camera/05.png"]
    assert Path(mistake["image"]).name != "06.png"
    assert Path(mistake["true_image"]).name == "06.png"


def test_positions_are_a_truth_and_places_the_map_has_not_may_be_left_out(run, folder):
    Path("at.csv").write_text("file,lat,lon\n05.png,57.5,13.25\n06.png,10,10\n")
    told = json.loads(
        run("evaluate", "town.tfa", "camera", "--ground-truth", "at.csv", "--radius", 50, "--json").stdout
    )
    assert told["ground_truth"]["rule"] == "at most 50 m away"
    assert (len(told["queries"]), told["not_in_map"], len(told["without_ground_truth"])) == (2, 1, 12)
    best = told["queries"][0]["answers"]["none"]["hits"][0]
    assert (Path(best["image"]).name, best["right"], best["distance"]) == ("05.png", True, 0.0)
    metres, exact = told["heads"][0]["metres"], {"median": 0.0, "ninety": 0.0}
    assert (metres["queries"], metres["placed"], metres["within_radius"]) == (1, 1, 1.0)
    assert metres["best"] == metres["best_of_all"] == exact
    printed = run("evaluate", "town.tfa", "camera", "--ground-truth", "at.csv", "--radius", 50).stdout
    assert "not in the map" in printed
    assert "1 of 1" in printed
    told = json.loads(
        run("evaluate", "town.tfa", "camera", "--ground-truth", "at.csv", "--skip-unanswerable", "--json").stdout
    )
    assert (len(told["queries"]), told["unanswerable_left_out"]) == (1, 1)


def test_an_earlier_evaluation_may_stand_beside(evaluate):
    assert evaluate("town.tfa", "--out", "before.json").exit_code == 0
    result = evaluate("calibrated.tfa", "--calibration", "day", "--against", "before.json", "--html", "page.html")
    assert result.exit_code == 0, result.stderr
    assert "day against none of town.tfa: R@1 +0.0 [+0.0, +0.0]; 0 queries won, 0 lost" in result.stdout
    assert "none of town.tfa" in Path("page.html").read_text("utf-8")


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    """A map of the sample town, and a drive: three frames of elsewhere, then the town; one broken, one unlabeled."""
    root = tmp_path_factory.mktemp("drive")
    town = copy_sample_town(root / "demo", references=20, queries=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(root / "cache"))
        PlaceMap.build(town.references, encoder=FakeEncoder()).save(root / "town.tfa")
    frames = [random_image(number + 900) for number in range(3)]
    frames += [as_rgb(town.references / name).resize((56, 56)) for name in town.reference_files]
    (root / "frames").mkdir()
    for number, frame in enumerate(frames):
        frame.point(lambda value: int(0.8 * value)).save(root / "frames" / f"{number:02d}.png")
    truth = {f"{number + 3:02d}.png": [name] for number, name in enumerate(town.reference_files)}
    truth |= {"00.png": [], "20.png": town.reference_files[:1]}
    del truth["12.png"]
    (root / "frames" / "09.png").write_bytes(b"no photo")
    (root / "truth.json").write_text(json.dumps(truth))
    return root


def test_recall_of_a_drive_is_that_of_the_answers_of_a_query(run, fake_encoder, drive):
    written = run("query", drive / "town.tfa", "--sequence", drive / "frames", "--out", "answers.csv", "-k", 1)
    assert written.exit_code == 1  # a frame is broken
    with Path("answers.csv").open(newline="") as file:
        best = {Path(row["query"]).name: Path(row["image"]).name for row in csv.DictReader(file)}
    truth = json.loads((drive / "truth.json").read_text())
    right = sum(best.get(name) in names for name, names in truth.items())
    words = ("evaluate", drive / "town.tfa", drive / "frames", "--ground-truth", drive / "truth.json")
    [head] = json.loads(run(*words, "--sequence", "--json").stdout)["heads"]
    assert head["recalls"]["1"] == right / head["evaluated"]
    assert (head["evaluated"], len(truth)) == (19, 20)  # without the broken frame
    assert 10 < right < 19
    assert head["unanswered"] > 0  # such as the first frame, at which the camera is lost


@pytest.mark.parametrize("flags", [["--online"], ["--sequence", "--lag", "2"]])
def test_a_stream_is_judged_by_the_answers_of_a_query(run, fake_encoder, drive, flags):
    photos = [*flags[:1], drive / "frames", *flags[1:]]
    answers = json.loads(run("query", drive / "town.tfa", *photos, "-k", 20, "--json").stdout)["answers"]
    queried = {answer["query"]: answer for answer in answers}
    words = ("evaluate", drive / "town.tfa", drive / "frames", "--ground-truth", drive / "truth.json")
    printed = run(*words, *flags, "--out", "stream.json", "--html", "page.html").stdout
    result = json.loads(Path("stream.json").read_text())
    judged = {entry["query"]: entry["answers"]["none"] for entry in result["queries"]}
    for query, answer in judged.items():
        hits = [[(hit["image"], hit["confidence"]) for hit in one["hits"]] for one in (answer, queried[query])]
        assert hits[0] == hits[1]
        assert answer["sure"] == queried[query]["sure"]
    trust = [answer["confidence"] or 0.0 for answer in judged.values()]  # a lost frame has none
    assert result["heads"][0]["expected_recall"]["share"] == pytest.approx(sum(trust) / len(trust))
    assert f"Queries are answered as by tfa query {' '.join(flags)}." in printed
    assert f"Queries are answered as by tfa query {' '.join(flags)}." in Path("page.html").read_text("utf-8")
    later = run(*words, "--against", "stream.json").stdout
    assert f"none against none of town.tfa {' '.join(flags)}: R@1 " in later
    assert "answered as by" not in later


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["town.tfa", "camera", "--ground-truth", "absent.csv"], "absent.csv does not exist"),
        (["town.tfa", "camera", "--ground-truth", "near.jpg"], "must end in .csv"),
        (["plain.tfa", "camera", "--ground-truth", "where.csv"], "build the map with --positions, or pass positives"),
        (
            ["calibrated.tfa", "camera", "--ground-truth", "where.csv", "--calibration", "dusk"],
            "calibration 'dusk' not found",
        ),
        (["town.tfa", "bad.jpg", "--ground-truth", "bad.json"], "all 1 images are broken"),
    ],
)
def test_files_and_photos_that_cannot_be_used_are_errors(run, folder, args, words):
    Path("bad.json").write_text('{"bad.jpg": ["05.png"]}')
    result = run("evaluate", *args)
    assert result.exit_code == 1
    assert words in result.stderr


def test_records_become_a_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, truth = write_town(Path("results"))
    write_photos(Path("photos"), truth)
    result = run("bench", "explore", "--records", "results", "--photos", "photos", "--out", "page.html")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "page.html: 2 heads on 12 queries of The town <&>\n"
    page = Path("page.html").read_text("utf-8")
    assert "The town &lt;&amp;&gt;" in page
    assert "The town <&>" not in page
    result = run("bench", "explore", "--records", "results", "--photos", "absent", "--out", "page.html")
    assert "absent is not a folder" in result.stderr


def test_many_photos_lie_in_a_folder_beside_the_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tfa.evaluate.explorer.INSIDE", 10)
    _, truth = write_town(Path("results"))
    write_photos(Path("photos"), truth)
    Path("page_files").mkdir()
    Path("page_files/mine.jpg").write_text("stays")
    Path(f"page_files/{'0' * 20}.jpg").write_text("of an earlier page")
    assert run("bench", "explore", "--records", "results", "--photos", "photos", "--out", "page.html").exit_code == 0
    page, names = Path("page.html").read_text("utf-8"), {file.name for file in Path("page_files").iterdir()}
    assert "data:image" not in page.replace("img-src data:", "")
    assert len(names) == 2  # all photos are alike, and named by their content
    [ours] = names - {"mine.jpg"}
    assert f'"page_files/{ours}"' in page


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["town.tfa", "camera", "--radius", "-1"], "--radius -1 is out of range: must be meters above 0"),
        (["town.tfa", "camera", "--lag", "2"], "--lag is for a drive; pass --sequence"),
        (["town.tfa", "camera", "photos", "--sequence"], "--sequence needs one folder with the frames of a drive"),
        (["town.tfa", "near.jpg", "--sequence"], "--sequence needs one folder with the frames of a drive"),
    ],
)
def test_bad_values_are_usage_errors(run, folder, args, words):
    result = run("evaluate", *args, "--ground-truth", "where.csv")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.endswith("\nSee tfa evaluate --help.\n")

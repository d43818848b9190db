"""`tfa query`: answers, refusals, broken photos, JSON and the montage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tfa.cli.show_answers import MONTAGE_ROWS, write_montage


def test_one_photo_gets_a_table_of_its_hits(run, stub, folder):
    result = run("query", "town.tfa", "near.jpg", "-k", 2)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == "near.jpg"
    assert lines[1].split() == ["image", "id", "score", "confidence", "position"]
    assert lines[2].split(maxsplit=5) == [
        "1",
        "photos/0.jpg",
        "0",
        "1.5000",
        "0.90",
        "52.51630° N, 13.37770° E",
    ]
    assert lines[3].split() == ["2", "photos/1.jpg", "1", "0.5000", "0.90"]


def test_a_refused_photo_is_no_place(run, stub, folder):
    result = run("query", "town.tfa", "far.jpg", "--min-confidence", "0.5")
    assert result.exit_code == 0
    assert "no place (confidence 0.12 below 0.50)" in result.stdout
    assert stub.given("query_many")["min_confidence"] == 0.5


def test_a_folder_is_searched_and_many_photos_share_a_table(run, stub, folder):
    result = run("query", "town.tfa", "photos", "near.jpg", "far.jpg", "--min-confidence", 0.5)
    asked = stub.given("query_many")["photos"]
    assert asked == [Path("photos/a.jpg"), Path("photos/sub/b.jpg"), Path("near.jpg"), Path("far.jpg")]
    assert result.stdout.count("best image") == 1
    assert "no place (confidence 0.12 below 0.50)" in result.stdout
    assert "3 of 4 photos answered" in result.stdout


def test_json_answers(run, stub, folder):
    result = run("query", "town.tfa", "near.jpg", "far.jpg", "-k", 2, "--min-confidence", "0.5", "--json")
    assert json.loads(result.stdout) == [
        {
            "query": "near.jpg",
            "hits": [
                {
                    "id": 0, "image": "photos/0.jpg", "score": 1.5, "confidence": 0.9, "matches": None,
                    "position": {"lat": 52.5163, "lon": 13.3777},
                },
                {
                    "id": 1, "image": "photos/1.jpg", "score": 0.5, "confidence": 0.9, "matches": None,
                    "position": None,
                },
            ],
        },
        {"query": "far.jpg", "hits": []},
    ]  # fmt: skip


@pytest.mark.parametrize("bad", ["bad.jpg", "absent.jpg"])
def test_a_broken_photo_does_not_stop_the_others(run, stub, folder, bad):
    result = run("query", "town.tfa", bad, "near.jpg")
    assert result.exit_code == 1
    assert "not readable" in result.stdout
    assert "photos/0.jpg" in result.stdout
    assert f"error: {bad}: cannot be read" in result.stderr
    result = run("query", "town.tfa", bad, "near.jpg", "--json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert first == {"query": bad, "error": f"{bad}: cannot be read", "hits": []}
    assert len(second["hits"]) == 5


@pytest.mark.parametrize("share", ["1.5", "-0.1", "nan", "inf"])
def test_a_confidence_outside_0_and_1_is_a_usage_error(run, stub, folder, share):
    result = run("query", "town.tfa", "near.jpg", f"--min-confidence={share}")
    assert result.exit_code == 2
    assert "give a number between 0 and 1" in result.stderr
    assert stub.calls == []


def test_the_encoder_options_are_passed_on(run, stub, folder):
    (folder / "w.pth").touch()
    run("query", "town.tfa", "near.jpg", "--weights", "w.pth", "--device", "cuda", "--threads", 2)
    given = stub.given("use_encoder")
    assert {key: given[key] for key in ("weights", "device", "threads")} == {
        "weights": Path("w.pth"),
        "device": "cuda",
        "threads": 2,
    }


def test_an_empty_folder_and_a_missing_map_are_errors(run, stub, folder):
    (folder / "empty").mkdir()
    assert run("query", "town.tfa", "empty").exit_code == 1
    result = run("query", "absent.tfa", "near.jpg")
    assert result.exit_code == 1
    assert "absent.tfa does not exist" in result.stderr


def test_the_montage_shows_queries_and_hits(run, stub, folder):
    (folder / "photos" / "0.jpg").write_bytes((folder / "near.jpg").read_bytes())
    result = run(
        "query",
        "town.tfa",
        "near.jpg",
        "far.jpg",
        "bad.jpg",
        "-k",
        2,
        "--montage",
        "new/answer.png",
        "--json",
    )
    assert len(json.loads(result.stdout)) == 3
    assert "montage: new/answer.png" in result.stderr
    with Image.open("new/answer.png") as picture:
        assert picture.width > picture.height / 3 > 100


def test_a_montage_of_very_many_photos_is_cut(stub, folder, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr("tfa.explain.draw_montage.draw_montage", lambda rows, path: drawn.extend(rows))
    answers = stub().query_many([Path("near.jpg")] * 59 + [Path("far.jpg")] * 3, 1, 0.5, False)
    write_montage(Path("answer.png"), answers, 0.5)
    assert len(drawn) == MONTAGE_ROWS
    assert drawn[-1].title == "far.jpg: no place (confidence 0.12 below 0.50)"
    assert drawn[0].tiles[0].caption_lines == [
        "0.jpg", "score 1.5000, confidence 0.90", "52.51630° N, 13.37770° E",
    ]  # fmt: skip
    assert "without the last 2 photos" in capsys.readouterr().err


def test_a_montage_that_cannot_be_written_is_refused_first(run, stub, folder):
    result = run("query", "town.tfa", "near.jpg", "--montage", "near.jpg/answer.png")
    assert result.exit_code == 1
    assert stub.calls == []


@pytest.mark.parametrize(
    ("words", "verify", "candidates"),
    [((), None, None), (("--verify", "--candidates", 7), True, 7), (("--no-verify",), False, None)],
)
def test_verification_is_asked_for_as_given(run, stub, folder, words, verify, candidates):
    assert run("query", "town.tfa", "near.jpg", *words).exit_code == 0
    given = stub.given("query_many")
    assert (given["verify"], given["candidates"]) == (verify, candidates)


def test_verified_answers_have_a_column_of_matches(run, stub, folder):
    result = run("query", "town.tfa", "near.jpg", "-k", 2, "--verify", "--candidates", 1)
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["image", "id", "score", "confidence", "matches", "position"]
    assert lines[2].split()[4:7] == ["0.90", "sure", "120"]
    assert lines[3].split()[4:] == ["0.90", "–"]
    result = run("query", "town.tfa", "photos", "near.jpg", "far.jpg", "--verify")
    assert "matches" in result.stdout.splitlines()[0]
    assert "matches" not in run("query", "town.tfa", "photos", "near.jpg", "far.jpg").stdout
    hits = json.loads(run("query", "town.tfa", "near.jpg", "-k", 2, "--verify", "--json").stdout)[0]["hits"]
    assert [hit["matches"] for hit in hits] == [120, 119]


def test_no_candidates_is_a_usage_error(run, stub, folder):
    assert run("query", "town.tfa", "near.jpg", "--candidates", 0).exit_code == 2
    assert stub.calls == []


def test_a_sequence_is_filtered_in_the_order_of_names(run, stub, folder, monkeypatch):
    from tfa.maps.sequence import FrameAnswer

    asked = []

    def followed(place_map, frames, **given):
        asked.append(([frame.name for frame in frames], given))
        hit = stub()._answer(folder / "near.jpg", 1, 0.0, 0).hits[0]
        away = [frame.name == "b.jpg" for frame in frames]
        return [
            FrameAnswer(str(frame), [] if lost else [hit], 0.1, None, 0.9 if lost else 0.0)
            for frame, lost in zip(frames, away, strict=True)
        ]

    monkeypatch.setattr("tfa.maps.sequence.query_sequence", followed)
    result = run("query", "town.tfa", "--sequence", "photos", "-k", 2, "--min-confidence", 0.05)
    assert result.exit_code == 0, result.stderr
    assert asked[0][0] == ["a.jpg", "b.jpg"]
    assert asked[0][1] == {
        "k": 2, "min_confidence": 0.05, "calibration": None, "progress": True, "self_calibrate": True,
    }  # fmt: skip
    assert "lost (probability 0.90)" in result.stdout
    told = json.loads(run("query", "town.tfa", "--sequence", "photos", "--json").stdout)
    assert [entry["lost"] for entry in told] == [0.0, 0.9]


def test_photos_or_a_sequence_are_asked_not_both(run, stub, folder):
    for given in (["near.jpg", "--sequence", "photos"], [], ["--sequence", "photos", "--verify"]):
        assert run("query", "town.tfa", *given).exit_code == 2
    assert run("query", "town.tfa", "--sequence", "near.jpg").exit_code == 2


@pytest.mark.parametrize(
    ("words", "on"), [((), True), (("--self-calibrate",), True), (("--no-self-calibrate",), False)]
)
def test_a_sequence_self_calibrates_unless_told_not_to(run, stub, folder, monkeypatch, words, on):
    asked = []
    monkeypatch.setattr("tfa.maps.sequence.query_sequence", lambda *photos, **given: asked.append(given) or [])
    assert run("query", "town.tfa", "--sequence", "photos", *words).exit_code == 0
    assert [given["self_calibrate"] for given in asked] == [on]


@pytest.mark.parametrize("word", ["--self-calibrate", "--no-self-calibrate"])
def test_photos_asked_one_by_one_are_not_self_calibrated(run, stub, folder, word):
    done = run("query", "town.tfa", "near.jpg", word)
    assert done.exit_code == 2
    assert f"{word} is for --sequence" in done.stderr
    assert stub.calls == []

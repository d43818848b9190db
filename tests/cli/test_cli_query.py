"""`tfa query`: answers, refusals, broken photos, JSON and the montage."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.waiting import PATIENCE
from tfa.cli.query import MONTAGE_ROWS, make_relative, write_montage
from tfa.maps import PlaceMap
from tfa.types import EncoderOptions, Hit


def hits(photo: str, k: int, **question: Any) -> list[Hit]:
    """What the map itself answers."""
    return PlaceMap.load("town.tfa").query(photo, k, **question)


def cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


def test_one_photo_gets_a_table_of_its_hits(run, folder):
    result = run("query", "town.tfa", "near.jpg", "-k", 2, "--no-rerank")
    assert result.exit_code == 0
    best, second = hits("near.jpg", 2, rerank=False)
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == "near.jpg"
    reason = "one place leads, but the answer was not reranked"
    assert lines[1].rstrip() == f"  probable: {reason} (confidence {best.confidence:.2f})"
    assert lines[2].split() == ["image", "confidence", "position"]
    assert cells(lines[3]) == ["1", make_relative(best.image), f"{best.confidence:.2f}", "57.50000° N, 13.25000° E"]
    assert cells(lines[4]) == ["2", make_relative(second.image), f"{second.confidence:.2f}"]


def test_paths_are_shown_relative_to_the_working_directory_if_that_is_shorter(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert make_relative(str(tmp_path / "work" / "photos" / "05.png")) == "photos/05.png"
    assert make_relative(str(tmp_path / "photos" / "05.png")) == "../photos/05.png"
    assert make_relative("/elsewhere/05.png") == "/elsewhere/05.png"
    assert make_relative("near.jpg") == "near.jpg"


@pytest.mark.parametrize("name", ["pipe.jpg", "pipe.mcap"])
def test_a_pipe_is_refused(run, folder, name):
    os.mkfifo(name)
    signal.alarm(int(PATIENCE))
    refused = run("query", "town.tfa", name)
    signal.alarm(0)
    assert refused.exit_code == 1
    assert re.search("it is a pipe|is neither a file nor a folder", refused.stderr)


def test_a_refused_photo_is_no_place(run, spy, folder):
    result = run("query", "town.tfa", "far.jpg", "--min-confidence", "0.9", "--no-rerank")
    assert result.exit_code == 0
    assert "  probable: one place leads, but the answer was not reranked (confidence 0.86)" in result.stdout
    assert "  hits are withheld: the answer is below the requested confidence" in result.stdout
    assert spy.given("query_many")["min_confidence"] == 0.9


def test_a_folder_is_searched_and_many_photos_share_a_table(run, spy, folder):
    words = ("--min-confidence", 0.9, "--no-online", "--no-rerank")
    result = run("query", "town.tfa", "walk", "near.jpg", "far.jpg", *words)
    queries = spy.given("query_many")["photos"]
    assert queries == [Path("walk/a.jpg"), Path("walk/sub/b.jpg"), Path("near.jpg"), Path("far.jpg")]
    assert result.stdout.count("best image") == 1
    assert cells(result.stdout.splitlines()[-3]) == ["far.jpg", "probable", "–", "0.86"]
    assert "4 photos: 4 probable" in result.stdout
    assert "score" not in result.stdout
    assert re.search(r"^expected R@1 on similar photos: \d+ % \(\d+–\d+ %\); \d+ % recognized$", result.stdout, re.M)


def test_json_answers(run, folder):
    result = run(
        "query", "town.tfa", "near.jpg", "far.jpg", "-k", 2, "--min-confidence", "0.9", "--json", "--no-online",
        "--no-rerank",
    )  # fmt: skip
    best, second = hits("near.jpg", 2, rerank=False)
    [far] = hits("far.jpg", 1, rerank=False)
    told = json.loads(result.stdout)
    verdict = {"verdict": "probable", "reason": "one place leads, but the answer was not reranked"}
    assert told["answers"] == [
        {
            "query": "near.jpg",
            **verdict,
            "confidence": best.confidence,
            "sure": False,
            "reranked": False,
            "place": None,
            "place_missing": "no answer was reranked",
            "hits": [
                {
                    "id": 5, "image": best.image, "score": best.score, "confidence": best.confidence, "inliers": None,
                    "sure": False, "position": {"lat": 57.5, "lon": 13.25},
                },
                {
                    "id": second.id, "image": second.image, "score": second.score, "confidence": second.confidence,
                    "inliers": None, "sure": False, "position": None,
                },
            ],
        },
        {
            # Asked beside another photo: products of two rows may round otherwise than those of one.
            **verdict, "query": "far.jpg", "confidence": pytest.approx(far.confidence, rel=1e-12), "sure": False,
            "reranked": False, "place": None, "place_missing": "no answer was reranked", "hits": [],
        },
    ]  # fmt: skip
    assert told["notice"] is None
    assert (
        told["expected_recall"]
        == PlaceMap.load("town.tfa").query_many(["near.jpg", "far.jpg"], rerank=False).expected_recall.to_dict()
    )


def test_the_place_of_all_verified_images_is_told(run, folder):
    """Of the map's images three stand somewhere, 555 km apart: image 5 is the only one of its place."""
    words = ("query", "town.tfa", "near.jpg", "--rerank")
    [answer] = json.loads(run(*words, "--json").stdout)["answers"]
    assert answer["place"] == {
        "position": {"lat": 57.5, "lon": 13.25},
        "radius": pytest.approx(1000 / 2**0.5),  # of a map as sparse as that
        "share": pytest.approx(1.0, abs=0.5),
        "images": 1,
    }
    assert answer["place_missing"] is None
    assert "  position: 57.50000° N, 13.25000° E ± 707 m" in run(*words).stdout
    many = run("query", "town.tfa", "near.jpg", *["far.jpg"] * 3, "--rerank", "--no-online").stdout
    assert "57.50000° N, 13.25000° E ± 707 m" in many
    [doubtful] = json.loads(run(*words, "--json", "--min-confidence", "1").stdout)["answers"]
    assert (doubtful["place"], doubtful["place_missing"]) == (None, "the answer is below the requested confidence")


@pytest.mark.parametrize(("bad", "complaint"), [("bad.jpg", "it is not an image"), ("absent.jpg", "it does not exist")])
def test_a_broken_photo_does_not_stop_the_others(run, folder, bad, complaint):
    result = run("query", "town.tfa", bad, "near.jpg")
    assert result.exit_code == 1
    assert "not recognized: the photo cannot be read" in result.stdout
    assert "photos/05.png" in result.stdout
    assert result.stderr.startswith(f"error: {bad} cannot be opened: {complaint}")
    result = run("query", "town.tfa", bad, "near.jpg", "--json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)["answers"]
    assert (set(first), first["query"], first["hits"]) == (
        {"query", "verdict", "reason", "error", "adaptation_photos", "confidence", "sure", "reranked", "place",
         "place_missing", "hits"},
        bad, [],
    )  # fmt: skip
    assert f"error: {first['error']}\n" == result.stderr
    assert len(second["hits"]) == 5


@pytest.mark.parametrize("share", ["1.5", "-0.1", "nan", "inf"])
def test_a_confidence_outside_0_and_1_is_a_usage_error(run, spy, folder, share):
    result = run("query", "town.tfa", "near.jpg", f"--min-confidence={share}")
    assert result.exit_code == 2
    assert "--min-confidence" in result.stderr
    said = "is not a finite number" if share in ("nan", "inf") else "must be between 0 and 1"
    assert said in result.stderr
    assert spy.calls == []


def test_the_encoder_options_are_passed_on(run, spy, folder):
    (folder / "w.pth").touch()
    settings = ("encoder.weights=w.pth", "encoder.device=cuda", "encoder.threads=2")
    run("query", "town.tfa", "near.jpg", *(word for one in settings for word in ("--set", one)))
    assert spy.given("use_encoder")["options"] == EncoderOptions(weights=Path("w.pth"), device="cuda", threads=2)


def test_damage_is_noticed_by_a_query_and_by_checksums(run, folder):
    file = next((folder / "town.tfa").glob("head-*"))
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)
    refused = run("query", "town.tfa", "near.jpg")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error: {file} was damaged after the map was written (checksum differs); rebuild")
    assert run("info", "town.tfa").exit_code == 0
    result = run("info", "town.tfa", "--checksum")
    assert result.exit_code == 1
    assert "sha256 differs" in result.stderr


def test_an_empty_folder_and_a_missing_map_are_errors(run, spy, folder):
    (folder / "empty").mkdir()
    assert run("query", "town.tfa", "empty").exit_code == 1
    result = run("query", "absent.tfa", "near.jpg")
    assert result.exit_code == 1
    assert "there is no map at absent.tfa" in result.stderr


def test_the_montage_shows_queries_and_hits(run, folder):
    words = ["near.jpg", "far.jpg", "bad.jpg", "-k", 2, "--montage", "new/answer.png", "--json"]
    result = run("query", "town.tfa", *words)
    assert len(json.loads(result.stdout)) == 3
    assert "wrote new/answer.png" in result.stderr
    with Image.open("new/answer.png") as picture:
        assert picture.width > picture.height / 3 > 100


def test_a_montage_of_very_many_photos_is_cut(folder, monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr("tfa.explain.draw_montage.draw_montage", lambda rows, path: drawn.extend(rows))
    answers = PlaceMap.load("town.tfa").query_many(
        [Path("near.jpg")] * 59 + [Path("far.jpg")] * 3, 1, min_confidence=0.9, rerank=False
    )
    write_montage(Path("answer.png"), answers.answers)
    assert len(drawn) == MONTAGE_ROWS
    assert drawn[-1].title.startswith("far.jpg · probable: one place leads, but ")
    [best] = hits("near.jpg", 1, rerank=False)
    assert drawn[0].tiles[0].caption_lines == [
        "05.png", f"confidence {best.confidence:.2f}", "57.50000° N, 13.25000° E",
    ]  # fmt: skip
    assert "without the last 2 photos" in capsys.readouterr().err


def test_a_montage_that_cannot_be_written_is_refused_first(run, spy, folder):
    result = run("query", "town.tfa", "near.jpg", "--montage", "near.jpg/answer.png")
    assert result.exit_code == 1
    assert spy.calls == []


@pytest.mark.parametrize(
    ("words", "rerank", "candidates"),
    [
        ((), None, None),
        (("--rerank", "--set", "candidates=7"), True, 7),
        (("--set", "candidates=auto"), None, "auto"),
        (("--no-rerank",), False, None),
    ],
)
def test_verification_is_asked_for_as_given(run, spy, folder, words, rerank, candidates):
    assert run("query", "town.tfa", "near.jpg", *words).exit_code == 0
    given = spy.given("query_many")
    assert (given["rerank"], given["candidates"]) == (rerank, candidates)


def test_verified_answers_have_a_column_of_matches(run, folder):
    result = run("query", "town.tfa", "near.jpg", "-k", 2, "--rerank", "--set", "candidates=1")
    best, second = hits("near.jpg", 2, rerank=True, candidates=1)
    lines = result.stdout.splitlines()
    assert lines[2].split() == ["image", "confidence", "inliers", "position"]
    assert cells(lines[3])[2:4] == [f"{best.confidence:.2f}", str(best.inliers)]
    assert cells(lines[4])[2:] == [f"{second.confidence:.2f}", "–"]
    result = run("query", "town.tfa", "walk", "near.jpg", "far.jpg", "--rerank")
    assert "inliers" in result.stdout.splitlines()[0]
    assert "inliers" not in run("query", "town.tfa", "walk", "near.jpg", "far.jpg", "--no-rerank").stdout
    told = json.loads(run("query", "town.tfa", "near.jpg", "-k", 2, "--rerank", "--json").stdout)["answers"][0]["hits"]
    assert told == [hit.to_dict() for hit in hits("near.jpg", 2, rerank=True)]
    assert [hit["sure"] for hit in told] == [True, False]
    assert "  recognized: its patches match" in run("query", "town.tfa", "near.jpg", "--rerank").stdout


def test_no_candidates_is_a_usage_error(run, spy, folder):
    assert run("query", "town.tfa", "near.jpg", "--set", "candidates=0").exit_code == 2
    result = run("query", "town.tfa", "near.jpg", "--set", "candidates=many")
    assert result.exit_code == 2
    assert "auto" in result.stderr
    assert spy.calls == []


def test_photos_or_a_sequence_are_asked_not_both(run, spy, folder):
    for given, said in (
        (["near.jpg", "--sequence", "walk"], "pass photos or --sequence FOLDER, not both"),
        ([], "no photos given: pass photos or folders, or --sequence FOLDER"),
    ):
        result = run("query", "town.tfa", *given)
        assert result.exit_code == 2
        assert said in result.stderr
    assert run("query", "town.tfa", "--sequence", "near.jpg").exit_code == 2


def test_several_photos_adapt_the_answers_to_those_after_them(run, spy, folder):
    done = run("query", "town.tfa", "camera", "-k", 1, "--json")
    told = json.loads(done.stdout)["answers"]
    assert [entry["adaptation_photos"] for entry in told] == list(range(14))
    assert all("lost" not in entry for entry in told)
    tracker = PlaceMap.load("town.tfa").follow(k=1, sequence=False)
    photos = sorted(Path("camera").iterdir())
    assert [entry["hits"] for entry in told] == [[hit.to_dict() for hit in tracker.step(p).hits] for p in photos]
    assert run("query", "town.tfa", "camera").stderr == ""  # no footer
    assert spy.calls.count(("query_many", {})) == 0


def test_photos_are_answered_by_the_map_alone_if_that_is_wanted(run, folder):
    words = ("--no-online", "--no-rerank")
    done = run("query", "town.tfa", "camera", "--json", *words)
    alone = PlaceMap.load("town.tfa").query_many(sorted(Path("camera").iterdir()), rerank=False)
    assert json.loads(done.stdout)["answers"] == [
        {
            "query": answer.query, "confidence": answer.confidence, "sure": answer.sure, "reranked": answer.reranked,
            "verdict": answer.verdict, "reason": answer.reason, "place": None,
            "place_missing": answer.place_missing, "hits": [hit.to_dict() for hit in answer.hits],
        }
        for answer in alone
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "online"), [((), True), (("--no-online",), False)])
def test_a_sequence_adapts_unless_told_not_to(run, spy, folder, monkeypatch, words, online):
    from tfa.types import Answers

    asked = []
    monkeypatch.setattr("tfa.maps.tracker.query_sequence", lambda *photos, **given: asked.append(given) or Answers())
    assert run("query", "town.tfa", "--sequence", "walk", *words).exit_code == 0
    assert [(given["online"], given["sequence"]) for given in asked] == [(online, True)]


def test_photos_that_are_unlike_the_map_are_noticed(run, folder, monkeypatch):
    from tfa.maps.confidence import DomainShiftMonitor

    monkeypatch.setattr(DomainShiftMonitor, "common", 0.6)
    result = run("query", "town.tfa", "camera", "--no-online")
    said = " ".join(result.stdout.split())
    assert "these photos differ from those the map is made for" in said
    assert "tfa calibrate town.tfa PHOTOS" in said
    assert "tfa calibrate" in json.loads(run("query", "town.tfa", "camera", "--json").stdout)["notice"]
    told = json.loads(run("report", "town.tfa", "--photos", "camera", "--json").stdout)
    assert "look different from the photos the map was made for" in told["advice"][0]
    assert [one["photos"] for one in told["recall"]] == [14]

"""`tfa query`: sure answers, order of hits, and frames of a drive."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_cli_query import hits
from tfa.errors import BadSpec
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb


def test_only_sure_answers_are_given_if_nothing_else_is_wanted(run, folder, monkeypatch):
    result = run("query", "town.tfa", "near.jpg", "far.jpg", "--sure", "--rerank", "--no-online", "-k", 2)
    assert result.exit_code == 0
    trust = f"{hits('near.jpg', 1, rerank=True)[0].confidence:.2f}"
    assert f"recognized: its patches match one place far better than others (confidence {trust})" in result.stdout
    assert re.search(r"^  not recognized: no candidate stands out \(confidence 0\.\d\d\)$", result.stdout, re.M)
    told = json.loads(run("query", "town.tfa", "near.jpg", "far.jpg", "--sure", "--rerank", "--json").stdout)["answers"]
    assert [(one["sure"], one["reranked"], len(one["hits"])) for one in told] == [(True, True, 5), (False, True, 0)]
    assert told[1]["confidence"] > 0
    with monkeypatch.context() as patch:
        patch.setattr("tfa.maps.answer.resolve_candidates", lambda *_, **__: 0)  # as if the map had no patches
        result = run("query", "town.tfa", "near.jpg", "--sure")
    assert "one place leads, but the answer was not reranked" in result.stdout
    assert "no answer was reranked, so none is sure" in " ".join(result.stderr.split())
    for words, said in (
        (["--no-rerank"], "--sure needs reranking"),
        (["--min-confidence", 0.3], "already sets a limit"),
    ):
        result = run("query", "town.tfa", "near.jpg", "--sure", *words)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
    town = PlaceMap.load("town.tfa")
    assert town.query("near.jpg", sure=True, rerank=True).hits == hits("near.jpg", 5, rerank=True).hits
    assert town.query("far.jpg", sure=True, rerank=True).hits == []
    with pytest.raises(BadSpec, match="min_confidence='certain' is str, must be float"):
        town.query("far.jpg", min_confidence="certain")


def test_a_sequence_is_what_a_tracker_answers_frame_by_frame(run, folder):
    told = json.loads(run("query", "town.tfa", "--sequence", "camera", "-k", 3, "--rerank", "--json").stdout)["answers"]
    tracker = PlaceMap.load("town.tfa").follow(k=3, rerank=True)
    for number, (frame, answer) in enumerate(zip(sorted(Path("camera").iterdir()), told, strict=True)):
        picture = as_rgb(frame)
        ours = tracker.step([frame, frame.read_bytes(), picture, np.asarray(picture)][number % 4])
        assert answer["hits"] == [hit.to_dict() for hit in ours.hits]
        assert (answer["lost"], answer["confidence"], answer["sure"]) == (ours.lost, ours.confidence, ours.sure)
        trust = [hit.confidence for hit in ours.hits]
        assert trust == sorted(trust, reverse=True)
        assert all(hit.confidence >= 0.9 for hit in ours.hits if hit.sure)
    assert sum(bool(answer["hits"]) for answer in told) > 5


def test_a_sequence_is_filtered_in_the_order_of_names(run, spy, folder, monkeypatch):
    from tfa.maps.confidence import collect_answers
    from tfa.types import Answer

    asked = []

    def followed(place_map, frames, progress, **given):
        asked.append(([frame.name for frame in frames], given))
        [hit] = hits("near.jpg", 1)
        away = [frame.name == "b.jpg" for frame in frames]
        return collect_answers(
            [
                Answer(
                    query=str(frame),
                    hits=[] if lost else [hit],
                    confidence=0.1,
                    error=None,
                    lost=0.9 if lost else 0.0,
                    reason="the camera has been lost for 1 frame" if lost else "no candidate stands out",
                    adaptation_photos=number,
                )
                for number, (frame, lost) in enumerate(zip(frames, away, strict=True))
            ]
        )

    monkeypatch.setattr("tfa.maps.tracker.query_sequence", followed)
    result = run("query", "town.tfa", "--sequence", "walk", "-k", 2, "--min-confidence", 0.05)
    assert result.exit_code == 0, result.stderr
    assert asked[0][0] == ["a.jpg", "b.jpg"]
    assert asked[0][1] == {
        "k": 2, "min_confidence": 0.05, "sure": False, "calibration": None, "rerank": None, "candidates": None,
        "online": True, "sequence": True, "lag": 0, "sessions": (), "region": None, "camera": None,
        "loops": False,
    }  # fmt: skip
    assert "  not recognized: the camera has been lost for 1 frame (confidence 0.10)" in result.stdout
    told = json.loads(run("query", "town.tfa", "--sequence", "walk", "--json").stdout)
    assert told["expected_recall"] is None
    told = told["answers"]
    assert [entry["lost"] for entry in told] == [0.0, 0.9]
    assert [entry["adaptation_photos"] for entry in told] == [0, 1]

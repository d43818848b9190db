"""Queries to a served map are answered as by the map itself."""

from __future__ import annotations

import base64
import io
import json
import shutil

import pytest
from PIL import Image

from tests.maps.conftest import photo
from tests.service.conftest import add, ask, opened, picture
from tests.waiting import PATIENCE
from tfa.core.tokens import Tokens
from tfa.maps.confidence import DomainShiftMonitor
from tfa.photos import token_cache
from tfa.photos.images import as_rgb
from tfa.service import query_queue as kept_queries
from tfa.service.query_queue import RecentQueries
from tfa.service.routes import query as routes_query
from tfa.types import UNREADABLE, VERDICTS, Answer, QueryOptions


def local(town, place, light=0.8, **asked):
    return opened(town).query(as_rgb(picture(place, light)), **asked)


def test_a_query_is_answered_as_the_map_answers(client, town):
    answer = ask(client, picture(5, 0.8), k=3).json()
    hits = local(town, 5, k=3)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in hits]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert answer["confidence"] == answer["hits"][0]["confidence"] == hits[0].confidence
    assert "calibration" not in answer
    assert answer["seconds"] > 0
    best = answer["hits"][0]
    assert (best["id"], best["image"]) == (5, "05.png")
    assert best["image_url"] == "v1/images/5/file?map=town"
    assert set(best) == {"id", "image", "score", "confidence", "sure", "inliers", "position", "image_url"}


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_a_photo_may_be_base64_in_json(client, head):
    text = head + base64.b64encode(picture(5, 0.8)).decode()
    answer = client.post("/v1/query", json={"image": text, "k": 2, "rerank": False}).json()
    assert [hit["id"] for hit in answer["hits"]] == [
        hit["id"] for hit in ask(client, picture(5, 0.8), k=2, rerank=False).json()["hits"]
    ]


def test_low_confidence_is_told_and_gives_no_hits(client):
    unsure = ask(client, picture(99), min_confidence=1.0).json()
    free = ask(client, picture(99)).json()
    assert free["confidence"] < 1
    assert (unsure["hits"], unsure["confidence"]) == ([], free["confidence"])


def test_answers_can_be_verified(client, town):
    answer = ask(client, picture(5, 0.8), rerank="true").json()
    assert [hit["inliers"] for hit in answer["hits"]] == [hit.inliers for hit in local(town, 5, rerank=True)]
    assert answer["hits"][0]["inliers"] is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": "0"}, "k=0 is out of range: must be between 1 and 1000"),
        ({"k": "many"}, "k: input should be a valid integer"),
        ({"min_confidence": "2"}, "min_confidence=2.0 is out of range: must be between 0 and 1"),
        ({"calibration": "night"}, "calibration 'night' not found"),
        ({"kk": "3"}, "no field 'kk'; did you mean 'k'?"),
    ],
)
def test_what_cannot_be_asked_is_told(client, fields, words):
    answer = ask(client, picture(5), **fields)
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_an_empty_field_of_a_form_is_left_out(client):
    assert ask(client, picture(5), calibration="", rerank="").status_code == 200


def test_a_batch_answers_each_photo_in_its_place(client):
    photos = [("a.png", picture(3, 0.8)), ("bad.jpg", b"no photo"), ("b.png", picture(7, 0.8))]
    answers = client.post("/v1/query/batch", files=[("images", one) for one in photos], data={"k": 1}).json()["answers"]
    assert [answer["hits"][0]["id"] for answer in (answers[0], answers[2])] == [3, 7]
    reason = "bad.jpg is not a complete photo in a supported format; send JPEG, PNG, WebP, TIFF, BMP or GIF"
    assert answers[1] == Answer(query="bad.jpg", error=reason, reason=UNREADABLE).to_dict()


def test_a_black_photo_is_told_and_teaches_a_camera_nothing(client):
    written = io.BytesIO()
    Image.new("RGB", (64, 48)).save(written, "PNG")
    black = written.getvalue()
    photos = [("a.png", picture(3, 0.8)), ("black.png", black), ("b.png", picture(7, 0.8))]
    for fields in ({}, {"camera": "cam0"}, {"camera": "cam1", "sequence": "true"}):
        files = [("images", one) for one in photos]
        answers = client.post("/v1/query/batch", files=files, data={"k": 1, **fields}).json()["answers"]
        dark = answers[1]
        assert (dark["verdict"], dark["reason"]) == ("not recognized", "the photo is black; the lens may be covered")
        assert (dark["hits"], dark["confidence"], dark["sure"]) == ([], 0.0, False)
        assert {answer["verdict"] for answer in answers[::2]} <= set(VERDICTS)
    seen = {one["name"]: one["seen"] for one in client.get("/v1/cameras").json()["cameras"]}
    assert seen == {"cam0": 2, "cam1": 2}
    assert ask(client, black).json()["reason"] == "the photo is black; the lens may be covered"


def test_a_batch_may_be_json(client):
    texts = [base64.b64encode(picture(place)).decode() for place in (1, 2)]
    answers = client.post("/v1/query/batch", json={"images": texts, "k": 1}).json()["answers"]
    assert [answer["hits"][0]["id"] for answer in answers] == [1, 2]


def test_several_maps_are_served_side_by_side(serve, town):
    other = shutil.copytree(town, town.with_name("forest.tfa"))
    trimmed = opened(other)
    trimmed.remove([5])
    client = serve(opened(town), opened(other))
    assert [(one["name"], one["images"]) for one in client.get("/v1/maps").json()] == [("town", 14), ("forest", 13)]
    assert ask(client, picture(5)).json()["hits"][0]["id"] == 5
    assert ask(client, picture(5), map="town").json()["hits"][0]["id"] == 5
    hit = ask(client, picture(5), map="forest").json()["hits"][0]
    assert hit["id"] != 5
    assert hit["image_url"].endswith("?map=forest")
    missing = ask(client, picture(5), map="../town")
    assert missing.status_code == 404
    assert missing.json()["error"] == "map '../town' not found. Available: town, forest"


def test_why_is_told_of_an_image_of_the_map(client, monkeypatch):
    files = {"image": ("a.png", picture(5, 0.8))}
    why = client.post("/v1/explain", files=files, data={"id": 5}).json()
    assert (why["id"], why["image_url"]) == (5, "v1/images/5/file?map=town")
    best = ask(client, picture(5, 0.8), k=1).json()["hits"][0]
    assert why["score"] == pytest.approx(best["score"], rel=1e-4)
    assert client.post("/v1/explain", files=files, data={"id": 99}).status_code == 404
    added = add(client, ("new.png", picture(40))).json()["added"][0]
    monkeypatch.setattr(
        token_cache, "as_rgb", lambda *_, **__: pytest.fail("a client's photo is decoded in the service")
    )
    assert client.post("/v1/explain", files=files, data={"id": added}).json()["id"] == added


def test_only_sure_answers_are_given_if_wanted(client, town):
    sure = ask(client, picture(5, 0.8), rerank="true", sure="true").json()
    assert (sure["sure"], sure["reranked"], sure["hits"][0]["sure"]) == (True, True, True)
    doubtful = ask(client, picture(99), rerank="true", sure="true").json()
    assert (doubtful["sure"], doubtful["reranked"], doubtful["hits"]) == (False, True, [])
    assert ask(client, picture(99), rerank="true").json()["hits"]


def test_the_report_is_told(client, town):
    report = client.get("/v1/report").json()
    assert report["headline"].startswith("14 photos, no near duplicates, expected recall unknown")
    assert not {"evidence", "decided", "heads"} & set(report)
    assert {one["image_url"] for one in report["least_alike"]} <= {f"v1/images/{i}/file?map=town" for i in range(14)}
    assert str(town.parent) not in json.dumps(report)
    add(client, ("new.png", picture(40)))
    assert client.get("/v1/report").json()["headline"].startswith("15 photos")


def test_fewer_candidates_may_be_verified(client, town):
    answer = ask(client, picture(5, 0.8), k=5, rerank="true", candidates=2).json()
    inliers = [hit["inliers"] for hit in answer["hits"]]
    assert inliers == [hit.inliers for hit in local(town, 5, k=5, rerank=True, candidates=2)]
    assert sum(number is not None for number in inliers) == 2
    assert ask(client, picture(5), candidates=0).status_code == 422
    assert ask(client, picture(5), candidates="many").status_code == 422
    auto = ask(client, picture(5, 0.8), k=99, rerank="true", candidates="auto").json()["hits"]
    assert [hit["id"] for hit in auto] == [hit.id for hit in local(town, 5, k=99, rerank=True, candidates="auto")]
    assert sum(hit["inliers"] is not None for hit in auto) >= 10


def test_the_calibration_of_an_answer_is_the_one_that_gave_it(serve, town, monkeypatch):
    camera = [photo(town.parent / "camera" / f"{place}.png", place, 0.7) for place in range(9)]
    opened(town).calibrate(camera, "night", score=False)
    client = serve(opened(town))
    live, real = client.app.state.service.maps["town"], routes_query.wait_for

    async def slow(future):
        """The map is edited after the query was answered and before the answer is written."""
        result = await real(future)
        live.edit("activate", lambda place_map: place_map.activate(None)).result(PATIENCE)
        return result

    monkeypatch.setattr(routes_query, "wait_for", slow)
    assert ask(client, picture(5)).json()["calibration"] == "night"
    assert ask(client, picture(5)).json().get("calibration") is None


def test_the_last_queries_say_together_how_many_are_recognised(client, monkeypatch):
    nothing = {"photos": 0, "expected_recall": None, "text": None, "notice": None}
    assert client.get("/v1/map").json()["recent"] == nothing
    told = [ask(client, picture(place, 0.8), k=2).json()["confidence"] for place in range(5)]
    recent = client.get("/v1/map").json()["recent"]
    assert (recent["photos"], recent["expected_recall"]["photos"], recent["notice"]) == (5, 5, None)
    assert recent["expected_recall"]["share"] == pytest.approx(sum(told) / 5)
    assert recent["text"].startswith("expected R@1 on similar photos: ")
    monkeypatch.setattr(DomainShiftMonitor, "common", 0.6)
    assert "tfa calibrate town.tfa PHOTOS" in client.get("/v1/map").json()["recent"]["notice"]
    add(client, picture(77))  # an edit leaves the head as it is
    assert client.get("/v1/map").json()["recent"]["photos"] == 5


def test_queries_of_few_heads_are_kept(town, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_queries, "_HEADS", 1)
    place_map, recent = opened(town), RecentQueries("town.tfa")
    camera = [photo(tmp_path / "camera" / f"{place}.png", place, light=0.7) for place in range(14)]
    place_map.calibrate(camera, "night")
    tokens = Tokens(*place_map.encoder.encode([as_rgb(camera[0])]), grid=place_map.encoder.grid)
    for name in ("none", "night"):
        assert len(recent.answer(place_map, tokens, QueryOptions(k=2, calibration=name))[0]) == 2
    assert recent.summary(place_map.state)["photos"] == 1
    place_map.activate(None)
    assert recent.summary(place_map.state)["photos"] == 0

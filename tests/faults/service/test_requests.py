"""Requests that no program of ours would send: every one gets a 4xx in a sentence, and the next query its answer."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import tempfile
from types import SimpleNamespace

import pytest

from tests.faults.service.hostile import MUTATED_KINDS, deep_form, deep_json, long_comment, mutated, png_bomb, saved
from tests.service.conftest import add, ask, picture
from tfa.service import bodies

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "positions",
    [
        deep_json(100_000),
        '[{"lat": ' + "9" * 400 + ', "lon": 1}]',
        '[{"x": ' + "9" * 5000 + ', "y": 1}]',
        '[{"x": 1e999, "y": 1}]',
        '[{"x": NaN, "y": 1}]',
        '[{"x": ' + deep_json(500) + ', "y": 1}]',
        '{"a.png": 7}',
    ],
)
def test_positions_that_are_none_are_refused(client, positions, campaign):
    refused = add(client, ("a.png", picture(40)), positions=positions)
    assert refused.status_code == 422, refused.text
    assert len(refused.json()["error"]) < 1000
    as_json = f'{{"images": ["AAAA"], "positions": {positions}}}'
    refused = client.post("/v1/images", content=as_json, headers={"Content-Type": "application/json"})
    assert refused.status_code in (400, 415, 422), refused.text
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    campaign.count("invalid positions", 2)


@pytest.mark.parametrize("name", ["1.0", "+1", "1_0", "-1", "1e0", "٣", "9" * 30, "0x1", " 1", "1%00"])
def test_what_is_no_id_is_refused(client, name):
    for method, path in (("DELETE", f"/v1/images/{name}"), ("GET", f"/v1/images/{name}/file")):
        refused = client.request(method, path)
        assert refused.status_code in (404, 422), refused.text
    assert client.get("/v1/images").json()["total"] == 14


def test_the_host_header_is_not_echoed(client):
    refused = client.get("/v1/map", headers={"Host": "evil<script>.example"})
    assert refused.status_code == 403
    assert "evil" not in refused.text


@pytest.mark.parametrize("settings", [{}, {"read_api_key": "r"}])
def test_headers_that_are_no_addresses_are_refused(serve, settings):
    client = serve(raises=False, **settings)
    for headers in ({"Host": "["}, {"Host": "localhost", "Origin": "http://["}, {"Host": "[::1"}):
        for method, path in (("GET", "/v1/map"), ("POST", "/v1/query"), ("GET", "/none")):
            refused = client.request(method, path, headers=headers)
            assert (refused.status_code, "header is not valid" in refused.text) == (403, True), (headers, path)


def test_a_slash_at_the_end_leads_nowhere(serve):
    client = serve(read_api_key="r")
    refused = client.get("/v1/map/", headers={"Host": "evil.example"}, follow_redirects=False)
    assert (refused.status_code, "evil" in str(refused.headers)) == (404, False)


def test_a_large_photo_needs_no_temporary_file(client, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: pytest.fail("a file is made"))
    large = picture(5, kind="BMP", size=(800, 600))
    assert len(large) > 1_400_000
    assert ask(client, large, k=1).json()["hits"][0]["id"] == 5


def test_photos_are_not_written_through_a_link(client, town, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (town / "photos").symlink_to(tmp_path / "elsewhere")
    refused = add(client, ("a.png", picture(40)))
    assert (refused.status_code, "links to a folder outside of the map" in refused.json()["error"]) == (409, True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_mutated_photos_are_answered_or_refused(client, campaign):
    attempts, choose, statuses = campaign.size(60, 3000), random.Random(7), set()
    for number in range(attempts):
        kind = MUTATED_KINDS[number % len(MUTATED_KINDS)]
        answer = ask(client, mutated(saved(kind, number), choose), f"m.{kind.lower()}")
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 413, 415, 422), (number, answer.text)
    assert 200 in statuses
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
    campaign.count("mutated photos sent to the service", attempts)


def test_bombs_and_other_files_are_refused(serve, campaign):
    client = serve(max_pixels=1_000_000, max_upload=2_000_000)
    bombs = [
        png_bomb(1001, 1000),
        long_comment(1_000_000),
        b"\xff\xd8" + b"\xff" * 200_000,
        b"\x89PNG\r\n\x1a\n" + bytes(1_000_000),
        b"GIF89a" + b"\xff" * 100_000,
        b"II*\0" + b"\xff" * 100_000,
        b"RIFF\xff\xff\xff\xffWEBPVP8X" + bytes(1000),
        b"<svg/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"\0" * 100_000,
    ]
    for bomb in bombs:
        refused = ask(client, bomb, "bomb.jpg")
        assert refused.status_code in (413, 415, 422), refused.text
        assert refused.json()["error"]
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
    campaign.count("image bombs and files that are not photos", len(bombs))


# Of a form that breaks off, Starlette leaves the last part to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_forms_of_any_shape_are_refused(client, campaign):
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    multipart = {"Content-Type": "multipart/form-data; boundary=b"}
    bodies = [
        deep_form(40),
        (part * 3000, multipart),
        (part.replace(b"form-data", b"x" * 100_000), multipart),
        (b"--b\r\n" + b"X-A: b\r\n" * 5000 + b"\r\n\r\n--b--", multipart),
        (part, {"Content-Type": "multipart/form-data; boundary=" + "b" * 5000}),
        (b"", multipart),
        (deep_json(200_000).encode(), {"Content-Type": "application/json"}),
        (json.dumps({"image": "A" * 1001}).encode(), {"Content-Type": "application/json"}),
        (b'{"image": "\xff"}', {"Content-Type": "application/json"}),
        (b'{"k": ' + b"9" * 5000 + b"}", {"Content-Type": "application/json"}),
        (b"\0" * 100, {"Content-Type": "application/x-www-form-urlencoded"}),
    ]
    for path in ("/v1/query", "/v1/query/batch", "/v1/images", "/v1/calibrations", "/v1/explain"):
        for body, headers in bodies:
            refused = client.post(path, content=body, headers=headers)
            if path == "/v1/query/batch" and refused.status_code == 200:  # photos of a batch have errors of their own
                assert [(bool(one["error"]), one["hits"]) for one in refused.json()["answers"]] == [(True, [])]
            else:
                assert 400 <= refused.status_code < 500, (path, body[:80], refused.text)
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
    campaign.count("malformed request bodies", 5 * len(bodies))


@pytest.mark.parametrize(
    "body",
    [b"[" + b"[]," * 60_000 + b"1]", b'{"k": [' + b"1," * 60_000 + b"1]}", b'{"image": "' + b"\\/" * 60_000 + b'"}'],
)
def test_json_of_many_parts_is_refused_before_it_is_parsed(client, body, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "json", SimpleNamespace(loads=lambda _: pytest.fail("it is parsed")))
        for path in ("/v1/query", "/v1/query/batch", "/v1/images", "/v1/calibrations", "/v1/explain"):
            refused = client.post(path, content=body, headers=JSON)
            assert (refused.status_code, "more than 20,000 parts" in refused.json()["error"]) == (400, True)
        positions = "[" + "[]," * 60_000 + "1]"
        assert "too long" in add(client, ("a.png", picture(40)), positions=positions).json()["error"]


@pytest.mark.parametrize(
    "long", [{"calibration": "x" * 2_000_000}, {"x" * 2_000_000: 1}, {"sessions": ["x" * 500] * 4000}]
)
def test_only_photos_are_long(client, long):
    image = base64.b64encode(picture(5)).decode()
    refused = client.post("/v1/query", json={"image": image, **long})
    assert (refused.status_code, len(refused.content) < 200) == (413, True)
    assert "fields other than photos have more than 1,000,000 characters" in refused.json()["error"]


def test_an_error_repeats_no_long_name(client):
    refused = ask(client, picture(5), calibration="x" * 500_000)
    assert (refused.status_code, len(refused.content) < 20_000) == (422, True)
    assert ask(client, picture(5), sessions=["x" * 999] * 200, k=1).status_code == 422
    assert ask(client, picture(5), sessions=["x" * 9_999] * 200, k=1).status_code == 413


def test_json_is_parsed_outside_the_event_loop(client, monkeypatch):
    loops, parse = [], bodies.parse_sent_json

    def watched(text):
        try:
            loops.append(asyncio.get_running_loop())
        except RuntimeError:
            loops.append(None)
        return parse(text)

    monkeypatch.setattr(bodies, "parse_sent_json", watched)
    text = base64.b64encode(picture(5)).decode().replace("/", "\\/")
    answer = client.post("/v1/query", content=f'{{"k": 1, "image": "{text}"}}', headers=JSON)
    assert (answer.json()["hits"][0]["id"], loops) == (5, [None])


def test_a_lone_surrogate_in_a_name_is_refused(client):
    refused = client.post("/v1/calibrations/active", content=rb'{"name": "\ud800"}', headers=JSON)
    assert (refused.status_code, "'?'" in refused.json()["error"]) == (422, True), refused.text


def test_routes_without_photos_take_small_bodies_only(client):
    refused = client.post("/v1/calibrations/active", content=b"[" * 100_000, headers=JSON)
    assert refused.status_code == 413

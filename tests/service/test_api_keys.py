"""API keys with names: their file, how often they may ask, whose cameras are whose."""

from __future__ import annotations

import pytest

from tests.service.camera_steps import files
from tests.service.conftest import picture
from tfa import _http
from tfa.client import Client
from tfa.errors import BadSpec
from tfa.service.auth import RateLimit
from tfa.service.cameras import CameraKey
from tfa.service.settings import ApiKey, ServiceSettings, read_api_keys

NAMED = (ApiKey("robot1", False, "r" * 16), ApiKey("robot2", False, "s" * 16), ApiKey("boss", True, "b" * 16))


def header(api_key: ApiKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key.secret}"}


ROBOT1, ROBOT2, BOSS = map(header, NAMED)


def ask_as(client, who, place=0, **fields):
    return client.post("/v1/query", files={"image": ("a.png", picture(place))}, data=fields, headers=who)


def test_a_file_of_tokens(tmp_path):
    path = tmp_path / "api_keys"
    path.write_text("# who may ask\n\nrobot1 read rrrrrrrrrrrrrrrr\nboss\tedit   bbbbbbbbbbbbbbbb\n")
    assert read_api_keys(path) == (NAMED[0], NAMED[2])
    assert "rrrr" not in repr(read_api_keys(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("robot1 read", "line 1 of .* is not valid; each line needs a name"),
        ("robot1 write rrrrrrrrrrrrrrrr", "line 1"),
        ("\nrobot1 read short", "the API key in line 2 of .* has 5 characters, at least 16 are"),
        ("# nothing", "contains no API key"),
        ("ro/bot read rrrrrrrrrrrrrrrr", "is not a valid API key name"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_told_without_its_secrets(tmp_path, text, says):
    path = tmp_path / "api_keys"
    path.write_text(text)
    with pytest.raises(BadSpec, match=says) as error:
        read_api_keys(path)
    assert "rrrr" not in str(error.value)
    with pytest.raises(BadSpec, match=r"cannot read the API key file .*: No such file"):
        read_api_keys(tmp_path / "none")


def test_tokens_need_names_and_texts_of_their_own():
    with pytest.raises(BadSpec, match="same name"):
        ServiceSettings(api_keys=(NAMED[0], ApiKey("robot1", True, "x" * 16)))
    with pytest.raises(BadSpec, match="two API keys have the same secret"):
        ServiceSettings(api_keys=NAMED, read_api_key="r" * 16)
    assert not ServiceSettings(api_keys=NAMED[:1]).editable
    assert ServiceSettings(api_keys=NAMED, host="0.0.0.0").editable


def test_named_tokens_read_and_edit(serve):
    client = serve(api_keys=NAMED)
    assert client.get("/v1/map").status_code == 401
    assert client.get("/v1/map", headers=ROBOT1).status_code == 200
    assert client.delete("/v1/images/3", headers=ROBOT1).status_code == 403
    assert client.delete("/v1/images/3", headers=BOSS).status_code == 200


def test_a_camera_belongs_to_the_token_that_made_it(serve, town):
    client = serve(api_keys=NAMED, cameras=2)
    assert ask_as(client, ROBOT1, 0, camera="cam0").json()["adaptation_photos"] == 0
    assert ask_as(client, ROBOT2, 9, camera="cam0").json()["adaptation_photos"] == 0  # another camera of that name
    assert ask_as(client, ROBOT1, 1, camera="cam0").json()["adaptation_photos"] == 1
    for name in ("x", "y", "z"):  # pushes out robot2's own alone
        ask_as(client, ROBOT2, 3, camera=name)
    assert ask_as(client, ROBOT1, 2, camera="cam0").json()["adaptation_photos"] == 2

    def named(who):
        listed = client.get("/v1/cameras", headers=who).json()["cameras"]
        return [(one["owner"], one["name"]) for one in listed]

    assert named(ROBOT1) == [("robot1", "cam0")]
    assert named(ROBOT2) == [("robot2", "z"), ("robot2", "y")]
    assert named(BOSS) == [("robot1", "cam0"), ("robot2", "z"), ("robot2", "y")]
    assert client.get("/v1/cameras/cam0", headers=ROBOT2).status_code == 404
    assert client.get("/v1/cameras/cam0", headers=BOSS).json()["seen"] == 3
    client.__exit__(None, None, None)
    assert CameraKey("robot1", "cam0").file_name in files(town)
    again = serve(api_keys=NAMED[:1])  # robot2's API key is no more
    assert [one["seen"] for one in again.get("/v1/cameras", headers=ROBOT1).json()["cameras"]] == [3]
    again.__exit__(None, None, None)
    assert len(files(town)) == 3  # another service of the map may know robot2


def test_one_token_cannot_ask_without_end_and_others_can(serve, monkeypatch):
    monkeypatch.setattr(RateLimit.__init__, "__defaults__", (lambda: 0.0,))  # however long the requests take
    client = serve(api_keys=NAMED, rate_limit=1)
    answers = [client.get("/v1/map", headers=ROBOT1) for _ in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 15
    refused = answers[-1]
    assert refused.headers["retry-after"].isdecimal()
    assert refused.json()["error"].startswith("more than 1 requests a second; retry in ")
    assert client.get("/v1/map", headers=ROBOT2).status_code == 200
    assert client.get("/healthz").status_code == 200
    guesses = [client.get("/v1/map", headers={"Authorization": f"Bearer {n}"}).status_code for n in range(20)]
    assert guesses == [401] * 5 + [429] * 15


def test_buckets_fill_again():
    now = [0.0]
    rate = RateLimit(2.0, lambda: now[0])
    assert [rate.wait("a") for _ in range(11)] == [0] * 10 + [1]
    assert rate.wait("b") == 0
    now[0] = 0.5
    assert [rate.wait("a"), rate.wait("a")] == [0, 1]
    assert RateLimit(0).wait("a") == 0


def test_nothing_is_limited_where_only_this_machine_asks():
    assert ServiceSettings().limited_rate == 0
    assert ServiceSettings(read_api_key="r").limited_rate == 100
    assert ServiceSettings(no_auth=True).limited_rate == 100


def test_the_client_waits_as_it_is_told(monkeypatch):
    pauses, replies = [], [429, 200]

    def request(self, *_):
        code = replies.pop(0)
        return _http.Reply(code, "", {"Retry-After": "3"}, b"[]" if code == 200 else b'{"error": "x"}')

    monkeypatch.setattr(_http.Connections, "request", request)
    monkeypatch.setattr(_http.time, "sleep", pauses.append)
    assert Client("http://localhost:1").maps() == []
    assert pauses == [3.0]

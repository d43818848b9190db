"""The audit log: user, action, time and result of each edit and job."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading

import pytest

from tests.service.conftest import add, picture
from tests.service.test_api_keys import BOSS, NAMED, ROBOT1, ask_as
from tests.service.test_calibrations import camera, finished
from tests.waiting import PATIENCE, wait_until
from tfa.errors import BadSpec
from tfa.maps import PlaceMap, storage


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def lines_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def ends_of(log):
    return [line for line in lines_of(log) if line["action"].startswith("calibrate ")]


def test_every_edit_that_is_asked_for_is_in_the_audit_log(serve, log):
    client = serve(api_keys=NAMED, audit_log=str(log))
    client.delete("/v1/images/3", headers=BOSS)
    client.delete("/v1/images/4", headers=ROBOT1)
    client.delete("/v1/images/4")
    client.delete("/v1/images/99", headers=BOSS)
    client.headers.update(BOSS)
    add(client, ("a.png", picture(40)))
    ask_as(client, ROBOT1)
    lines = lines_of(log)
    assert [(line["api_key"], line["action"], line["status"]) for line in lines] == [
        ("boss", "DELETE /v1/images/3", 200),
        ("robot1", "DELETE /v1/images/4", 403),
        (None, "DELETE /v1/images/4", 401),
        ("boss", "DELETE /v1/images/99", 404),
        ("boss", "POST /v1/images", 200),
    ]
    assert lines[0]["result"] == {"removed": [3], "revision": 2}
    assert lines[4]["result"] == {"added": [14], "revision": 3}
    assert all(line["map"] == "town" and line["time"].endswith("+00:00") for line in lines)
    assert not any(api_key.secret in log.read_text() for api_key in NAMED)
    assert os.stat(log).st_mode & 0o077 == 0


def test_an_edit_that_fails_is_noted_as_it_was_answered(serve, log, monkeypatch):
    client = serve(audit_log=str(log), raises=False)

    def fails(error):
        def store(*_):
            raise error

        monkeypatch.setattr(storage, "write_upload", store)
        return add(client, ("a.png", picture(40)))

    answers = [
        client.delete("/v1/images/1.0"),
        client.post("/v1/calibrations/active", json={"name": 7}),
        fails(OSError(errno.ENOSPC, "No space left on device")),
        fails(OSError(errno.EMFILE, "Too many open files")),
        fails(ZeroDivisionError("secret")),
    ]
    assert [answer.status_code for answer in answers] == [422, 422, 507, 503, 500]
    assert [(line["status"], line["result"]) for line in lines_of(log)] == [
        (answer.status_code, answer.json()) for answer in answers
    ]


def test_the_end_of_a_calibration_is_noted_with_who_asked_for_it(serve, log):
    client = serve(api_keys=NAMED, audit_log=str(log))
    client.headers.update(BOSS)
    done = client.post("/v1/calibrations", files=camera(9), data={"name": "night"}).json()["job"]
    assert finished(client, done)["state"] == "done"
    known = [("images", (f"{place}.png", picture(place))) for place in range(3)]
    failed = client.post("/v1/calibrations", files=known).json()["job"]
    error = finished(client, failed)["error"]
    noted = [(line["api_key"], line["map"], line["action"], line["status"], line["result"]) for line in ends_of(log)]
    assert noted == [
        ("boss", "town", "calibrate done", None, {"job": done, "name": "night", "revision": 2}),
        ("boss", "town", "calibrate failed", None, {"job": failed, "name": "target", "error": error}),
    ]
    starts = [line["result"] for line in lines_of(log) if line["action"] == "POST /v1/calibrations"]
    assert starts == [{"job": done}, {"job": failed}]


def test_calibrations_that_a_stop_cuts_off_are_noted_and_leave_no_photos(serve, log, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client, working = serve(audit_log=str(log)), threading.Event()

    def slow(self, files, *_, progress, **__):
        working.set()
        wait_until(lambda: progress._board._closing)
        with progress.task("encoding", 1):
            raise AssertionError("the service is stopping")

    monkeypatch.setattr(PlaceMap, "calibrate", slow)
    jobs = [client.post("/v1/calibrations", files=camera(2)).json()["job"] for _ in range(2)]
    assert working.wait(PATIENCE)
    assert len(list(tmp_path.glob("tfa-calibration-*"))) == 2
    client.__exit__(None, None, None)
    assert [(line["action"], line["result"]["job"]) for line in ends_of(log)] == [
        ("calibrate failed", job) for job in jobs
    ]
    assert all(line["result"]["error"].startswith("the service stopped before") for line in ends_of(log))
    assert list(tmp_path.glob("tfa-calibration-*")) == []


def test_an_audit_log_that_cannot_be_written_is_told_before_anything_is_served(tmp_path, town, serve):
    with pytest.raises(BadSpec, match=r"cannot write the audit log .*: No such file"):
        serve(audit_log=str(tmp_path / "none" / "audit.jsonl"))

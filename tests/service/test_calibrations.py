"""Calibrations over the network: a job, its progress, its result."""

from __future__ import annotations

import threading
import time

import pytest

from tests.fakes import FakeEncoder
from tests.service.conftest import add, ask, ids, opened, picture
from tests.waiting import PATIENCE
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.service import jobs
from tfa.service.jobs import JobBoard
from tfa.service.problems import Refused


def camera(count, first=0):
    return [("images", (f"{place}.png", picture(place, 0.7))) for place in range(first, first + count)]


def finished(client, job):
    shares = []
    while True:
        told = client.get(f"/v1/jobs/{job}").json()
        shares.append(told["progress"])
        if told["state"] in ("done", "failed"):
            assert shares == sorted(shares)
            return told
        time.sleep(0.01)


def test_a_calibration_is_made_as_a_job_and_answers_when_it_is_done(client, town, tmp_path):
    started = client.post("/v1/calibrations", files=camera(9), data={"name": "night", "score": "false"})
    assert started.status_code == 202
    told = finished(client, started.json()["job"])
    assert (told["state"], told["progress"], told["error"]) == ("done", 1.0, None)
    result = told["result"]
    assert (result["name"], result["used"], result["skipped"], result["revision"]) == ("night", 9, [], 2)
    facts = client.get("/v1/map").json()
    assert [(one["name"], one["active"]) for one in facts["calibrations"]] == [("night", True)]
    assert 'tfa_edits_total{kind="calibrate",map="town"} 1.0' in client.get("/metrics").text
    answer = ask(client, picture(5, 0.8), k=3).json()
    assert answer["calibration"] == "night"
    assert ask(client, picture(5, 0.8), calibration="none").json().get("calibration") is None

    from_disk = opened(town).query(as_rgb(picture(5, 0.8)), k=3)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in from_disk]
    assert client.post("/v1/calibrations/active", json={"name": None}).json() == {"active": None}
    assert opened(town).state.active == "none"
    assert client.post("/v1/calibrations/active", json={"name": "night"}).json() == {"active": "night"}
    missing = client.post("/v1/calibrations/active", json={"name": "day"})
    assert missing.status_code == 422
    assert "calibration 'day' not found" in missing.json()["error"]
    assert client.delete("/v1/calibrations/night").json() == {"dropped": "night", "revision": 5}
    assert (opened(town).calibrations, opened(town).state.active) == ([], "none")
    assert client.delete("/v1/calibrations/night").status_code == 422


def test_edits_go_on_while_a_calibration_is_made(client, town, monkeypatch):
    working, go = threading.Event(), threading.Event()
    real = PlaceMap.calibrate

    def slow(self, *args, **options):
        working.set()
        assert go.wait(PATIENCE)
        return real(self, *args, **options)

    monkeypatch.setattr(PlaceMap, "calibrate", slow)
    job = client.post("/v1/calibrations", files=camera(9), data={"name": "night"}).json()["job"]
    assert working.wait(PATIENCE)
    assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    client.delete("/v1/images/3")
    go.set()
    assert finished(client, job)["state"] == "done"
    again = opened(town)
    assert (again.calibrations, again.state.revision) == (["night"], 4)
    assert [record.id for record in again.images] == ids(client) == [0, 1, 2, *range(4, 15)]
    assert ask(client, picture(40), k=1).json()["hits"][0]["id"] == 14
    head = again.state.chosen("night")
    assert head.calibration["revision"] == 4
    # What was added meanwhile is described as if it had been there before.
    tokens = Tokens(*FakeEncoder().encode([as_rgb(picture(40))]), grid=(4, 4))
    fresh = head.grown(tokens).stored.scorer.terms
    for term, grown in zip(head.stored.scorer.terms, fresh, strict=True):
        assert (term.gallery.chunks[-1][-1] == grown.gallery.chunks[-1][0]).all()


def test_what_cannot_calibrate_is_reported(client):
    for data, words in (
        ({"name": "no/slash"}, "name='no/slash' is not allowed: must match [A-Za-z0-9_-]+"),
        ({"name": "none"}, "cannot name"),
    ):
        refused = client.post("/v1/calibrations", files=camera(2), data=data)
        assert refused.status_code == 422
        assert words in refused.json()["error"]
    text = client.post("/v1/calibrations", files=[("images", ("a.txt", b"text"))])
    assert text.status_code == 415
    known = [("images", (f"{place}.png", picture(place))) for place in range(3)]
    told = finished(client, client.post("/v1/calibrations", files=known).json()["job"])
    assert (told["state"], told["result"]) == ("failed", None)
    assert told["error"].startswith("3 of 3 photos are in the map (first: 0.png)")
    assert client.get("/v1/map").json()["calibrations"] == []
    assert client.get("/v1/jobs/unknown").status_code == 404


def test_a_defect_in_a_job_tells_no_trace(caplog):
    board, ends = JobBoard(), []

    def broken(progress):
        raise ZeroDivisionError("secret")

    job = board.start(broken, ends.append)
    board.close()
    told = board.get(job.id)
    assert told.state == "failed"
    assert ends == [told]
    assert "secret" not in told.error
    assert "ZeroDivisionError: secret" in caplog.text


def endless(begun):
    def work(progress):
        with progress.task("encoding", 10) as task:
            while True:
                begun.set()
                task.advance(0)

    return work


def test_a_service_that_stops_ends_its_jobs_also_those_that_wait():
    board, begun, ends = JobBoard(), threading.Event(), []
    running, waiting = (board.start(endless(begun), ends.append) for _ in range(2))
    assert begun.wait(PATIENCE)
    board.close()
    assert [job.id for job in ends] == [running.id, waiting.id]
    for job in ends:
        assert board.get(job.id) == job
        assert job.error == "the service stopped before the job finished; start the job again"


def test_a_caller_with_many_jobs_leaves_places_to_others():
    board, begun = JobBoard(), threading.Event()
    try:
        for _ in range(jobs.MAX_OF_ONE):
            board.start(endless(begun), lambda _: None, "one")
        with pytest.raises(Refused, match="12 jobs are waiting, 12 of them yours; retry when they are done"):
            board.start(endless(begun), lambda _: None, "one")
        for _ in range(jobs.MAX_WAITING - jobs.MAX_OF_ONE):
            board.start(endless(begun), lambda _: None, "other")
        with pytest.raises(Refused, match="16 jobs are waiting, 0 of them yours"):
            board.start(endless(begun), lambda _: None, "third")
    finally:
        board.close()


def test_a_job_that_is_given_up_ends_once(caplog):
    board, begun, ends = JobBoard(), threading.Event(), []

    def cannot(job):
        ends.append(job)
        raise OSError("no log")

    job = board.start(endless(begun), cannot)
    assert begun.wait(PATIENCE)
    board.give_up()
    board.close()
    assert [(one.id, one.state) for one in ends] == [(job.id, "failed")]
    assert board.get(job.id).error.startswith("the service was killed before the job finished;")
    assert "the callback of an ended job failed" in caplog.text

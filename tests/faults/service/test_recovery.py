"""The service reports an injected fault and recovers without a restart."""

from __future__ import annotations

import errno
import os
import shutil
import threading

import pytest

from tests.fakes import FakeEncoder
from tests.service.camera_steps import files
from tests.service.conftest import add, ask, opened, picture
from tests.waiting import wait_until
from tfa.core import files as base_files
from tfa.maps import storage
from tfa.maps.tracker import Tracker
from tfa.service import cameras as kept
from tfa.service.context import WORKERS


class FaultyEncoder(FakeEncoder):
    """Raises what it is told to."""

    fault: BaseException | None = None

    def encode(self, images):
        if self.fault is not None:
            raise self.fault
        return super().encode(images)


FAULTS = [
    (RuntimeError("the machine gave up"), 500, "internal error"),
    (SystemExit(), 503, "the service failed on this query"),
    (MemoryError(), 503, "out of memory"),
    (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), 503, "too many open files"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 507, "the disk is full"),
    (OSError(errno.EIO, os.strerror(errno.EIO)), 500, "internal error"),
]


def test_a_map_whose_threads_hang_delays_no_other_map(serve, town):
    shutil.copytree(town, town.with_name("other.tfa"))
    client, ended = serve(opened(town), opened(town.with_name("other.tfa"))), threading.Event()
    try:
        for _ in range(WORKERS):
            client.app.state.service._workers["other"].submit(ended.wait)
        assert client.get("/v1/images/3/file", params={"map": "town"}).status_code == 200
    finally:
        ended.set()
    assert client.get("/v1/images/3/file", params={"map": "other"}).status_code == 200


@pytest.mark.parametrize(("fault", "status", "says"), FAULTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("camera", [None, "cam0"])
def test_a_fault_of_the_encoder(serve, town, campaign, fault, status, says, camera):
    encoder = FaultyEncoder()
    client = serve(opened(town, encoder), raises=False)
    fields = {} if camera is None else {"camera": camera}
    for _ in range(campaign.size(1, 20)):
        encoder.fault = fault
        refused = ask(client, picture(5), **fields)
        assert (refused.status_code, says in refused.json()["error"]) == (status, True), refused.text
        refused = add(client, ("a.png", picture(40)))
        assert refused.status_code in (status, 500), refused.text
        encoder.fault = None
        assert ask(client, picture(5), k=1, **fields).json()["hits"][0]["id"] == 5
        wait_until(lambda: client.get("/readyz").status_code == 200)
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    campaign.count("faults in the encoder, without a restart", 2 * campaign.size(1, 20))


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "Input/output error"), MemoryError(), SystemExit()], ids=repr)
def test_a_fault_of_a_camera_fails_its_query_alone(serve, monkeypatch, campaign, fault):
    client, times = serve(raises=False), campaign.size(1, 20)

    def fails(*_):
        raise fault

    for number in range(times):
        with monkeypatch.context() as patch:
            patch.setattr(Tracker, "answer", fails)
            assert ask(client, picture(5), camera="cam0").status_code >= 500
            assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
        assert ask(client, picture(number % 14), camera="cam0", k=1).json()["hits"][0]["id"] == number % 14
        wait_until(lambda: client.get("/readyz").status_code == 200)
    assert client.get("/v1/cameras/cam0").json()["seen"] == times  # those that failed taught nothing
    campaign.count("faults in camera adaptation, without a restart", times)


def test_a_full_disk_refuses_edits_and_loses_none(serve, town, monkeypatch, campaign):
    client, times = serve(raises=False), campaign.size(1, 10)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(town / "photos"))

    places = ((storage, "write_upload"), (storage, "read_map_header"), (base_files.os, "fsync"))
    for number in range(times):
        for module, name in places:
            with monkeypatch.context() as patch:
                patch.setattr(module, name, full)
                refused = add(client, ("a.png", picture(40 + number)))
                assert refused.status_code == 507, refused.text
                assert "the disk is full" in refused.json()["error"]
                assert str(town.parent) not in refused.text
                assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
        assert add(client, ("a.png", picture(40 + number))).json()["added"] == [14 + number]
    assert len(opened(town)) == 14 + times
    campaign.count("full disks, without a restart", len(places) * times)


def test_cameras_on_a_full_disk_cost_the_log_one_line(serve, town, monkeypatch, caplog, campaign):
    monkeypatch.setattr(kept, "SAVED_EVERY", 1)
    queries = campaign.size(12, 200)
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(base_files.os, "fsync", full)
        client = serve(cameras=2)
        for number in range(queries):
            answer = ask(client, picture(number % 14), camera=f"cam{number % 3}")
            assert answer.status_code == 200
        wait_until(lambda: "will retry" in caplog.text)
        assert (caplog.text.count("cannot save"), "Traceback" in caplog.text) == (1, False)
    for _ in range(2):
        ask(client, picture(3), camera="cam0")
    wait_until(lambda: len(files(town)) == 2)
    wait_until(lambda: "cameras of town.tfa can be saved again" in caplog.text)
    campaign.count("camera queries on a full disk", queries)


def test_a_disk_that_is_read_only_answers_queries(serve, town, monkeypatch, campaign):
    client, times = serve(raises=False), campaign.size(1, 20)

    def refuses(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for number in range(times):
        with monkeypatch.context() as patch:
            patch.setattr(base_files.os, "replace", refuses)
            refused = add(client, ("a.png", picture(40 + number)))
            assert (refused.status_code, refused.json()["error"].partition(";")[0]) == (
                507,
                "cannot write to the folder of town (Read-only file system)",
            )
            for camera in ({}, {"camera": "cam0"}):
                assert ask(client, picture(5), k=1, **camera).json()["hits"][0]["id"] == 5
        assert add(client, ("a.png", picture(40 + number))).json()["added"] == [14 + number]
    assert len(opened(town)) == 14 + times
    campaign.count("read-only disks, without a restart", times)

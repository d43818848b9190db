"""Camera states are stored, bounded, shown and reset; they belong to one head."""

from __future__ import annotations

import threading

import pytest

from tests.service.camera_steps import DRIVE, STREAM, files, followed, listed, told
from tests.service.conftest import add, ask, opened, picture
from tests.waiting import wait_until
from tfa.core.files import write_tensors
from tfa.online.adaptation import Adaptation
from tfa.service import cameras as kept


def file_of(name: str, owner: str = "") -> str:
    return kept.CameraKey(owner, name).file_name


@pytest.mark.slow
def test_a_restart_keeps_cameras(serve, town):
    first = serve()
    answers = [told(ask(first, one, camera="cam0")) for one in STREAM[:20]]
    ask(first, DRIVE[0], camera="CAM0")
    before = first.get("/v1/cameras").json()
    first.__exit__(None, None, None)
    assert files(town) == sorted([file_of("cam0"), file_of("CAM0")])
    assert len({name.lower() for name in files(town)}) == 2  # also where file names have no case
    again = serve()
    assert again.get("/v1/cameras").json() == before
    answers += [told(ask(again, one, camera="cam0")) for one in STREAM[20:]]
    assert answers == followed(opened(town), STREAM)
    assert len(opened(town)) == 14  # the files of cameras are no files of the map


def test_the_least_recently_used_is_forgotten_also_on_disk(serve, town, monkeypatch):
    client = serve(cameras=2)
    assert client.get("/v1/cameras").json()["most"] == 2
    for name in ("a", "b", "a", "c"):
        ask(client, DRIVE[0], camera=name)
    assert listed(client) == {"c": 1, "a": 2}
    assert ask(client, DRIVE[1], camera="b").json()["adaptation_photos"] == 0
    assert ask(client, DRIVE[1], camera="c").json()["adaptation_photos"] == 1
    assert 'tfa_cameras{map="town"} 2.0' in client.get("/metrics").text
    assert 'tfa_camera_photos_total{map="town"} 6.0' in client.get("/metrics").text
    client.__exit__(None, None, None)
    assert files(town) == sorted([file_of("b"), file_of("c")])
    fewer = serve(cameras=1)
    assert listed(fewer) == {"c": 2}
    wait_until(lambda: files(town) == [file_of("c")])
    monkeypatch.setattr(kept, "_MOST_BYTES", 3 * (256 * 4 * 14 + 16 * 12 * 4))  # rows and cell means
    assert serve(cameras=64).get("/v1/cameras").json()["most"] == 3  # of a large map fewer are kept


def test_cameras_can_be_looked_at_and_reset(serve, town):
    client = serve()
    for one in DRIVE:
        ask(client, one, camera="cam0")
        ask(client, DRIVE[0], camera="still")
    ask(client, DRIVE[0], camera="other")
    shown = client.get("/v1/cameras/cam0").json()
    assert (shown["name"], shown["seen"], shown["counted"], shown["calibration"]) == ("cam0", 14, 14, None)
    assert shown["shift"] > 0
    assert shown["bias_spread"] is None
    assert shown["last_used"].endswith("+00:00")
    assert client.get("/v1/cameras/still").json()["counted"] == 1
    assert client.delete("/v1/cameras/cam0").json() == {"reset": ["cam0"]}
    assert set(listed(client)) == {"still", "other"}
    assert file_of("cam0") not in files(town)
    for gone in (client.get("/v1/cameras/cam0"), client.delete("/v1/cameras/cam0")):
        assert gone.status_code == 404
        assert "camera 'cam0' not found in town; /v1/cameras lists" in gone.json()["error"]
    assert ask(client, DRIVE[3], camera="cam0").json()["adaptation_photos"] == 0
    assert sorted(client.delete("/v1/cameras").json()["reset"]) == ["cam0", "other", "still"]
    assert (listed(client), files(town)) == ({}, [])
    client.__exit__(None, None, None)
    assert files(town) == []


def test_looking_needs_the_read_api_key_and_resetting_the_edit_api_key(serve):
    client = serve(read_api_key="look", edit_api_key="change")
    look, change = ({"Authorization": f"Bearer {api_key}"} for api_key in ("look", "change"))
    client.post("/v1/query", files={"image": ("a.png", DRIVE[0])}, data={"camera": "cam0"}, headers=look)
    assert client.get("/v1/cameras").status_code == 401
    assert client.get("/v1/cameras/cam0", headers=look).json()["seen"] == 1
    for path in ("/v1/cameras/cam0", "/v1/cameras"):
        assert client.delete(path, headers=look).status_code == 403
        assert client.delete(path, headers=change).status_code == 200


def test_cameras_that_are_not_used_follow_the_map_too(client):
    ask(client, DRIVE[0], camera="cam0")
    add(client, ("a.png", picture(40)))
    live = client.app.state.service.maps["town"]
    wait_until(lambda: live.cameras._cameras[kept.CameraKey("", "cam0")].tracker.place_map is live.current)


def fitted_on_fewer(town, image):
    opened(town).remove([image])
    opened(town).refit(progress=False)


@pytest.mark.slow
def test_another_head_starts_a_camera_anew(serve, town, caplog):
    client = serve()
    for one in STREAM[:5]:
        ask(client, one, camera="cam0")
        ask(client, one, camera="day", calibration="none")
    files_of_a_camera = [("images", (f"{place}.png", picture(place, 0.7))) for place in range(9)]
    job = client.post("/v1/calibrations", files=files_of_a_camera, data={"name": "night"}).json()["job"]
    wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] in ("done", "failed"))
    first = ask(client, STREAM[5], camera="cam0").json()
    assert (first["calibration"], first["adaptation_photos"]) == ("night", 0)
    assert ask(client, STREAM[5], camera="day", calibration="none").json()["adaptation_photos"] == 5
    assert told(ask(client, STREAM[6], camera="cam0")) == followed(opened(town), STREAM[5:7])[-1]
    client.post("/v1/calibrations", files=files_of_a_camera[:6], data={"name": "night"})
    wait_until(lambda: "camera cam0 was adapted to a head that town.tfa no longer has" in caplog.text)
    wait_until(lambda: listed(client) == {"day": 6})
    fitted_on_fewer(town, 0)  # by another process: noticed by the next request
    assert listed(client) == {}
    ask(client, STREAM[0], camera="cam0")
    client.__exit__(None, None, None)
    assert files(town) == [file_of("cam0")]
    fitted_on_fewer(town, 1)
    again = serve()
    assert listed(again) == {}
    assert "its head is no longer in town.tfa" in caplog.text
    wait_until(lambda: files(town) == [])


def test_a_file_that_cannot_be_read_is_told_and_removed(serve, town, caplog):
    (town / file_of("cam0")).write_bytes(b"no")
    write_tensors(town / file_of("cam1"), {}, {"kind": "other"})
    client = serve()
    assert listed(client) == {}
    assert caplog.text.count("its camera starts over") == 2
    wait_until(lambda: files(town) == [])


@pytest.mark.parametrize("change", [{"last_used": 10**400}, {"last_used": 1e17}, {"session": "../.."}])
def test_a_file_with_another_name_or_an_impossible_time_is_removed(serve, town, caplog, change):
    first = serve()
    ask(first, DRIVE[0], camera="cam0")
    first.__exit__(None, None, None)
    adaptation, about = Adaptation.load(town / file_of("cam0"))
    write_tensors(town / file_of("cam0"), *adaptation.contents({**about, **change}))
    client = serve()
    assert listed(client) == {}
    assert "its camera starts over" in caplog.text
    wait_until(lambda: files(town) == [])


def test_a_file_that_another_user_owns_is_left(serve, town, monkeypatch, caplog):
    first = serve()
    ask(first, DRIVE[0], camera="cam0")
    first.__exit__(None, None, None)
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(kept.Adaptation, "load", lambda _: (_ for _ in ()).throw(refused))
    client = serve()
    assert listed(client) == {}
    assert "leaving session-cam0" in caplog.text
    client.__exit__(None, None, None)
    assert files(town) == [file_of("cam0")]


def test_a_disk_that_cannot_be_written_fails_no_query_and_is_tried_again(serve, town, monkeypatch, caplog):
    monkeypatch.setattr(kept, "SAVED_EVERY", 2)
    full, threads = [OSError(28, "No space left on device")], []

    def write(path, tensors, metadata):
        threads.append(threading.current_thread().name)
        if full:
            raise full[0]
        write_tensors(path, tensors, metadata)

    monkeypatch.setattr(kept, "write_tensors", write)
    client = serve()
    for place in range(3):
        assert ask(client, picture(place), camera="cam0", k=1).json()["hits"][0]["id"] == place
    wait_until(lambda: "cannot save camera cam0, will retry" in caplog.text)
    assert files(town) == []
    full.clear()
    for place in range(3):
        assert ask(client, picture(place), camera="cam0").status_code == 200
    wait_until(lambda: len(files(town)) == 1)
    assert {name.split("_")[0] for name in threads} == {"tfa-cameras"}  # never the thread of the queries
    assert listed(client) == {"cam0": 6}


def test_two_services_of_a_map_leave_each_other_their_cameras(serve, town, monkeypatch):
    monkeypatch.setattr(kept, "SAVED_EVERY", 1)
    first, second = serve(cameras=1), serve(cameras=1)
    ask(first, DRIVE[0], camera="one")
    ask(second, DRIVE[0], camera="two")
    both = sorted([file_of("one"), file_of("two")])
    wait_until(lambda: files(town) == both)
    add(first, ("a.png", picture(40)))  # saves the cameras of both
    second.get("/v1/map")
    second.__exit__(None, None, None)
    assert files(town) == both
    third = serve(cameras=1, read_api_key="r")  # neither may use nor delete what anonymous clients left
    third.__exit__(None, None, None)
    assert files(town) == both
    ask(first, DRIVE[0], camera="three")
    wait_until(lambda: files(town) == sorted([file_of("three"), file_of("two")]))


def test_a_camera_that_another_service_uses_is_not_deleted(serve, town, monkeypatch):
    monkeypatch.setattr(kept, "SAVED_EVERY", 1)
    first = serve()
    ask(first, DRIVE[0], camera="one")
    wait_until(lambda: files(town) == [file_of("one")])
    second = serve(cameras=1)
    before = kept._stamp(town / file_of("one"))
    ask(first, DRIVE[1], camera="one")
    wait_until(lambda: kept._stamp(town / file_of("one")) != before)
    ask(second, DRIVE[0], camera="two")  # forgets the first camera
    wait_until(lambda: file_of("two") in files(town))
    second.__exit__(None, None, None)
    assert files(town) == sorted([file_of("one"), file_of("two")])


def test_files_that_cannot_be_removed_fail_neither_queries_nor_edits(serve, town, monkeypatch, caplog):
    monkeypatch.setattr(kept, "SAVED_EVERY", 1)
    client = serve(cameras=1)
    ask(client, DRIVE[0], camera="one")
    wait_until(lambda: files(town) == [file_of("one")])

    def fails(self, missing_ok=False):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(town), "unlink", fails)
    assert ask(client, picture(4), camera="cam0", k=1).json()["hits"][0]["id"] == 4
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    wait_until(lambda: "cannot remove old cameras of town.tfa" in caplog.text)

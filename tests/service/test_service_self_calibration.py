"""Self-calibration, where the service was started with it: off by default, kept, shown, forgotten."""

from __future__ import annotations

import threading

import pytest

from tests.service.conftest import add, ask, opened, picture, wait_until
from tfa.online.self_calibration import SelfCalibration
from tfa.service import self_calibration


def questions(count):
    return [("images", (f"{place}.png", picture(place, 0.8))) for place in range(count)]


def learnt(client):
    told = client.get("/v1/self-calibration").json()
    return told["seen"], told["kept"], told["ready"]


def test_by_default_nothing_is_learnt_from_queries(client):
    ask(client, picture(5))
    assert client.get("/v1/self-calibration").json() == {"enabled": False, "kept": 0, "seen": 0}
    refused = client.post("/v1/self-calibration/reset")
    assert refused.status_code == 409
    assert "--self-calibrate" in refused.json()["error"]


def test_a_map_that_was_asked_to_learns_keeps_and_forgets(serve, town, monkeypatch):
    monkeypatch.setattr(self_calibration, "LEARNT_EVERY", 1)
    client = serve(self_calibrate=True)
    files = [("images", (f"{place}.png", picture(place, 0.8))) for place in range(20)]
    asked = client.post("/v1/query/batch", files=files, data={"k": 14}).json()["answers"]
    told = client.get("/v1/self-calibration").json()
    assert (told["enabled"], told["seen"], told["kept"]) == (True, 20, 20)
    later = client.post("/v1/query/batch", files=files, data={"k": 14}).json()["answers"]
    scores = [{hit["id"]: hit["score"] for hit in answers[0]["hits"]} for answers in (asked, later)]
    assert scores[0] != pytest.approx(scores[1], abs=1e-6)
    add(client, ("a.png", picture(40)))
    assert ask(client, picture(40), k=1).json()["hits"][0]["id"] == 14
    client.__exit__(None, None, None)  # what was learnt is saved at the end
    kept = [path.name for path in town.glob("self-*")]
    assert kept == [f"self-calibration-none-{opened(town).state.head_digest('none')[:16]}.safetensors"]
    fresh = serve(self_calibrate=True)
    assert fresh.get("/v1/self-calibration").json()["seen"] == 41
    assert fresh.post("/v1/self-calibration/reset").json()["seen"] == 0
    assert list(town.glob("self-*")) == []
    plain = opened(town)
    assert len(plain) == 15  # the files of learning are no files of the map


def test_a_head_that_was_fitted_again_does_not_take_over_what_the_old_one_learnt(serve, town, caplog):
    client = serve(self_calibrate=True)
    client.post("/v1/query/batch", files=questions(18))
    assert learnt(client) == (18, 18, True)
    client.__exit__(None, None, None)
    (old,) = town.glob("self-*")
    place_map = opened(town)
    before = place_map.state.head_digest("none")
    place_map.remove([0, 1])
    assert opened(town).state.head_digest("none") == before  # an edit leaves the head
    place_map.refit(progress=False)
    assert opened(town).state.head_digest("none") != before

    fresh = serve(self_calibrate=True)
    assert learnt(fresh) == (0, 0, False)
    assert not old.exists()
    assert f"{old.name} was learnt by a head that town.tfa no longer has; it is removed" in caplog.text


def test_a_refit_by_another_process_is_noticed_with_the_next_edit(serve, town):
    client = serve(self_calibrate=True)
    client.post("/v1/query/batch", files=questions(18))
    add(client, ("a.png", picture(40)))
    assert learnt(client)[0] == 18  # edits keep it
    opened(town).refit(progress=False)
    client.delete("/v1/images/3")
    ask(client, picture(5))
    assert learnt(client) == (1, 1, False)
    client.__exit__(None, None, None)
    assert [path.name.split("-")[-1][:16] for path in town.glob("self-*")] == [
        opened(town).state.head_digest("none")[:16]
    ]


def test_each_calibration_learns_for_itself(serve, town):
    place_map = opened(town)
    from tests.maps.conftest import photo

    camera = [photo(town.parent / "camera" / f"{place}.png", place, 0.7) for place in range(9)]
    place_map.calibrate(camera, "night", score=False)
    client = serve(opened(town), self_calibrate=True)
    ask(client, picture(5))
    ask(client, picture(6))
    ask(client, picture(5), calibration="none")
    assert learnt(client)[0] == 2  # of the one in use
    client.post("/v1/calibrations/active", json={"name": None})
    assert learnt(client)[0] == 1
    assert client.post("/v1/self-calibration/reset").json()["seen"] == 0
    client.post("/v1/calibrations/active", json={"name": "night"})
    assert learnt(client)[0] == 0


def test_forgetting_needs_the_edit_token_and_looking_the_read_token(serve):
    client = serve(self_calibrate=True, read_token="look", edit_token="change")
    look, change = ({"Authorization": f"Bearer {token}"} for token in ("look", "change"))
    assert client.get("/v1/self-calibration").status_code == 401
    assert client.get("/v1/self-calibration", headers=look).json()["enabled"] is True
    assert client.post("/v1/self-calibration/reset", headers=look).status_code == 403
    assert client.post("/v1/self-calibration/reset", headers=change).status_code == 200


def test_a_file_that_cannot_be_read_is_told_and_learning_starts_anew(serve, town, caplog):
    (town / f"self-calibration-none-{opened(town).state.head_digest('none')[:16]}.safetensors").write_bytes(b"no")
    assert learnt(serve(self_calibrate=True)) == (0, 0, False)
    assert "self-calibration starts anew" in caplog.text


def test_a_disk_that_cannot_be_written_fails_no_query_and_is_tried_again(serve, town, monkeypatch, caplog):
    monkeypatch.setattr(self_calibration, "SAVED_EVERY", 2)
    full, threads = [OSError(28, "No space left on device")], []
    real = SelfCalibration.save

    def save(self, path):
        threads.append(threading.current_thread().name)
        if full:
            raise full[0]
        real(self, path)

    monkeypatch.setattr(SelfCalibration, "save", save)
    client = serve(self_calibrate=True)
    for place in range(3):
        assert ask(client, picture(place), k=1).json()["hits"][0]["id"] == place
    wait_until(lambda: "cannot be saved, which is tried again later" in caplog.text)
    assert list(town.glob("self-*")) == []
    full.clear()
    for place in range(3):
        assert ask(client, picture(place)).status_code == 200
    wait_until(lambda: len(list(town.glob("self-*"))) == 1)
    assert {name.split("_")[0] for name in threads} == {"tfa-self-calibration"}  # never the thread of the queries
    assert learnt(client)[0] == 6


def test_files_that_cannot_be_listed_fail_neither_queries_nor_edits(serve, town, monkeypatch, caplog):
    client = serve(self_calibrate=True)

    def unreadable(self, pattern):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(type(town), "glob", unreadable)
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    assert ask(client, picture(40), k=1).json()["hits"][0]["id"] == 14
    assert "old self-calibrations of town.tfa cannot be removed" in caplog.text

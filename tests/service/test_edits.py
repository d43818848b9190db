"""Edits are on disk before they are answered, seen by the next query, and hold up none."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.maps.test_fast_maps import OtherArithmetic
from tests.service.conftest import add, ask, ids, opened, picture
from tests.waiting import PATIENCE, wait_until
from tfa.maps import PlaceMap
from tfa.maps.folder import writer
from tfa.maps.storage import MemoryStorage
from tfa.photos.images import as_rgb
from tfa.service.routes.images import parse_positions


def test_an_added_photo_answers_the_next_query_and_is_on_disk(client, town):
    told = add(client, ("new place.png", picture(40)), ("other.jpg", picture(41, kind="JPEG"))).json()
    assert told["added"] == [14, 15]
    assert (told["skipped"], told["revision"]) == ([], 2)
    hit = ask(client, picture(40, 0.9), k=1).json()["hits"][0]
    assert (hit["id"], hit["image"]) == (14, "new_place.png")
    again = opened(town)
    assert (len(again), again.state.revision) == (16, 2)
    stored = Path(again.images[14].path)
    assert stored.is_relative_to(town.resolve() / "photos")
    assert stored.read_bytes() == picture(40)


def test_the_map_is_as_if_added_on_this_machine(client, town, tmp_path):
    other = opened(town)
    (tmp_path / "n.png").write_bytes(picture(40))
    other.storage.path = None  # in memory only
    other.add(tmp_path / "n.png")
    add(client, ("n.png", picture(40)))
    one, two = opened(town).state, other.state
    for ours, theirs in zip(one.head.scorer.terms, two.head.scorer.terms, strict=True):
        assert (ours.gallery.chunks[-1] == theirs.gallery.chunks[-1]).all()
    assert (one.compact.chunks[-1] == two.compact.chunks[-1]).all()


def test_a_photo_the_map_holds_is_skipped(client):
    told = add(client, ("copy.png", picture(3)), ("a.png", picture(40)), ("b.png", picture(40))).json()
    assert told["added"] == [14]
    assert told["skipped"] == [["copy.png", "already in the map as image 3"], ["b.png", "same photo as a.png"]]
    assert add(client, ("a.png", picture(40))).json()["revision"] == told["revision"]


def test_a_bad_photo_among_good_ones_is_skipped_and_told(client):
    told = add(client, ("a.png", picture(40)), ("bad.png", picture(41)[:200])).json()
    assert told["added"] == [14]
    [(image, reason)] = told["skipped"]
    assert image == "bad.png"
    assert "truncated" in reason


NAMES = {
    "../../../etc/passwd": "passwd.png",
    "..\\..\\windows\\a b?.png": "a_b_.png",
    "/etc/cron.d/x.png": "x.png",
    "...": "photo.png",
    ".hidden.png": "hidden.png",
    "x" * 300 + ".png": "x" * 97 + ".png",
    "Straße.png": "Straße.png",
}


def test_no_name_leaves_the_folder_of_the_map(client, town):
    told = add(client, *[(name, picture(40 + n)) for n, name in enumerate(NAMES)]).json()
    paths = [Path(record.path) for record in opened(town).images[14:]]
    assert told["added"] == list(range(14, 21))
    assert [path.name for path in paths] == list(NAMES.values())
    assert {path.parent.parent for path in paths} == {town.resolve() / "photos"}


def test_positions_come_with_the_request_or_from_the_name(client):
    places = json.dumps([{"x": 1.5, "y": -2}, None])
    add(client, ("a.png", picture(40)), ("@3@4@.png", picture(41)), positions=places)
    assert client.get("/v1/positions").json() == {"kind": "xy", "points": [[14, 1.5, -2.0], [15, 3.0, 4.0]]}
    add(client, *[(f"{n}.png", picture(n)) for n in (50, 51, 52)], positions=json.dumps([{"lat": 1, "lon": 2}] * 3))
    assert client.get("/v1/positions").json() == {"kind": "latlon", "points": [[n, 2.0, 1.0] for n in (16, 17, 18)]}
    hit = ask(client, picture(40), k=1).json()["hits"][0]
    assert hit["position"] == {"x": 1.5, "y": -2.0}


BAD_POSITIONS = {
    "not json": "not JSON",
    "[]": "a list of 1",
    '{"b.png": {"x": 1, "y": 2}}': "positions has 'b.png'",
    '[{"lat": 99, "lon": 0}]': "lat is 99",
    '[{"x": 1}]': "lat and lon, or x and y",
    "[3]": "must be an object",
}


def test_bad_positions_are_told_and_nothing_is_added(client):
    for positions, words in BAD_POSITIONS.items():
        answer = add(client, ("a.png", picture(40)), positions=positions)
        assert answer.status_code == 422
        assert words in answer.json()["error"]
    assert len(ids(client)) == 14


def test_positions_may_be_named(client):
    assert parse_positions({"b": {"x": 1, "y": 2}}, ["a", "b"])[0] is None
    assert parse_positions({"b": {"x": 1, "y": 2}}, ["a", "b"])[1].x == 1


def test_an_image_is_removed_from_the_revision_that_the_caller_saw(client):
    for sent in ({"params": {"revision": 7}}, {"headers": {"If-Match": '"7"'}}, {"headers": {"If-Match": "x"}}):
        refused = client.delete("/v1/images/5", **sent)
        assert (refused.status_code, "town has revision 1, not " in refused.json()["error"]) == (409, True)
    assert client.delete("/v1/images/5", params={"revision": 1}).json()["removed"] == [5]
    assert client.delete("/v1/images/6", headers={"If-Match": '"2"'}).json()["removed"] == [6]
    assert client.delete("/v1/images/7", headers={"If-Match": "*"}).json()["removed"] == [7]


def test_a_removed_image_answers_no_more(client, town):
    told = client.delete("/v1/images/5").json()
    assert (told["removed"], told["revision"]) == ([5], 2)
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] != 5
    assert 5 not in [record.id for record in opened(town).images]
    again = client.delete("/v1/images/5")
    assert again.status_code == 404
    assert "image 5 not found" in again.json()["error"]
    assert client.get("/v1/images/5/file").status_code == 404
    assert add(client, ("five.png", picture(5))).json()["added"] == [14]  # and it may come back


def test_queries_are_answered_while_an_edit_is_under_way(client, monkeypatch):
    writing, go = threading.Event(), threading.Event()
    real = writer.write_addition

    def slow(folder, state):
        writing.set()
        assert go.wait(PATIENCE)
        return real(folder, state)

    monkeypatch.setattr(writer, "write_addition", slow)
    answers = []
    edit = threading.Thread(target=lambda: answers.append(add(client, ("a.png", picture(40)))))
    edit.start()
    assert writing.wait(PATIENCE)
    before = ask(client, picture(40), k=1).json()["hits"][0]["id"]
    go.set()
    edit.join()
    assert before != 14
    assert answers[0].json()["added"] == [14]
    assert ask(client, picture(40), k=1).json()["hits"][0]["id"] == 14


def test_an_edit_that_fails_leaves_the_map_and_its_folder_as_they_were(serve, town, monkeypatch):
    client = serve(raises=False)

    def full(folder, state):
        raise OSError(28, "No space left on device", str(folder.path / "x"))

    monkeypatch.setattr(writer, "write_addition", full)
    answer = add(client, ("a.png", picture(40)))
    assert answer.status_code == 507
    assert answer.json() == {
        "error": "the disk is full at x (No space left on device); existing files are unchanged. "
        "Free disk space and try again"
    }
    assert ids(client) == list(range(14))
    assert [path for path in (town / "photos").rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    assert client.delete("/v1/images/0").status_code == 200


def test_what_another_process_wrote_is_read_before_the_next_edit(client, town):
    opened(town).remove([2])
    assert client.delete("/v1/images/3").json()["revision"] == 3
    assert ids(client) == [0, 1, *range(4, 14)]


def test_a_map_that_another_process_edits_right_now_is_told(client, town):
    with writer.hold_for_edit(town):
        answer = client.delete("/v1/images/3")
    assert answer.status_code == 409
    assert answer.json()["error"] == "town.tfa is being edited by another process; try again when it is done"


def test_many_small_additions_do_not_pile_up(client, town, monkeypatch):
    monkeypatch.setattr(writer, "MAX_SEGMENTS", 3)
    live = client.app.state.service.maps["town"]
    first = live.current.state.head.scorer.terms[0].gallery.chunks[0]
    for place in range(40, 47):
        assert add(client, (f"{place}.png", picture(place))).status_code == 200
    assert max(len(part.gallery.chunks) for part in live.current.state.head.scorer.terms) <= 3
    assert ask(client, picture(41), k=1).json()["hits"][0]["id"] == 15
    # What was not joined is the same array still: it need not be packed for queries again.
    assert live.current.state.head.scorer.terms[0].gallery.chunks[0] is first
    again = opened(town)
    assert len(again) == 21
    assert again.state.head_digest("none") == live.current.state.head_digest("none")
    hits = again.query(as_rgb(picture(41)), k=3)
    assert [hit["id"] for hit in ask(client, picture(41), k=3).json()["hits"]] == [hit.id for hit in hits]


def test_a_map_is_packed_for_queries_before_it_is_ready_and_after_each_change(serve, town, monkeypatch):
    packed = []
    real = PlaceMap.prepare

    def noted(self):
        packed.append((self.state.revision, [head.name for head in self.state.heads]))
        real(self)

    monkeypatch.setattr(PlaceMap, "prepare", noted)
    client = serve()
    assert packed == [(1, ["none"])]
    assert add(client, ("00.png", picture(0))).json()["added"] == []  # nothing changed: the map stays ready
    assert packed == [(1, ["none"])]
    add(client, ("a.png", picture(40)))
    opened(town).refit(progress=False)
    client.delete("/v1/images/3")
    assert packed == [(revision, ["none"]) for revision in (1, 2, 3, 4)]  # the third was made by another process
    answer = ask(client, picture(5, 0.8), k=3).json()
    from_disk = opened(town).query(as_rgb(picture(5, 0.8)), k=3)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in from_disk]


@pytest.mark.parametrize(("owner", "step"), [(MemoryStorage, "_join_pieces"), (PlaceMap, "prepare")])
def test_what_fails_after_the_edit_is_on_disk_does_not_fail_the_edit(client, town, monkeypatch, caplog, owner, step):
    def broken(self, *_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(owner, step, broken)
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    assert client.delete("/v1/images/3").json()["removed"] == [3]
    assert ids(client) == [record.id for record in opened(town).images] == [0, 1, 2, *range(4, 15)]
    assert ask(client, picture(40), k=1).json()["hits"][0]["id"] == 14
    assert "cannot pack revision 2 of town: queries may be slower" in caplog.text


def test_a_service_that_encodes_in_another_arithmetic_edits_and_calibrates(serve, town):
    client = serve(opened(town, OtherArithmetic()))
    assert add(client, ("a.png", picture(40))).json()["added"] == [14]
    opened(town).remove([2])  # by another process: the service reads the map again and compares its model
    assert client.delete("/v1/images/3").json()["removed"] == [3]
    files = [("images", (f"{place}.png", picture(place, 0.7))) for place in range(9)]
    job = client.post("/v1/calibrations", files=files, data={"name": "night"}).json()["job"]
    wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] in ("done", "failed"))
    assert client.get(f"/v1/jobs/{job}").json()["error"] is None
    assert opened(town).calibrations == ["night"]

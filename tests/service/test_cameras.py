"""Cameras: photos of a camera with a name are answered as a tracker of the map answers them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC
from tests.service.camera_steps import DRIVE, STREAM, followed, listed, of_json, of_tracker, told
from tests.service.conftest import add, ask, opened, picture
from tests.service.test_query_queue import GatedEncoder
from tests.waiting import PATIENCE
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.service import cameras as kept
from tfa.service.middleware import Metrics
from tfa.service.query_queue import QueryQueue
from tfa.service.settings import ServiceSettings
from tfa.types import BuildOptions, QueryOptions


@pytest.mark.parametrize("how", [{}, {"rerank": True, "candidates": 6}, {"k": 14, "rerank": False}])
def test_a_stream_is_answered_as_a_tracker_answers_it(client, town, how):
    answers = [told(ask(client, one, camera="cam0", **how)) for one in STREAM]
    assert answers == followed(opened(town), STREAM, **how)
    assert answers[-1][2] > 32  # the bias of scores takes part


def test_the_frames_of_a_drive_are_followed(client, town):
    answers = [told(ask(client, one, camera="cam0", sequence="true")) for one in DRIVE]
    assert answers == followed(opened(town), DRIVE, sequence=True)
    assert answers[-1][0][0][0] == 13
    shown = client.get("/v1/cameras/cam0").json()
    assert (shown["sequence"], shown["lost"]) == (True, answers[-1][3])
    hidden = ask(client, DRIVE[0], camera="cam0", sequence="true", min_confidence=1).json()
    assert hidden["hits"] == []
    assert 0 <= hidden["confidence"] < 1


def test_a_photo_without_a_camera_is_answered_by_the_map_alone(client, town):
    for one in STREAM:
        ask(client, one, camera="cam0")
    plain = ask(client, DRIVE[3], k=14).json()
    assert not {"camera", "adaptation_photos", "lost"} & set(plain)
    alone = opened(town).query(as_rgb(DRIVE[3]), k=14)
    assert [(hit["id"], hit["score"]) for hit in plain["hits"]] == [(hit.id, hit.score) for hit in alone]
    assert listed(client) == {"cam0": 40}


@pytest.mark.slow
def test_two_cameras_do_not_mix_and_a_batch_is_a_stream(client, town):
    other = list(reversed(STREAM))
    both = zip(STREAM, other, strict=True)
    mixed = [(told(ask(client, a, camera="a")), told(ask(client, b, camera="B.b"))) for a, b in both]
    place_map = opened(town)
    assert [one for one, _ in mixed] == followed(place_map, STREAM)
    assert [one for _, one in mixed] == followed(place_map, other)
    files = [("images", ("x.png", one)) for one in STREAM[:20]]
    files[7:7] = [("images", ("bad.png", b"no photo"))]
    batch = client.post("/v1/query/batch", files=files, data={"camera": "c"}).json()["answers"]
    assert "not a complete photo" in batch.pop(7)["error"]
    assert [of_json(one) for one in batch] == followed(place_map, STREAM[:20])
    assert [one["name"] for one in client.get("/v1/cameras").json()["cameras"]] == ["c", "B.b", "a"]


@pytest.mark.parametrize("name", ["a b", "../x", "x" * 65, "straße", "a/b", "\n", ".", "..", ".front"])
def test_a_name_that_is_none_is_refused(client, name):
    answer = ask(client, DRIVE[0], camera=name)
    assert answer.status_code == 422
    assert "is not allowed: must match [A-Za-z0-9_-][A-Za-z0-9._-]{0,63}" in answer.json()["error"]
    assert listed(client) == {}


def test_names_of_all_allowed_characters(client):
    for name in ("x" * 64, "-", "Cam_0.front-left"):
        assert ask(client, DRIVE[0], camera=name).json()["camera"] == name
        assert client.get("/v1/cameras").json()["cameras"][0]["name"] == name
    assert client.get("/v1/cameras/Cam_0.front-left").json()["seen"] == 1


def test_a_sequence_needs_a_camera_and_cameras_can_be_off(client, serve):
    lonely = ask(client, DRIVE[0], sequence="true")
    assert lonely.status_code == 422
    assert "sequence needs a camera; name one, such as camera=cam0" in lonely.json()["error"]
    loops = ask(client, DRIVE[0], loops="true")
    assert (loops.status_code, loops.json()["error"][:20]) == (422, "loops needs a camera")
    off = serve(cameras=0)
    refused = ask(off, DRIVE[0], camera="cam0")
    assert refused.status_code == 409
    assert "cameras are turned off in this service; start it with --cameras N" in refused.json()["error"]
    assert off.get("/v1/cameras").json() == {"most": 0, "cameras": []}
    assert off.delete("/v1/cameras").json() == {"reset": []}
    assert off.get("/v1/cameras/cam0").status_code == off.delete("/v1/cameras/cam0").status_code == 404
    assert ask(off, DRIVE[0]).status_code == 200


def test_concurrent_clients_of_one_camera_are_one_stream(client, town):
    """Whatever the order: the n-th photo is adapted by the n − 1 before it, and by no other."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: told(ask(client, one, camera="cam0")), STREAM))
    order = sorted(range(len(STREAM)), key=lambda number: answers[number][2])
    assert [answers[number][2] for number in order] == list(range(40))
    assert [answers[number] for number in order] == followed(opened(town), [STREAM[number] for number in order])


def test_photos_of_one_batch_are_answered_in_their_order(town):
    """Also beside photos of other cameras and of none, in one batch of the encoder."""
    encoder, place_map = GatedEncoder(), opened(town)
    own = kept.MapCameras(place_map, 4)
    queries = QueryQueue("town", lambda: place_map, encoder, ServiceSettings(batch_size=16), Metrics(), own)
    queries.submit(as_rgb(DRIVE[0]), QueryOptions())
    assert encoder.entered.wait(PATIENCE)
    names = ["a", None, "b", "a", "a", "b", None, "a"]
    photos = [as_rgb(DRIVE[number]) for number in range(8)]
    asked = [
        queries.submit(one, QueryOptions(k=3), name and kept.CameraKey("", name))
        for one, name in zip(photos, names, strict=True)
    ]
    broken = queries.submit(
        photos[0].resize((1, 1)), QueryOptions(), kept.CameraKey("", "a")
    )  # then every photo is encoded alone
    last = queries.submit(photos[1], QueryOptions(k=3), kept.CameraKey("", "a"))
    encoder.gate.set()
    answers = [future.result(PATIENCE) for future in (*asked, last)]
    with pytest.raises(RuntimeError, match="breaks the encoder"):
        broken.result(PATIENCE)
    names, photos = [*names, "a"], [*photos, photos[1]]
    for name in ("a", "b"):
        rows = [row for row in range(9) if names[row] == name]
        assert [(answers[row].adaptation_photos, answers[row].hits) for row in rows] == [
            (answer.adaptation_photos, answer.hits)
            for answer in map(opened(town).follow(k=3, sequence=False).step, [photos[row] for row in rows])
        ]
    assert answers[1].hits == opened(town).query(photos[1], k=3).hits
    queries.close()
    own.close()


def test_edits_in_between_keep_what_was_learnt(client, town):
    tracker = opened(town).follow(sequence=False, k=14)
    for number, one in enumerate(STREAM):
        if number == 10:
            assert client.delete("/v1/images/3").status_code == 200
        if number == 36:
            assert add(client, ("a.png", picture(40))).json()["added"] == [14]
        if number in (10, 36):
            tracker.rebind(opened(town), QueryOptions(k=14), sequence=False)
        expected, answer = of_tracker(tracker.step(one)), told(ask(client, one, camera="cam0", k=14))
        assert answer[2] == expected[2] == number
        assert [hit[0] for hit in answer[0]] == [hit[0] for hit in expected[0]]
        assert [hit[1] for hit in answer[0]] == pytest.approx([hit[1] for hit in expected[0]], rel=1e-6)
        assert 3 not in [hit[0] for hit in answer[0]] or number < 10
    assert ask(client, picture(40), camera="cam0", k=1).json()["hits"][0]["id"] == 14
    while len(client.get("/v1/images").json()["images"]) > 1:
        client.delete(f"/v1/images/{client.get('/v1/images').json()['images'][0]['id']}")
    assert "at least 2 images" in ask(client, DRIVE[0], camera="cam0", sequence="true").json()["error"]
    assert ask(client, DRIVE[0], camera="cam0").json()["hits"][0]["id"] == 14
    client.delete("/v1/images/14")
    assert ask(client, DRIVE[0], camera="cam0").json()["hits"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [{"head": "second-order"}, {"head": "second-order", "storage": "float32"}, {"head": "paper"}]
)
def test_maps_of_every_head_have_cameras(serve, built, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("TFA_CACHE", str(built / "cache"))
    made = PlaceMap.build(built / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(**kind))
    made.save(tmp_path / "own.tfa")
    client = serve(opened(tmp_path / "own.tfa"))
    answers = [told(ask(client, one, camera="cam0")) for one in STREAM]
    assert answers == followed(opened(tmp_path / "own.tfa"), STREAM)
    client.delete("/v1/images/3")
    add(client, ("a.png", picture(40)))
    assert ask(client, STREAM[0], camera="cam0").json()["adaptation_photos"] == 40  # edits leave the head
    client.__exit__(None, None, None)
    again = serve(opened(tmp_path / "own.tfa"))
    found = ask(again, picture(40, 0.8), camera="cam0").json()
    assert (found["adaptation_photos"], found["hits"][0]["id"]) == (41, 14)

"""The client against a real service in a thread, compared with the map itself."""

from __future__ import annotations

import inspect
import json
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import tfa
from tests.awkward_photos import KINDS, awkward_photo, forms_of
from tests.client.conftest import build_town, running_service
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tests.waiting import PATIENCE
from tfa.client import UPLOAD_BYTES, Client, ServiceError, batches
from tfa.core.plain import hints
from tfa.errors import BadSpec, TfaError
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.service.settings import ServiceSettings
from tfa.types import CalibrateOptions

API_KEY = "edit-me"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A client, the path of its map, and a folder for photos."""
    folder = tmp_path_factory.mktemp("client")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(folder / "cache"))
        path = build_town(folder)
        settings = ServiceSettings(port=0, read_api_key="read-me", edit_api_key=API_KEY)
        with running_service(path, settings) as (url, _), Client(url, API_KEY) as client:
            yield client, path, folder


def local(path):
    return PlaceMap.load(path, encoder=FakeEncoder())


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.id == other.id
        assert one.image == Path(other.image).name
        assert one.score == pytest.approx(other.score, abs=1e-5)
        assert (one.confidence, one.position, one.inliers) == (other.confidence, other.position, other.inliers)


def test_hits_are_those_of_the_map(served):
    client, path, folder = served
    dusk = photo(folder / "dusk.png", 5, light=0.8)
    for kind in KINDS:
        awkward = awkward_photo(kind, dusk, folder)
        expected = local(path).query(awkward, k=3, calibration="none")
        for given in forms_of(awkward).values():
            same(client.query(given, k=3, calibration="none"), expected)
    same(client.query(dusk, k=2, rerank=True), local(path).query(dusk, k=2, rerank=True))
    few = client.query(dusk, k=4, rerank=True, candidates=2)
    same(few, local(path).query(dusk, k=4, rerank=True, candidates=2))
    assert sum(hit.inliers is not None for hit in few) == 2
    assert client.query(photo(folder / "far.png", 99), min_confidence=1.0).hits == []


def test_many_photos_are_answered_in_order_and_bad_ones_reported(served):
    client, path, folder = served
    photos = [photo(folder / f"q{place}.png", place, light=0.8) for place in range(18)]
    (folder / "bad.png").write_bytes(b"no photo")
    photos[2:2] = [folder / "bad.png", folder / "missing.png"]
    ours, theirs = client.query_many(photos, k=2), local(path).query_many(photos, k=2)
    assert [answer.query for answer in ours] == [answer.query for answer in theirs]
    for one, other in zip(ours, theirs, strict=True):
        same(one.hits, other.hits)
        assert (one.error is None) == (other.error is None)
    assert "not a complete photo" in ours[2].error
    assert "missing.png cannot be read" in ours[3].error


def test_edits_return_what_the_map_returns(served):
    client, path, folder = served
    new, again = photo(folder / "new.png", 60), folder / "town" / "03.png"
    pixels = client.add(np.asarray(as_rgb(photo(folder / "pixels.png", 61))))
    assert client.images("photo.png")[0].id == pixels.added[0]
    assert client.remove(pixels.added).removed == pixels.added
    where = {"lat": 1.0, "lon": 2.0, "alt": 80.5, "heading": 270.0}
    report = client.add([new, again], positions=[where, None])
    assert isinstance(report, tfa.EditReport)
    assert len(report.added) == 1
    assert report.skipped == [("03.png", "already in the map as image 3")]
    record = client.images("new.png")[0]
    assert (record.id, record.path, record.fitted) == (report.added[0], "new.png", False)
    answers = [client.query(new, k=1), client.query_many([new], k=1)[0].hits, local(path).query(new, k=1)]
    assert [one[0].position.to_dict() for one in answers] == [where] * 3
    assert record.position.to_dict() == local(path).images[-1].position.to_dict() == where
    assert record.digest == local(path).images[-1].digest
    assert client.image(record.id, size=64).startswith(b"\xff\xd8")
    assert client.remove(report.added).removed == report.added
    assert client.info().images == len(client.images()) == len(local(path)) == 14
    assert client.maps()[0]["name"] == "town"


def test_a_calibration_is_waited_for(served):
    client, path, folder = served
    shown = []

    class Shown:
        def task(self, label, total, unit=""):
            shown.append(label)
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def advance(self, steps=1):
            shown.append(steps)

    photos = [photo(folder / f"c{place}.png", place, light=0.7) for place in range(9)]
    photos[3], photos[5] = photos[3].read_bytes(), np.asarray(as_rgb(photos[5]))
    report = client.calibrate(photos, "night", score=False, progress=Shown())
    assert isinstance(report, tfa.CalibrationReport)
    assert (report.name, report.used, report.photos) == ("night", 9, 9)
    assert shown[0] == "calibrating"
    assert sum(shown[1:]) == 100
    assert local(path).calibrations == ["night"]
    assert client.activate(None) is None
    assert client.activate("night") == "night"
    with pytest.raises(ServiceError, match="photos are in the map"):
        client.calibrate([folder / "town" / f"0{place}.png" for place in range(3)], "day")


def test_a_match_is_explained(served):
    client, _, folder = served
    dusk = photo(folder / "dusk.png", 5, light=0.8)
    hit = client.query(dusk, k=1, calibration="none", rerank=False)[0]
    why = client.explain(dusk, hit.id, calibration="none")
    assert sum(part["contribution"] for part in why["terms"]) == pytest.approx(why["score"], rel=1e-4)
    assert why["score"] == pytest.approx(hit.score, rel=1e-4)


def test_photos_of_a_camera_are_answered_as_the_map_answers_a_stream(served):
    client, path, folder = served
    photos = [photo(folder / f"s{place}.png", place, light=0.8) for place in range(14)]
    tracker = local(path).follow("none", k=3, sequence=False)
    for one in photos:
        same(client.query(one, k=3, calibration="none", camera="single"), tracker.step(one).hits)
    tracker = local(path).follow("none", k=3, sequence=False)
    for ours, one in zip(client.query_many(photos, k=3, calibration="none", camera="many"), photos, strict=True):
        theirs = tracker.step(one)
        same(ours.hits, theirs.hits)
        assert (ours.adaptation_photos, ours.lost, ours.query) == (theirs.adaptation_photos, None, theirs.query)
    assert [one["name"] for one in client.cameras()] == ["many", "single"]
    assert client.reset_camera("single") == ["single"]
    with pytest.raises(ServiceError, match="camera 'single' not found") as refusal:
        client.reset_camera("single")
    assert refusal.value.status == 404
    assert client.reset_camera() == ["many"]
    assert client.cameras() == []


def test_a_camera_is_followed_as_by_the_map(served):
    client, path, folder = served
    ours, theirs = client.follow("drive", "none", k=2), local(path).follow("none", k=2)
    for place in range(14):
        frame = photo(folder / f"f{place}.png", place, light=0.8)
        one, other = ours.step(frame), theirs.step(frame)
        same(one.hits, other.hits)
        assert (one.query, one.confidence, one.adaptation_photos) == (
            other.query,
            other.confidence,
            other.adaptation_photos,
        )
        assert one.lost == other.lost
    assert (ours.state["seen"], ours.state["sequence"]) == (14, True)
    assert "missing.png cannot be read" in ours.step(folder / "missing.png").error
    (folder / "bad.png").write_bytes(b"no photo")
    assert "not a complete photo" in ours.step(folder / "bad.png").error
    with pytest.raises(BadSpec, match="camera='a/b' is not allowed"):
        client.follow("a/b")
    ours.reset()
    with pytest.raises(ServiceError, match="camera 'drive' not found"):
        _ = ours.state


@pytest.mark.parametrize("name", ["query", "query_many", "follow", "calibrate", "info"])
def test_methods_take_what_those_of_the_map_take(name):
    ours = dict(inspect.signature(getattr(Client, name)).parameters)
    ours.pop("camera", None)  # only the owner of the map has a tracker
    theirs = inspect.signature(getattr(PlaceMap, name)).parameters
    if name == "calibrate":
        ours.pop("options")
        assert set(hints(CalibrateOptions)) <= set(theirs)
    for parameter in ours.values():
        assert (parameter.kind, parameter.default) == (theirs[parameter.name].kind, theirs[parameter.name].default)
    shared = [name for name in theirs if name in ours]
    assert shared == list(ours)  # in the same order


@pytest.mark.parametrize("wrong", [np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8), None, "no/file.jpg", b""])
def test_what_is_no_photo_is_refused_before_it_is_sent(wrong):
    client = Client("http://127.0.0.1:9")
    for ask in (client.query, client.add, client.calibrate, lambda photo: client.explain(photo, 3)):
        with pytest.raises(TfaError, match=r"a photo must be .*, got |pass the path of|pass the complete file"):
            ask(wrong)


def test_images_are_removed_from_the_revision_that_the_client_saw():
    sent = []

    class Recorded(Client):
        def _call(self, method, path, parameters=None, **body):
            sent.append((method, path, parameters))
            return {"removed": [int(path.rpartition("/")[2])], "revision": 4 + len(sent)}

    assert Recorded("http://127.0.0.1:9").remove([3, 8], revision=4).removed == [3, 8]
    Recorded("http://127.0.0.1:9").remove([9])
    assert [parameters for *_, parameters in sent] == [{"revision": 4}, {"revision": 5}, {}]


def test_refusals_come_with_their_sentence_and_status(served):
    client, _, _ = served
    with pytest.raises(ServiceError, match="API key missing") as refusal:
        Client(client.url).info()
    assert refusal.value.status == 401
    with pytest.raises(ServiceError, match="the read API key may not edit"):
        Client(client.url, "read-me").remove([3])
    with pytest.raises(ServiceError, match="map 'forest' not found"):
        Client(client.url, API_KEY, map="forest").info()
    with pytest.raises(ServiceError, match="image 99 not found"):
        client.image(99)
    with pytest.raises(ServiceError, match="is tfa serve running there") as silence:
        Client("http://127.0.0.1:9", timeout=2).info()
    assert silence.value.status is None


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "//etc/passwd",
     "/../../etc/passwd", "/v1/images/../map.json", "/v1/images/..%2f..%2fmap.json/file", "/v1/images/3/file/../x"],
)  # fmt: skip
def test_no_path_leaves_the_page_or_the_map(served, path):
    """As sent: other clients tidy a path before they send it."""
    address = urlsplit(served[0].url)
    connection = HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
    connection.request("GET", path, headers={"Authorization": f"Bearer {API_KEY}"})
    answer = connection.getresponse()
    assert (answer.status, list(json.loads(answer.read()))) in [(404, ["error"]), (405, ["error"]), (422, ["error"])]
    connection.close()


def test_the_client_is_light_and_keeps_its_token_to_itself():
    with pytest.raises(BadSpec, match="not a service URL"):
        tfa.Client("localhost:8000")
    assert tfa.Client is Client
    assert repr(Client("http://localhost:8000/", "secret")) == "<Client of the first map at http://localhost:8000>"
    assert repr(Client("http://localhost:8000/", map="town")) == "<Client of town at http://localhost:8000, no API key>"
    assert Client("http://localhost:8000/").url == "http://localhost:8000"


def test_photos_are_sent_in_pieces():
    assert [len(piece) for piece in batches([b"x"] * 40)] == [16, 16, 8]
    large = bytes(UPLOAD_BYTES // 2 + 1)
    assert [len(piece) for piece in batches([large, large, b"x"])] == [1, 2]
    assert list(batches([])) == []


def test_a_file_name_does_not_break_the_form(served):
    client, path, folder = served
    strange = folder / 'a"\r\nb.png'
    strange.write_bytes(photo(folder / "plain.png", 5, light=0.8).read_bytes())
    hits = client.query(strange, k=3, calibration="none")
    same(hits, local(path).query(strange, k=3, calibration="none"))
    assert len(hits) == 3

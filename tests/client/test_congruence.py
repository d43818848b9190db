"""One script through a map on this disk and through a client of a real service: equal answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.client.conftest import build_town, running_service
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.client.client import Client
from tfa.maps import PlaceMap
from tfa.service.settings import ServiceSettings

OF_THE_SERVICE = {
    "recent",
    "editable",
    "calibration_details",
    "active_calibration",
    "placed_images",
    "rules",
}  # beside those of a map
OF_THE_DISK = {"path", "photos"}  # which a service keeps to itself


def shown(hits):
    """What an answer says, by file names: a service keeps its folders to itself."""
    return [(hit.id, Path(hit.image).name, pytest.approx(hit.score, abs=1e-5), hit.confidence, hit.sure, hit.inliers,
             hit.position) for hit in hits]  # fmt: skip


def script(place_map, folder):
    """Queries, additions, removals and calibrations, with everything they answer."""
    dusk = [photo(folder / f"dusk{place}.png", place, light=0.8) for place in range(4)]
    (folder / "broken.png").write_bytes(b"no photo")
    camera = [photo(folder / f"camera{place}.png", place, light=0.7) for place in range(9)]
    new = [photo(folder / "@7@8@.png", 40), photo(folder / "plain.png", 41)]
    yield "query", shown(place_map.query(dusk[0], k=4))
    yield "verified", shown(place_map.query(dusk[1], 3, rerank=True, candidates=2))
    fused = place_map.query(dusk[1], 3, rerank=True)
    yield "place", (fused.place, fused.place_missing)
    yield "unsure", shown(place_map.query(photo(folder / "far.png", 99), min_confidence=1.0))
    many = place_map.query_many([*dusk, folder / "broken.png"], k=2, rerank=False)
    yield "many", [(answer.query, shown(answer.hits), answer.confidence, answer.error is None) for answer in many]
    added = place_map.add(new)
    yield "add", (added.added, added.removed, added.skipped, added.notes)
    yield "places", [record.position for record in images(place_map) if record.id in added.added]
    removed = place_map.remove([3, added.added[1]])
    yield "remove", (removed.added, removed.removed, removed.skipped, removed.notes)
    yield "images", [(one.id, Path(one.path).name, one.digest, one.fitted) for one in images(place_map)]
    report = place_map.calibrate(camera, "night", score=False)
    yield "calibrate", (report.name, report.used, report.photos, report.skipped, report.notes, report.decisions)
    yield "calibrated", shown(place_map.query(dusk[0], k=4))
    yield "activate", (place_map.activate(None), shown(place_map.query(dusk[0], k=4)))
    yield "by name", shown(place_map.query(dusk[0], k=4, calibration="night"))
    yield "drop", (place_map.drop_calibration("night"), shown(place_map.query(new[0], k=2)))


def images(place_map):
    return place_map.images() if isinstance(place_map, Client) else place_map.images


@pytest.mark.slow
def test_a_client_answers_as_the_map_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    path = build_town(tmp_path)
    local = PlaceMap.load(shutil.copytree(path, tmp_path / "copy" / "town.tfa"), encoder=FakeEncoder())
    expected = list(script(local, tmp_path / "photos"))
    with running_service(path, ServiceSettings(port=0)) as (url, _), Client(url) as client:
        # Edits one by one: `remove` of a client is one edit each, and says how it stands after the last.
        for (step, answer), (_, wanted) in zip(script(client, tmp_path / "photos"), expected, strict=True):
            assert answer == wanted, step
        info, own = client.info(), local.info().to_dict()
    assert set(info) - OF_THE_SERVICE == set(own) - OF_THE_DISK
    same = set(own) - OF_THE_DISK - {"revision", "encoder", "bytes", "calibrations", "positions"}
    assert {key: info[key] for key in same} == {key: own[key] for key in same}
    assert (info["calibrations"], info["placed_images"]) == (local.calibrations, own["positions"])

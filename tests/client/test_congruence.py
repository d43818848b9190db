"""One script through a map on this disk and through a client of a real service: equal answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.conftest import build_town, running_service
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.client import Client
from tfa.maps import PlaceMap
from tfa.service.settings import ServiceSettings
from tfa.types import MapInfo

OF_A_SERVICE = ("editable", "recent", "rules")  # null in a map on this disk


def shorten(value):
    """The value with names instead of paths: a service does not tell its folders."""
    return replace(
        value, **{name: Path(getattr(value, name)).name for name in ("path", "image") if hasattr(value, name)}
    )


def shown(answer):
    """What an answer says: all of it but how long it took, and addresses of photos."""
    hits = [replace(shorten(hit), score=pytest.approx(hit.score, abs=1e-5), image_url=None) for hit in answer.hits]
    return replace(answer, hits=hits, seconds=None)


def listed(records):
    return [replace(shorten(one), image_url=None, last_confirmed=None) for one in records]


def script(place_map, folder):
    """Queries, additions, removals and calibrations, with everything they answer."""
    dusk = [photo(folder / f"dusk{place}.png", place, light=0.8) for place in range(4)]
    (folder / "broken.png").write_bytes(b"no photo")
    camera = [photo(folder / f"camera{place}.png", place, light=0.7) for place in range(9)]
    new = [photo(folder / "@7@8@.png", 40), photo(folder / "plain.png", 41)]
    yield "query", shown(place_map.query(dusk[0], k=4))
    yield "reranked", shown(place_map.query(dusk[1], 3, rerank=True, candidates=2))
    yield "place", shown(place_map.query(dusk[1], 3, rerank=True))
    yield "sure", shown(place_map.query(photo(folder / "far.png", 99), sure=True))
    yield "unsure", shown(place_map.query(photo(folder / "far.png", 99), min_confidence=1.0))
    many = place_map.query_many([*dusk, folder / "broken.png"], k=2, rerank=False)
    yield "many", [replace(shown(answer), error=answer.error is None) for answer in many]
    yield "expected recall", many.expected_recall
    added = place_map.add(new, session="Monday, 5 May")
    yield "add", replace(added, revision=None)
    chosen = place_map.query_many(dusk, k=2, sessions=("Monday, 5 May",), region=(0.0, 0.0, 10.0, 10.0))
    yield "chosen", [shown(answer) for answer in chosen]
    yield "places", [record.position for record in images(place_map) if record.id in added.added]
    for image_id in (3, added.added[1]):  # a client removes images one by one
        yield "remove", replace(place_map.remove([image_id]), revision=None)
    yield "images", listed(images(place_map))
    report = place_map.calibrate(camera, "night", score=False)
    yield "calibrate", replace(report, revision=None, differences=None)
    yield "calibrated", shown(place_map.query(dusk[0], k=4))
    yield "described", describe(place_map)
    yield "activate", (place_map.activate(None), shown(place_map.query(dusk[0], k=4)))
    yield "by name", shown(place_map.query(dusk[0], k=4, calibration="night"))
    yield "drop", (place_map.drop_calibration("night"), shown(place_map.query(new[0], k=2)))


def describe(place_map):
    """What `info` says, without paths, on disk too, and without what only a service knows."""
    info = place_map.info()
    assert isinstance(info, MapInfo)
    encoder, only_there = replace(info.encoder, weights=None), dict.fromkeys(OF_A_SERVICE)
    return replace(info, path=None, photo_root=None, photos=[], bytes=0, encoder=encoder, **only_there)


def images(place_map):
    return place_map.images() if isinstance(place_map, Client) else place_map.images


@pytest.mark.slow
def test_a_client_answers_as_the_map_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    path = build_town(tmp_path)
    local = PlaceMap.load(shutil.copytree(path, tmp_path / "copy" / "town.tfa"), encoder=FakeEncoder())
    expected = list(script(local, tmp_path / "photos"))
    with running_service(path, ServiceSettings(port=0)) as (url, _), Client(url) as client:
        for (step, answer), (_, wanted) in zip(script(client, tmp_path / "photos"), expected, strict=True):
            assert answer == wanted, step
        info, alone = client.info(), local.info()
    assert all(getattr(info, name) is not None for name in OF_A_SERVICE)
    assert (info.name, info.path, info.photos) == ("town", "town.tfa", [])
    assert (info.calibrations, info.positions) == (alone.calibrations, alone.positions)

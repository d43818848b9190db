"""One script of edits, queries, filters and calibrations through a map in a folder, through a client of a real service
over a store, and through a map in a store: the same images, the same scores and confidence.

Scores are of the very same rows and products. Confidence differs by the rounding of reduced vectors in float32.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.client.conftest import serving
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import MEMORY, REAL, new_name, place_of
from tfa.client import Client
from tfa.maps import PlaceMap
from tfa.service.settings import ServiceSettings
from tfa.types import BuildOptions

PLACES, EXACT_DIMS = 24, 128  # more numbers than the compiled vectors of 24 images have: nothing is reduced away
FEW_DIMS, ROUNDED = 8, 0.005


def told_apart(kind, head):
    quick = (kind, head) == (MEMORY, "second-order")
    marks = () if quick else (pytest.mark.slow,) if kind == MEMORY else (pytest.mark.stores,)
    return pytest.param((kind, head), marks=marks, id=f"{kind}-{head}")


IN_MEMORY = [told_apart(MEMORY, head) for head in ("second-order",)]
EVERYWHERE = [*IN_MEMORY, *(told_apart(kind, "second-order") for kind in REAL)]


@pytest.fixture
def store_urls(request):
    """A URL for each way through, in one store."""
    place = place_of(request.getfixturevalue("kind_and_head")[0], request)
    return lambda: f"{place}/{new_name()}"


@pytest.fixture(params=IN_MEMORY)
def kind_and_head(request):
    return request.param


@pytest.fixture
def town(kind_and_head, tmp_path, monkeypatch):
    """A map of 24 places, one of them twice."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{2 * place}@.png", place)
    shutil.copy(tmp_path / "town" / "@4@8@.png", tmp_path / "town" / "@4@8@copy.png")
    built = PlaceMap.build(tmp_path / "town", head=kind_and_head[1], encoder=FakeEncoder(), spec=SPEC)
    built.save(tmp_path / "town.tfa")
    return built


def shown(hits):
    """What an answer says, by file names: a service keeps its folders to itself."""
    return [(hit.id, Path(hit.image).name, pytest.approx(hit.score, rel=1e-5, abs=1e-5),
             pytest.approx(hit.confidence, abs=1e-5), hit.sure, hit.inliers, hit.position)
            for hit in hits]  # fmt: skip


def script(place_map, folder):
    """Queries, filters, additions, removals and calibrations, with everything they answer."""
    dusk = [photo(folder / f"dusk{place}.png", place, light=0.8) for place in range(3)]
    camera = [photo(folder / f"camera{place}.png", place, light=0.7) for place in range(20)]
    new = [photo(folder / "@7@8@.png", 40), photo(folder / "@3@9@.png", 41), photo(folder / "plain.png", 42)]
    for number, one in enumerate(dusk):
        yield f"query {number}", shown(place_map.query(one, k=4))
    yield "all", shown(place_map.query(dusk[1], k=PLACES + 9))
    yield "plain", shown(place_map.query(dusk[0], k=4, rerank=False))
    yield "verified", shown(place_map.query(dusk[1], 3, rerank=True, candidates=5))
    yield "as many as pay", shown(place_map.query(dusk[2], 3, rerank=True, candidates="auto"))
    yield "region", shown(place_map.query(dusk[2], k=4, region=(4, 0, 12, 20)))
    yield "nowhere", shown(place_map.query(dusk[2], k=4, region=(900, 900, 901, 901)))
    many = place_map.query_many(dusk, k=2)
    yield "many", [(answer.query, shown(answer.hits), pytest.approx(answer.confidence, abs=1e-5)) for answer in many]
    yield "add", place_map.add(new).added
    yield "with them", shown(place_map.query(photo(folder / "n.png", 40, light=0.9), k=3))
    yield "one at night", place_map.add([photo(folder / "@9@9@.png", 43)], session="night, rain").added
    yield "of the night", shown(place_map.query(dusk[0], k=4, sessions=("night, rain",)))
    chosen = place_map.query_many(dusk, k=4, sessions=("noon", "night, rain"), region=(0, 0, 10, 10))
    yield "many of the night", [shown(answer.hits) for answer in chosen]
    yield "sessions", [record.session for record in images(place_map)]
    yield "day again", place_map.remove([28]).removed
    yield "remove", place_map.remove([2, 26]).removed
    yield "without", shown(place_map.query(dusk[2], k=5))
    yield "size", len(images(place_map))
    for score in (False, True):
        report = place_map.calibrate(camera, "night", score=score)
        yield "calibrate", (report.name, report.used, report.decisions)
        yield "recall", pytest.approx(report.expected_recall.share, abs=1e-5)
        info = place_map.info()
        yield "described", (info.positions, [(one.name, one.active, one.decisions) for one in info.calibrations])
        yield "calibrated", [shown(place_map.query(one, k=4)) for one in dusk]
    yield "without it", (place_map.activate(None), [shown(place_map.query(one, k=4)) for one in dusk])
    yield "by name", shown(place_map.query(dusk[0], k=4, calibration="night"))
    yield "add again", place_map.add([photo(folder / "@1@1@.png", 50)]).added
    yield "activate", (place_map.activate("night"), shown(place_map.query(dusk[2], k=6)))
    yield "drop", (place_map.drop_calibration("night"), shown(place_map.query(new[0], k=2)))


def images(place_map):
    return place_map.images() if isinstance(place_map, Client) else place_map.images


@pytest.mark.parametrize("kind_and_head", EVERYWHERE, indirect=True)
def test_a_map_in_a_store_and_its_service_answer_as_one_in_a_folder(town, store_urls, tmp_path):
    inside = town.publish(store_urls(), dims=EXACT_DIMS)
    served = town.publish(store_urls(), dims=EXACT_DIMS)
    with ExitStack() as stack:
        url, _ = stack.enter_context(serving([served], ServiceSettings(port=0)))
        client = stack.enter_context(Client(url))
        ways = [script(one, tmp_path / "photos") for one in (town, inside, client)]
        for (step, expected), (_, ours), (_, over_http) in zip(*ways, strict=True):
            assert ours == expected, step
            assert over_http == expected, f"{step}, over HTTP"


def test_fewer_numbers_give_the_same_first_answers_with_the_same_scores(town, store_urls, tmp_path):
    small = town.publish(store_urls(), dims=12)
    for place in range(8):
        dusk = photo(tmp_path / "photos" / f"dusk{place}.png", place, light=0.8)
        expected, found = town.query(dusk, k=5), small.query(dusk, k=5)
        assert [hit.id for hit in found] == [hit.id for hit in expected]  # 25 images: all are scored again
        assert [hit.score for hit in found] == [hit.score for hit in expected]


def test_copies_of_a_photo_tie_and_the_first_of_them_wins(town, store_urls):
    inside = town.publish(store_urls(), dims=EXACT_DIMS)
    [first, second] = [record.id for record in town.images if "@4@8@" in record.path]
    hits = inside.query(town.images[first].path, k=2)
    assert [hit.id for hit in hits] == [first, second]
    assert hits[0].score == hits[1].score


def test_a_map_in_a_folder_of_as_few_numbers_answers_the_same(tmp_path, monkeypatch, request):
    """Ids and scores are equal. Confidence is not quite: a folder takes mean and spread of all scores from vectors
    rounded to eight bits, a store from vectors in float32; 0.002 apart at most is what is seen with 4 to 64."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{2 * place}@.png", place)
    town = PlaceMap.build(
        tmp_path / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(head="second-order", dims=FEW_DIMS)
    )
    inside = town.publish(f"{place_of(MEMORY, request)}/town", dims=FEW_DIMS)
    asked = [photo(tmp_path / "photos" / f"dusk{place}.png", place, light=0.8) for place in range(PLACES)]
    for expected, found in zip(town.query_many(asked, k=5), inside.query_many(asked, k=5), strict=True):
        assert [(hit.id, hit.score) for hit in found.hits] == [(hit.id, hit.score) for hit in expected.hits]
        assert [hit.confidence for hit in found.hits] == pytest.approx(
            [hit.confidence for hit in expected.hits], abs=ROUNDED
        )

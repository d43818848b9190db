"""A second-order map in the service: info, answers and adaptation without the map photos."""

import shutil

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.service.conftest import opened
from tests.waiting import wait_until
from tfa.maps import PlaceMap

pytestmark = pytest.mark.slow


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(14):
        photo(tmp_path / "town" / f"{place:02d}.png", place)
        photo(tmp_path / "camera" / f"{place:02d}.png", place, light=0.7)
    PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC).save(tmp_path / "town.tfa")
    shutil.rmtree(tmp_path / "town")
    shutil.rmtree(tmp_path / "cache")
    return tmp_path


def test_a_second_order_map_is_told_queried_and_calibrated(serve, town):
    client = serve(opened(town / "town.tfa"))
    facts = client.get("/v1/map").json()
    assert facts["head"] == "second-order"
    assert facts["reasons"]["carrier"] == "default: two thirds plain scores, one third whitened scores"
    assert {"representation", "carrier", "centring", "score_calibrated"} <= set(facts["decisions"])
    with open(town / "camera" / "05.png", "rb") as file:
        answer = client.post("/v1/query", files={"image": ("05.png", file, "image/png")}).json()
    assert answer["hits"][0]["id"] == 5

    files = [("images", (path.name, path.read_bytes(), "image/png")) for path in sorted((town / "camera").iterdir())]
    job = client.post("/v1/calibrations", files=files, data={"name": "night"}).json()["job"]
    wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] in ("done", "failed"))
    done = client.get(f"/v1/jobs/{job}").json()
    assert done["state"] == "done", done
    assert done["result"]["differences"][-2:] == ["queries are centered on the photos", "scores are calibrated"]
    assert client.get("/v1/map").json()["answers"]["calibration"] == "night"

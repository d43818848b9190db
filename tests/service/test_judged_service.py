"""A judged map behind the service: what it tells, answers and learns, without the map's photos."""

import shutil

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.service.conftest import opened, wait_until
from tfa.maps import PlaceMap

pytestmark = pytest.mark.slow


@pytest.fixture
def judged(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(14):
        photo(tmp_path / "town" / f"{place:02d}.png", place)
        photo(tmp_path / "camera" / f"{place:02d}.png", place, light=0.7)
    PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC).save(tmp_path / "judged.tfa")
    shutil.rmtree(tmp_path / "town")
    shutil.rmtree(tmp_path / "cache")
    return tmp_path


def test_a_judged_map_is_told_queried_and_calibrated(serve, judged):
    client = serve(opened(judged / "judged.tfa"))
    facts = client.get("/v1/map").json()
    assert facts["head"] == "judged"
    assert "evidence with 14 photos" in facts["reasons"]["judge"]
    assert {"representation", "carrier", "centring", "score_calibrated"} <= set(facts["decisions"])
    evidence = client.get("/v1/evidence").json()
    [chosen] = [one for one in evidence["candidates"] if one["chosen"]]
    assert chosen["name"] == f"{facts['decisions']['representation']}/{facts['decisions']['carrier']}"
    assert {"value", "error", "difference"} <= set(chosen)
    with open(judged / "camera" / "05.png", "rb") as file:
        answer = client.post("/v1/query", files={"image": ("05.png", file, "image/png")}).json()
    assert answer["hits"][0]["id"] == 5

    files = [("images", (path.name, path.read_bytes(), "image/png")) for path in sorted((judged / "camera").iterdir())]
    job = client.post("/v1/calibrations", files=files, data={"name": "night"}).json()["job"]
    wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] in ("done", "failed"))
    done = client.get(f"/v1/jobs/{job}").json()
    assert done["state"] == "done", done
    assert done["result"]["differences"][-2:] == ["queries are centred on the photos", "scores are calibrated"]
    assert client.get("/v1/map").json()["answers"]["calibration"] == "night"

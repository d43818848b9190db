"""Status routes of the service, and its errors."""

from __future__ import annotations

import json
import re
import shutil
import threading

import pytest
from fastapi.testclient import TestClient

from tests.fakes import FakeEncoder
from tests.service.conftest import add, ask, opened, picture
from tests.waiting import PATIENCE, wait_until
from tfa.cli.serve import open_maps
from tfa.core.plain import hints
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps import map as map_module
from tfa.maps.storage import MemoryStorage
from tfa.search.store import MapLocation
from tfa.service import query_queue, server
from tfa.service.app import create_app
from tfa.service.middleware import Metrics, request_log
from tfa.types import EncoderOptions, QueryOptions

ROUTES = {
    ("get", "/healthz"), ("get", "/readyz"), ("get", "/metrics"), ("get", "/v1/maps"), ("get", "/v1/map"),
    ("get", "/v1/report"), ("get", "/v1/positions"), ("post", "/v1/query"),
    ("post", "/v1/query/batch"),
    ("post", "/v1/explain"), ("get", "/v1/images"), ("post", "/v1/images"), ("get", "/v1/images/{id}/file"),
    ("delete", "/v1/images/{id}"), ("post", "/v1/calibrations"), ("post", "/v1/calibrations/active"),
    ("delete", "/v1/calibrations/{name}"),
    ("get", "/v1/jobs/{id}"), ("get", "/v1/cameras"), ("delete", "/v1/cameras"),
    ("get", "/v1/cameras/{name}"), ("delete", "/v1/cameras/{name}"),
}  # fmt: skip


def test_openapi_lists_and_describes_every_route(client):
    described = client.get("/openapi.json").json()
    operations = {(method, path): told for path, group in described["paths"].items() for method, told in group.items()}
    assert set(operations) == ROUTES
    assert all(told["description"] for told in operations.values())
    query = operations["post", "/v1/query"]
    assert query["security"] == [{"HTTPBearer": []}]
    content = query["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    for kind in content.values():
        assert set(kind["schema"]["properties"]) == {"image", *hints(QueryOptions)}
    for schema in described["components"]["schemas"].values():
        assert schema["type"] == "object" or "enum" in schema or "items" in schema


def test_the_map_is_told_without_paths_of_the_server(client, town):
    facts = client.get("/v1/map").json()
    info = opened(town).info()
    assert facts["decisions"] == json.loads(json.dumps(info.decisions))
    assert (facts["name"], facts["revision"], facts["images"]) == ("town", 1, 14)
    assert (facts["calibrations"], facts["answers"]["calibration"], facts["positions"]) == ([], None, 0)
    assert str(town.parent) not in json.dumps(facts)
    assert facts["photos"] == []
    listed = client.get("/v1/images", params={"filter": "0"}).text
    assert "town/" not in listed


def test_images_are_listed_by_pages_and_filtered(client):
    page = client.get("/v1/images", params={"offset": 4, "limit": 2}).json()
    assert (page["total"], page["revision"]) == (14, 1)
    assert [image["id"] for image in page["images"]] == [4, 5]
    assert page["images"][0] == {
        "id": 4, "path": "04.png", "digest": page["images"][0]["digest"], "fitted": True,
        "session": None, "position": None,
        "image_url": "v1/images/4/file?map=town",
    }  # fmt: skip
    assert [one["id"] for one in client.get("/v1/images", params={"filter": "1.PNG"}).json()["images"]] == [1, 11]
    assert client.get("/v1/images", params={"limit": 5000}).status_code == 422
    assert client.get("/v1/images", params={"offset": 99}).json()["images"] == []


def test_a_photo_of_the_map_is_given_as_a_small_jpeg(client, built):
    from io import BytesIO

    from PIL import Image

    answer = client.get("/v1/images/3/file", params={"size": 32})
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(BytesIO(answer.content)) as image:
        assert image.size == (32, 24)
        assert not image.getexif()
    assert client.get("/v1/images/3/file", params={"size": 32}).content == answer.content
    kept = {"If-None-Match": answer.headers["etag"]}  # a browser that keeps it asks whether it is still right
    assert client.get("/v1/images/3/file", params={"size": 32}, headers=kept).status_code == 304
    assert client.get("/v1/images/4/file", params={"size": 32}, headers=kept).status_code == 200
    assert client.get("/v1/images/3/file", params={"size": 9}).status_code == 422


def test_only_the_photos_of_the_map_are_given(client, town):
    for path in ("..%2f..%2fetc%2fpasswd", "../../map.json", "%2e%2e/file", "-1/file", "99/file", "map.json/file"):
        answer = client.get(f"/v1/images/{path}")
        assert answer.status_code in (404, 405, 422)
    assert client.get("/static/../app.py").status_code == 404
    assert client.get("/static/%2e%2e/app.py").status_code == 404
    add(client, ("a.png", picture(40)))
    stored = next((town / "photos").rglob("*.png"))
    stored.write_bytes(picture(41))  # another photo lies there now
    answer = client.get("/v1/images/14/file")
    assert answer.status_code == 404
    assert "not found where it was added from" in answer.json()["error"]


def test_an_uploaded_photo_moves_with_its_map(serve, town):
    add(serve(), ("a.png", picture(40)))
    moved = town.rename(town.with_name("moved.tfa"))
    assert serve(opened(moved)).get("/v1/images/14/file").status_code == 200


def test_metrics_count_requests_batches_and_sizes(client):
    ask(client, picture(5))
    add(client, ("a.png", picture(40)))
    client.get("/v1/images/3/file")
    client.get("/nowhere")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'tfa_requests_total{method="POST",route="/v1/query",status="200"} 1.0',
        'tfa_requests_total{method="GET",route="/v1/images/{id}/file",status="200"} 1.0',
        'tfa_requests_total{method="GET",route="other",status="404"} 1.0',
        'tfa_request_seconds_count{route="/v1/query"} 1.0',
        'tfa_request_seconds_bucket{le="+Inf",route="/v1/query"} 1.0',
        'tfa_edits_total{kind="add",map="town"} 1.0',
        'tfa_batches_total{map="town"} 1.0',
        'tfa_queue_length{map="town"} 0.0',
        'tfa_map_images{map="town"} 15.0',
        'tfa_map_revision{map="town"} 2.0',
        'tfa_jobs{state="running"} 0.0',
        "# TYPE tfa_request_seconds histogram",
    ):
        assert line in answer.text.splitlines()


def test_buckets_add_up():
    metrics = Metrics()
    for seconds in (0.001, 0.02, 0.02, 99):
        metrics.seconds.labels('a"b').observe(seconds)
    counts = dict(re.findall(r'le="(\S+?)",\S+ (\d+)', metrics.text()))
    assert [counts[bound] for bound in ("0.005", "0.01", "0.025", "30.0", "+Inf")] == ["1", "1", "3", "3", "4"]
    assert 'route="a\\"b"' in metrics.text()


def test_until_the_encoder_has_run_the_service_is_not_ready(town):
    gate = threading.Event()

    class Slow(FakeEncoder):
        def encode(self, images):
            assert gate.wait(PATIENCE)
            return super().encode(images)

    with TestClient(create_app([opened(town, Slow())]), base_url="http://localhost") as client:
        loading = client.get("/readyz")
        refused = ask(client, picture(5))
        assert client.get("/healthz").status_code == 200
        gate.set()
    assert (loading.status_code, loading.json()) == (503, {"status": "loading"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"


def test_a_defect_tells_no_trace(serve, monkeypatch):
    client = serve(raises=False)

    def broken(self):
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(PlaceMap, "info", broken)
    answer = client.get("/v1/map")
    assert answer.status_code == 500
    assert answer.json()["error"].startswith("internal error")
    assert "secret" not in answer.text


def test_an_unknown_place_is_told_in_json(client):
    for method, path, status in (("GET", "/nowhere", 404), ("PUT", "/v1/query", 405)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert "/openapi.json lists all routes" in answer.json()["error"]


def test_maps_must_be_saved_and_have_names_of_their_own(town, tmp_path):
    with pytest.raises(BadMap, match="two maps are named 'town'"):
        create_app([opened(town), opened(town)])
    with pytest.raises(BadMap, match="cannot serve an unsaved map"):
        create_app([PlaceMap(MemoryStorage(opened(town).state), encoder=FakeEncoder())])
    with pytest.raises(BadMap, match="no map to serve"):
        create_app([])


def test_an_encoder_that_does_not_run_leaves_the_service_unready(town, caplog):
    with TestClient(create_app([opened(town, FakeEncoder(fail_after=0))]), base_url="http://localhost") as client:
        pass
    assert client.app.state.service.status != "ready"
    assert "the machine gave up" in caplog.text


def test_maps_of_one_encoder_share_it(town, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append((name, options))
        return FakeEncoder()

    monkeypatch.setattr(map_module, "load_encoder", load)
    other = shutil.copytree(town, town.with_name("forest.tfa"))
    one, two = open_maps([MapLocation(str(town)), MapLocation(str(other))], EncoderOptions(threads=2))
    assert one.encoder is two.encoder
    assert [name for name, _ in loaded] == ["fake@28"]
    assert loaded[0][1]["threads"] == 2
    service = create_app([one, two]).state.service
    assert service.maps["town"].encoder is service.maps["forest"].encoder
    service.close()


def test_a_service_whose_query_thread_fails_says_so_and_goes_on(serve, town, monkeypatch):
    monkeypatch.setattr(query_queue, "FAILED_SECONDS", PATIENCE)

    class Ending(FakeEncoder):
        ends = True

        def encode(self, images):
            if self.encoded and self.ends:  # after the warm-up
                raise SystemExit
            return super().encode(images)

    encoder = Ending()
    client = serve(opened(town, encoder))
    refused = ask(client, picture(5))
    assert refused.status_code == 503
    assert "the service failed on this query" in refused.json()["error"]
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"status": "failed"})
    encoder.ends = False
    assert ask(client, picture(5), k=1).json()["hits"][0]["id"] == 5
    wait_until(lambda: client.get("/readyz").json() == {"status": "ready"})


def test_a_long_sum_of_seconds_keeps_its_resolution():
    metrics = Metrics()
    metrics.seconds.labels("/v1/query").observe(123456.75)
    metrics.seconds.labels("/v1/query").observe(0.0625)
    assert 'tfa_request_seconds_sum{route="/v1/query"} 123456.8125' in metrics.text().splitlines()


def test_errors_name_no_folder_of_the_server(client, town):
    header = town / "map.json"
    header.write_text(header.read_text().replace('"revision"', '"revisiom"'))
    refused = client.delete("/v1/images/3")
    assert refused.status_code == 409
    assert refused.json()["error"].startswith("town.tfa/map.json was edited or damaged")
    assert str(town.parent) not in refused.text


def test_requests_are_logged_without_secrets(serve, caplog):
    client = serve(read_api_key="s3cret")
    with caplog.at_level("INFO", "tfa.requests"):
        client.get("/v1/map?api_key=s3cret", headers={"Authorization": "Bearer s3cret"})
        client.get("/no%0Asuch")
    lines = [record.getMessage() for record in caplog.records if record.name == "tfa.requests"]
    assert [line.rsplit(" ", 2)[0] for line in lines] == ["GET /v1/map 200", "GET /no\\nsuch 404"]
    assert all(re.fullmatch(r".* \d+ ms", line) for line in lines)
    assert "s3cret" not in "".join(lines)


def test_the_log_of_requests_is_a_line_on_standard_error(client, monkeypatch, capsys):
    monkeypatch.setattr(server.BoundedServer, "run", lambda _server, **_given: None)
    for name in ("handlers", "level"):
        monkeypatch.setattr(request_log, name, getattr(request_log, name))
    server.run_server(client.app, None, log_requests=True)
    client.get("/healthz")
    captured = capsys.readouterr()
    assert re.fullmatch(r"GET /healthz 200 \d+ ms\n", captured.err)
    assert captured.out == ""

"""Looks for a made-up change in a copy of the package: `python -m tests.architecture.changed_copy CHANGE COPY WORK`.

The process imports the copy: its folders come first on PYTHONPATH. Nothing else of the repository may know the change.
"""

from __future__ import annotations

import csv
import json
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import tfa
import tfa.encoders
import tfa.maps.map
from tests.fakes import FakeEncoder, random_image
from tests.maps.conftest import photo
from tfa._http import Reply
from tfa.cli.app import app

GOLDEN = Path(__file__).parents[1] / "golden" / "second_order"  # a saved map
PLACES = 12
PLACE = 5  # of the query photo


def run(*words: object) -> str:
    """Run a command and return what it prints."""
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="tfa")
    assert done.exit_code == 0, done.output
    return done.stdout


def refuse(*words: object) -> str:
    """Run a command that is refused, and return why, in one line."""
    done = CliRunner().invoke(app, [str(word) for word in words], prog_name="tfa")
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def build(work: Path, out: object, *options: object) -> Path:
    """Build a map of made-up photos; returns a photo of one of its places."""
    for module in (tfa.encoders, tfa.maps.map):
        module.load_encoder = lambda *_, **__: FakeEncoder()  # type: ignore[attr-defined]
    for place in range(PLACES):
        photo(work / "photos" / f"{place:02d}.png", place)
    run("build", work / "photos", "--out", out, *options)
    return photo(work / "query.png", PLACE, light=0.8)


@contextmanager
def serve(town: Path) -> Iterator[Any]:
    """A service of the map, in this process."""
    from fastapi.testclient import TestClient

    from tests.waiting import PATIENCE, wait_until
    from tfa.service.app import create_app
    from tfa.service.settings import ServiceSettings

    place_map = tfa.PlaceMap.load(town, encoder=FakeEncoder())
    with TestClient(create_app([place_map], ServiceSettings(decode_seconds=PATIENCE)), "http://localhost") as http:
        wait_until(lambda: http.get("/readyz").status_code == 200)
        yield http


def connect(http: Any) -> tfa.Client:
    """A client of that service, without a network."""

    class Connections:
        def request(self, method: str, path: str, body: bytes | None, headers: Any, _timeout: float) -> Reply:
            got = http.request(method, path, content=body, headers=headers)
            return Reply(got.status_code, got.reason_phrase, got.headers, got.content)

    client = tfa.Client("http://localhost")
    client._http = Connections()
    return client


# --- changes -------------------------------------------------------------------------------------------------------


def check_hit(copy: Path, work: Path) -> None:
    """`Hit.rank`: in JSON, its schema, CSV, OpenAPI, the client, and messages of ROS."""
    from tests import schemas
    from tests.exports.answers import test_recording
    from tests.ros import ros_types, test_package
    from tfa_ros.messages import match_fields

    query = build(work, work / "town.tfa")
    printed = json.loads(run("query", work / "town.tfa", query, "-k", 3, "--json", "--out", work / "answers.csv"))
    [answer] = printed["answers"]
    assert [hit["rank"] for hit in answer["hits"]] == [1, 2, 3]
    assert "rank" in json.loads(schemas.derived()["query"])["$defs"]["Hit"]["required"]
    assert schemas.fault("query", printed) is None
    with (work / "answers.csv").open(newline="", encoding="utf-8") as file:
        assert [row["rank"] for row in csv.DictReader(file)] == ["1"]
    with serve(work / "town.tfa") as http:
        described = http.get("/openapi.json").json()["components"]["schemas"]["Hit"]["properties"]["rank"]
        assert described["description"].startswith("Place of the hit")
        assert [hit.rank for hit in connect(http).query(query, k=2)] == [1, 2]  # type: ignore[attr-defined]
    ros_types.PACKAGE = copy / "ros" / "tfa_msgs"
    test_recording.MESSAGES = ros_types.PACKAGE / "msg"
    test_recording.test_our_definitions_are_those_of_the_ros_package()
    test_package.test_a_match_has_every_field_of_a_hit_but_these()
    types = ros_types.message_class("tfa_msgs/msg/Match").get_fields_and_field_types()
    assert [match_fields(hit, types)["rank"] for hit in answer["hits"]] == [1, 2, 3]


def check_option(copy: Path, work: Path) -> None:
    """`QueryOptions.skip`: on the command line, in forms, OpenAPI, the page, the client and Python."""
    query, town = build(work, work / "town.tfa"), work / "town.tfa"
    help_text = run("query", "--help")
    assert "--skip" in help_text
    assert "Leave out this many of the best hits." in help_text
    [plain] = json.loads(run("query", town, query, "--json"))["answers"]
    [skipped] = json.loads(run("query", town, query, "--skip", 1, "--json"))["answers"]
    assert skipped["hits"] == plain["hits"][1:]
    assert "between 0 and 9" in refuse("query", town, query, "--skip", 10)
    expected = [hit["id"] for hit in plain["hits"][1:]]
    assert [hit.id for hit in tfa.PlaceMap.load(town, encoder=FakeEncoder()).query(query, skip=1)] == expected
    with serve(town) as http:
        operation = http.get("/openapi.json").json()["paths"]["/v1/query"]["post"]
        for content in operation["requestBody"]["content"].values():
            described = content["schema"]["properties"]["skip"]
            assert (described["minimum"], described["maximum"], described["default"]) == (0, 9, 0)
        reply = http.post("/v1/query", files={"image": ("query.png", query.read_bytes())}, data={"skip": "1"})
        assert [hit["id"] for hit in reply.json()["hits"]] == expected
        assert [hit.id for hit in connect(http).query(query, skip=1)] == expected
        # The page makes its form of /openapi.json and names no option itself; tests/browser shows that it does.
        form, view = (http.get(f"/static/{name}").text for name in ("form.js", "recognize.js"))
        assert 'inputsOf(await call("openapi.json"), "/v1/query"' in view
        assert not [name for name in tfa.types.QueryOptions.__dataclass_fields__ if f'"{name}"' in form]


def check_store(copy: Path, work: Path) -> None:
    """`made-up://`: a store of another distribution holds a map and passes the suite of all stores."""
    import pytest

    project = tomllib.loads((copy / "made-up" / "pyproject.toml").read_text("utf-8"))["project"]
    install(work / "site", project)
    url = "made-up://here/town"
    query = build(work, url, "--dims", 16)
    [answer] = json.loads(run("query", url, query, "-k", 1, "--json"))["answers"]
    assert Path(answer["hits"][0]["image"]).name == f"{PLACE:02d}.png"
    suite = (
        "import pytest\nfrom tfa_bench.store_contract import StoreContract\n\n\n"
        "class TestMadeUp(StoreContract):\n    @pytest.fixture\n    def url(self):\n        return 'made-up://tests'\n"
    )
    (work / "test_made_up.py").write_text(suite, "utf-8")
    assert pytest.main(["-q", "-c", "/dev/null", "--rootdir", str(work), str(work / "test_made_up.py")]) == 0


def install(site: Path, project: dict[str, Any]) -> None:
    """Write the metadata that an installer makes of pyproject.toml."""
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(head, "utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups) + "\n", "utf-8")
    sys.path.insert(0, str(site))


def check_carrier(copy: Path, work: Path) -> None:
    """The carrier `slight`: an option, the formulas, a saved map, and a head of the benchmark."""
    from tests.method.test_second_order_head import NARROW, test_scores_equal_the_plain_formulas
    from tfa_bench.heads.catalogue import GROUPS, head_card

    town = work / "town.tfa"
    query = build(work, town, "--set", "map.carrier=slight")
    info = json.loads(run("info", town, "--json"))
    assert info["decisions"]["carrier"] == "slight"
    assert info["decisions"]["sigma_slight"]
    assert "plain and slightly whitened scores" in run("info", town, "--evidence")
    [answer] = json.loads(run("query", town, query, "-k", 1, "--json"))["answers"]
    assert Path(answer["hits"][0]["image"]).name == f"{PLACE:02d}.png"
    said = refuse("build", work / "photos", "--out", work / "new.tfa", "--set", "map.carrier=none")
    assert "slight" in said.partition("use ")[2]
    test_scores_equal_the_plain_formulas("slight", NARROW)
    older = json.loads(run("info", GOLDEN, "--json"))  # a map from before the carrier
    assert (older["decisions"]["carrier"], older["decisions"].get("sigma_slight")) == ("tempered", None)
    assert tfa.PlaceMap.load(GOLDEN).state.spaces is not None
    assert "second-slight" in GROUPS["carriers"]
    assert head_card("second-slight").title == "Second order, plain and slightly whitened scores"


def check_encoder(copy: Path, work: Path) -> None:
    """The family `made-up`: it is listed, and encodes as its twin of a known family, in floats and in integers."""
    import dataclasses

    from safetensors.torch import save_file

    from tests.encoders.tiny import random_weights
    from tfa.encoders.catalogue import CATALOGUE

    card = CATALOGUE["made-up-14"]
    CATALOGUE["twin-14"] = dataclasses.replace(card, name="twin-14", family="dinov2-reg")
    weights, images = random_weights(card), [random_image(seed) for seed in range(2)]
    save_file({f"made_up.{name}": tensor for name, tensor in weights.items()}, work / "made-up.safetensors")
    save_file(weights, work / "twin.safetensors")
    assert "made-up-14" in {one["name"] for one in json.loads(run("encoders", "--json"))}
    for precision in ("float32", "int8"):
        made_up = tfa.load_encoder("made-up-14", weights=work / "made-up.safetensors", precision=precision)
        twin = tfa.load_encoder("twin-14", weights=work / "twin.safetensors", precision=precision)
        assert made_up.fingerprint != twin.fingerprint
        for own, other in zip(made_up.encode(images), twin.encode(images), strict=True):
            assert own is not None
            assert np.isfinite(own).all()
            np.testing.assert_array_equal(own, other)


def check_layout(copy: Path, work: Path) -> None:
    """The layout `made_up`: its card is listed, and a dataset of it is checked and read."""
    from tests.benchmarks.datasets import test_cards
    from tfa_bench.datasets.load import load_dataset

    for place in range(PLACES):
        photo(work / "town" / f"d{place:02d}.png", place)
        photo(work / "town" / f"q{place:02d}.png", place, light=0.8)
    assert "made-up-town" in {one["name"] for one in json.loads(run("bench", "datasets", "--json"))}
    assert "made-up-town is whole" in run("bench", "check", "made-up-town", work / "town")
    dataset = load_dataset("made-up-town", work / "town")
    assert [row.tolist() for row in dataset.positives] == [[place] for place in range(PLACES)]
    test_cards.test_a_packaged_card_names_a_layout_that_takes_its_options("made-up-town")
    test_cards.test_a_layout_of_the_catalogue_has_a_loader("made_up")


def check_head(copy: Path, work: Path) -> None:
    """The head `made-up`: it is listed, in its group, and a run writes a record of it."""
    from tests.benchmarks.heads import test_catalogue
    from tests.cli.conftest import write_drive
    from tfa_bench.heads.catalogue import GROUPS
    from tfa_bench.records import Record, find_records

    tfa.encoders.load_encoder = lambda *_, **__: FakeEncoder()  # type: ignore[assignment]
    assert "Made up" in run("bench", "heads")
    assert "made-up" in GROUPS["peers"]
    test_catalogue.test_the_table_lists_every_card_of_every_module()
    drive = write_drive(work / "drive", PLACES)
    run("bench", "run", "--dataset", f"drive={drive}", "--heads", "made-up", "--out", work / "results")
    [record] = map(Record.read, find_records(work / "results"))
    assert (record.name, record.algorithm.keys()) == ("made-up", {"peers"})
    assert (record.rankings[:, 0, 0, 0] == np.arange(PLACES)).all()


CHECKS = {
    "hit": check_hit,
    "option": check_option,
    "store": check_store,
    "carrier": check_carrier,
    "encoder": check_encoder,
    "layout": check_layout,
    "head": check_head,
}

if __name__ == "__main__":
    change, copied, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    for package in (tfa, sys.modules.get("tfa_bench")):
        assert package is None or Path(str(package.__file__)).is_relative_to(copied), f"{package} is not the copy"
    CHECKS[change](copied, folder)

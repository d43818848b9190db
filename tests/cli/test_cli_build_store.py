"""`tfa build --out URL`: early validation, arguments and output."""

from __future__ import annotations

import json

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tests.maps.store.stores import REAL, new_name, place_of
from tests.servers import free_port
from tfa.maps import map as map_module
from tfa.maps.building import executors, passes
from tfa.maps.building.executors import SerialExecutor
from tfa.maps.store.header import read_store_header
from tfa.search.store import open_map_store

SHARDED = ("--set", "build.shard_size=5", "--set", "build.work=work")


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(passes, "load_encoder", lambda name, **options: FakeEncoder())
    passes._load_once.cache_clear()
    yield f"memory://{tmp_path.name.lower().replace('_', '-')}/town"
    passes._load_once.cache_clear()  # of the fake one


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "new.tfa", "--set", "build.ray=auto"], "build.ray is for a map in a store; pass its URL to --out"),
        (["--out", "new.tfa", "--set", "build.workers=3"], "build.workers is for a map in a store"),
        (["--out", "new.tfa", "--set", "build.shard_size=3"], "build.shard_size is for a map in a store"),
        (["--out", "postgre://x/town"], "did you mean postgres://?"),
        (
            ["--out", "memory://x/town", "--set", "build.ray=somewhere"],
            "use auto, local, ray://HOST:10001 or HOST:PORT",
        ),
        (["--out", "memory://x/town", "--head", "paper"], "--head paper needs a map in a folder"),
        (["--out", "memory://x/town", "--set", "map.storage=float16"], "map.storage=float16 needs a map in a folder"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(run, folder, options, said):
    result = run("build", "photos", *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_map_has_a_place(run, folder):
    result = run("build", "photos")
    assert result.exit_code == 2
    assert "missing --out; for example --out town.tfa" in " ".join(result.stderr.replace("│", " ").split())


def test_photos_are_looked_for_before_the_work(run, folder):
    assert "gone does not exist" in run("build", "gone", "--out", "memory://x/town").stderr
    assert "s3://b/x is only read for a map in a store" in run("build", "s3://b/x", "--out", "new.tfa").stderr


def test_a_map_is_built_in_a_store_and_reported(run, folder, url):
    result = run("build", "photos", "--out", url, "--dims", "16", *SHARDED)
    assert result.exit_code == 0, result.stderr
    told = " ".join(result.stdout.split())
    assert f"built {url} images: 14 in town__v1, 16 dimensions each" in told
    assert "built by 1 worker (serial): sample " in result.stderr
    assert read_store_header(*open_map_store(url), url)[0].count == 14


@pytest.mark.stores
@pytest.mark.parametrize("kind", REAL)
def test_photos_become_a_map_in_every_store_by_its_url(run, folder, url, kind, request, monkeypatch, tmp_path):
    monkeypatch.setattr(map_module, "load_encoder", lambda *_, **__: FakeEncoder())
    dusk, said = photo(tmp_path / "dusk.png", 5, light=0.8), []
    for place in (url, f"{place_of(kind, request)}/{new_name()}"):
        built = run("build", "photos", "--out", place, "--dims", "16", *SHARDED)
        assert built.exit_code == 0, built.stderr
        asked = run("query", place, dusk, "--json")
        assert asked.exit_code == 0, asked.stderr
        [answer] = json.loads(asked.stdout)["answers"]
        said.append([(hit["id"], hit["image"], hit["score"], hit["inliers"]) for hit in answer["hits"]])
        assert "images: 14 (" in run("info", place).stdout
    assert said[1] == said[0]
    assert said[0]


@pytest.mark.stores
@pytest.mark.parametrize("address", ["postgres://{}/postgres/town", "milvus://{}/town"])
def test_a_store_that_is_down_is_named_before_any_photo_is_encoded(run, folder, url, address, monkeypatch):
    monkeypatch.setattr(passes, "load_encoder", lambda *_, **__: pytest.fail("an encoder was loaded"))
    nobody = f"127.0.0.1:{free_port()}"
    result = run("build", "photos", "--out", address.format(nobody))
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert f"{nobody} does not " in said
    assert "start it" in said


class Chatty(SerialExecutor):
    """Prints while it computes and when it ends, as Ray does of a worker that was lost."""

    def map(self, work, items):
        print("(raylet) A worker died", flush=True)
        return super().map(work, items)

    def close(self):
        print("(raylet) said late")


def test_json_has_the_passes_and_what_was_skipped_and_nothing_that_others_print(run, folder, url, monkeypatch):
    monkeypatch.setattr(executors, "choose_executor", lambda *given: Chatty())
    result = run("build", "photos", "bad.jpg", "--out", url, "--skip-bad", "--json")
    facts = json.loads(result.stdout)
    assert result.stderr.count("(raylet)") == 3
    assert facts["images"] == 14
    assert facts["url"] == url
    assert [one["name"] for one in facts["passes"]] == ["sample", "fit", "vectors", "entries"]
    assert facts["passes"][0]["images"] == 14
    [skipped] = facts["skipped"]
    assert skipped["file"].endswith("bad.jpg")

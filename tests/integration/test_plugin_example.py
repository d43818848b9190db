"""The distribution of `examples/plugin`, installed and used: an encoder, a store, a head and a layout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.fakes import random_image
from tfa.cli.app import app
from tfa.core.plugins import load_plugin, plugin_names
from tfa.encoders import Encoder, list_plugin_encoders, load_encoder
from tfa.errors import BadPlugin, BadSpec, UnknownEncoder
from tfa.maps import PlaceMap
from tfa_bench.datasets.load import layout_names, load_layout
from tfa_bench.heads.catalogue import head_card, names
from tfa_bench.records import Record, find_records
from tfa_bench.store_contract import StoreContract

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
PLACES = 6


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder the example is installed into. Without an index: what it depends on is here already."""
    root = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, root / "source")  # a build writes beside what it builds
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(root / "target"), str(root / "source")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return root / "target"


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(installed)
    return installed


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A dataset in the layout of the example, with its card."""
    root = tmp_path / "pairs"
    for folder in ("before", "after"):
        (root / folder).mkdir(parents=True)
        for place in range(PLACES):
            random_image(place).save(root / folder / f"{place}.png")
    card = {"name": "my-pairs", "title": "My pairs", "layout": "example-pairs", "positives": "the same name"}
    card |= {"group": "Other", "citation": "none", "licence": "mine", "get": "these photos"}
    (root / "card.json").write_text(json.dumps(card))
    return root


def run(*args: object) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="tfa")
    assert done.exit_code == 0, done.output
    return done.stdout


def write_distribution(folder: Path, name: str, entries: dict[str, dict[str, str]]) -> None:
    """A distribution as an installer leaves it: metadata with entry points, and no code."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = ("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in own.items())]) for group, own in entries.items())
    (metadata / "entry_points.txt").write_text("\n".join(groups))


def test_a_benchmark_runs_with_an_encoder_a_head_and_a_layout_from_outside(plugin, pairs, tmp_path):
    out = tmp_path / "results"
    heads = "example-mean,mean"
    args = ("--dataset", f"my-pairs={pairs}", "--encoder", "example-colors@32", "--heads", heads, "--out", out)
    assert "my-pairs: example-mean written" in run("bench", "run", *args)
    records = {record.name: record for record in map(Record.read, find_records(out))}
    mine = records["example-mean"]
    assert (mine.rankings[:, 0, 0, 0] == np.arange(PLACES)).all()
    assert mine.encoder["id"] == "example-colors@32"
    assert mine.head["settings"] == {"revision": 1, "distribution": "tfa-example-plugin 0.1"}
    assert mine.algorithm.keys() == {"peers"}
    assert "my-pairs is whole" in run("bench", "check", "my-pairs", pairs)


def test_lists_name_what_is_brought(plugin, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "from tfa-example-plugin 0.1" in run("encoders")
    assert {"name": "example-colors", "distribution": "tfa-example-plugin 0.1"} in json.loads(run("encoders", "--json"))
    assert "example-mean" in run("bench", "heads")
    assert "example-mean" in names()
    assert "example-pairs" in layout_names()


def test_a_map_is_built_and_loaded_again_with_an_encoder_from_outside(plugin, pairs, tmp_path):
    encoder = load_encoder("example-colors")
    assert isinstance(encoder, Encoder)
    assert encoder.id == "example-colors@64"
    photos, target = sorted((pairs / "before").iterdir()), tmp_path / "map"
    PlaceMap.build(photos, head="paper", encoder=encoder).save(target)
    [answer] = PlaceMap.load(target).query_many([photos[3]], k=1)  # the map finds its encoder by the name it keeps
    assert answer.hits[0].image.endswith("before/3.png")


def test_a_map_is_built_in_a_store_from_outside(plugin, pairs):
    photos, url = sorted((pairs / "before").iterdir()), "example-dict://here/town"
    place_map = PlaceMap.build(photos, encoder=load_encoder("example-colors"), head="second-order")
    place_map.publish(url, dims=16)
    answers = json.loads(run("query", url, photos[1], "-k", "1", "--json"))
    assert answers["answers"][0]["hits"][0]["id"] == 1
    assert json.loads(run("info", url, "--json"))["store"]["count"] == PLACES


class TestExampleStore(StoreContract):
    """The store of the example passes the suite that all stores pass."""

    @pytest.fixture
    def url(self, plugin) -> str:
        return "example-dict://tests"


def test_what_is_not_installed_is_unknown(tmp_path):
    assert plugin_names("tfa.heads") == []
    assert list_plugin_encoders() == {}
    with pytest.raises(UnknownEncoder, match="example-colors"):
        load_encoder("example-colors")
    with pytest.raises(BadSpec, match="unknown head 'example-mean'"):
        head_card("example-mean")


def test_names_are_known_before_anything_is_imported(tmp_path, monkeypatch):
    write_distribution(tmp_path, "slow", {"tfa.layouts": {"far": "module_that_is_not_there"}})
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin_names("tfa.layouts") == ["far"]


def test_a_broken_distribution_is_named(tmp_path, monkeypatch):
    write_distribution(
        tmp_path, "broken", {"tfa.heads": {"torn": "torn_module:CARD"}, "tfa.layouts": {"odd": "json:dumps"}}
    )
    (tmp_path / "torn_module.py").write_text("raise RuntimeError('half written')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadPlugin, match=r"'torn' .tfa.heads. .* from broken 1\.0 .*RuntimeError: half written; update"):
        head_card("torn")
    with pytest.raises(BadPlugin, match=r"layout 'odd' of broken 1\.0 has no function load"):
        load_layout("odd")


@pytest.mark.parametrize(
    ("entry", "told"),
    [("json:loads", "must be a HeadCard of that name"), ("tfa_bench.heads.peers.pooled:CARDS", "must be a HeadCard")],
)
def test_a_head_that_is_no_head_is_refused(tmp_path, monkeypatch, entry, told):
    write_distribution(tmp_path, "wrong", {"tfa.heads": {"odd": entry}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadPlugin, match=told):
        head_card("odd")


def test_an_encoder_that_is_no_encoder_is_refused(plugin, tmp_path, monkeypatch):
    write_distribution(tmp_path, "wrong", {"tfa.encoders": {"odd": "builtins:dict", "name": "json:__name__"}})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadPlugin, match="must be a function"):
        load_encoder("name")
    with pytest.raises(BadSpec, match="no int8 form"):
        load_encoder("example-colors", precision="int8")


def test_a_name_is_brought_once(plugin, tmp_path, monkeypatch):
    write_distribution(
        tmp_path, "second", {"tfa.heads": {"example-mean": "json:loads"}, "tfa.layouts": {"folder": "json"}}
    )
    monkeypatch.syspath_prepend(tmp_path)
    both = "second 1.0 and tfa-example-plugin 0.1|tfa-example-plugin 0.1 and second 1.0"
    with pytest.raises(BadPlugin, match=f"({both}) both provide 'example-mean' .tfa.heads"):
        load_plugin("tfa.heads", "example-mean")
    with pytest.raises(BadPlugin, match=r"second 1\.0 and this package both provide 'folder'"):
        layout_names()

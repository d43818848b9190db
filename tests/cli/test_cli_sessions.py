"""`tfa merge`, `tfa prune`, and aged images in `tfa report`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PLACES
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC
from tfa.maps import PlaceMap
from tfa.maps.upkeep import Confirmed, make_image_key
from tfa.types import BuildOptions

DAY = 86_400


def test_merge(run, folder):
    kept = BuildOptions(head="paper", storage="float16", rerank=True)
    PlaceMap.build(folder / "camera", encoder=FakeEncoder(), spec=SPEC, map_spec=kept).save(folder / "dusk.tfa")
    refused = run("merge", "town.tfa", "dusk.tfa", "--out", "plain.tfa")
    assert refused.exit_code == 1
    assert "plain.tfa exists already" in refused.stderr
    result = run("merge", "calibrated.tfa", "dusk.tfa", "--out", "both.tfa", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["path"], told["images"]) == ("both.tfa", 2 * PLACES)
    assert [one["sessions"] for one in told["maps"]] == [["calibrated"], ["dusk"]]
    assert "calibrations day, night are dropped" in " ".join(told["notes"])
    shared = told["maps"][1]["shared"]
    assert all(Path(one["image"]).name == Path(one["shows"]).name for one in shared)
    again = run("merge", "calibrated.tfa", "dusk.tfa", "--out", "both.tfa", "--force")
    assert f"merged 2 maps into both.tfa: {2 * PLACES} images" in again.stdout
    assert f"dusk: {len(shared)} of {PLACES} photos show places of earlier maps" in again.stdout


@pytest.fixture
def aged(run, folder):
    """A map with a copy of 03.png; 1 was confirmed today, 2 long ago; 13 is new."""
    shutil.copy(folder / "photos" / "03.png", folder / "copy.png")
    run("add", "town.tfa", "copy.png")
    images, now = PlaceMap.load("town.tfa").images, int(time.time())
    kept = Confirmed().watched(images, now - 200 * DAY)
    kept.since[make_image_key(images[13])] = now - 5 * DAY
    kept.last = {make_image_key(images[1]): now, make_image_key(images[2]): now - 150 * DAY}
    kept.write(folder / "town.tfa")
    return folder


def test_prune_shows_what_would_go_and_what_it_costs_before_it_goes(run, aged):
    dry = json.loads(run("prune", "town.tfa", "--dry-run", "--json", "--photos", "near.jpg").stdout)
    assert not dry["removed"]
    removable = {one["id"]: (one["why"], one["duplicate_of"]) for one in dry["candidates"]}
    assert removable.pop(14) == ("near duplicate", 3)
    assert removable == dict.fromkeys((0, *range(4, 13)), ("never confirmed", None))
    assert dry["reasons"] == {"never confirmed": 10, "near duplicate": 1}
    themselves, given = dry["expected_recall"]
    assert (themselves["before"], themselves["after"]["photos"]) == (None, 11)
    assert given["after"]["share"] < given["before"]["share"]  # near.jpg shows place 5
    assert len(PlaceMap.load("town.tfa")) == PLACES + 1

    unconfirmed = run("prune", "town.tfa")
    assert "11 images of 15 can be removed" in unconfirmed.stdout
    assert "nothing was removed; pass --yes" in unconfirmed.stderr
    only = run("prune", "town.tfa", "--duplicates-only", "--yes")
    assert "removed 1 image; the map holds 14 images" in only.stdout
    run("prune", "town.tfa", "--yes", "--unconfirmed", "100", "--quiet")
    assert [one.id for one in PlaceMap.load("town.tfa").images] == [1, 2, 13]  # 3 is in no group any more


def test_prune_of_a_map_that_nothing_is_known_of(run, folder):
    assert "nothing to remove" in run("prune", "plain.tfa").stdout
    both = run("prune", "plain.tfa", "--dry-run", "--yes")
    assert both.exit_code == 2
    assert "--dry-run and --yes exclude each other" in both.stderr


def test_report_says_what_aged_where_the_service_has_confirmed_some(run, aged):
    result = run("report", "town.tfa", "--json", "--aged", "100", "-o", "report.html")
    ageing = json.loads(result.stdout)["ageing"]
    assert [one["id"] for one in ageing["old"]] == [2]
    assert [one["id"] for one in ageing["never"]] == [0, *range(3, 13), 14]
    assert (ageing["confirmed"], ageing["new"], ageing["days"]) == (2, 1, 100)
    assert ageing["text"] in run("report", "town.tfa", "--aged", "100").stdout
    assert "<h2>Aged images</h2>" in Path("report.html").read_text("utf-8")
    assert json.loads(run("report", "plain.tfa", "--json").stdout)["ageing"] is None

"""What was written and computed once must be read and computed again. `regenerate` says how to change it on purpose."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.golden.arrays import computed
from tests.golden.regenerate import HERE, MAPS, OLD_MAPS, answers, queries
from tests.maps.conftest import photo
from tfa.core.files import map_tensors
from tfa.maps import PlaceMap

EVERY = (*MAPS, *OLD_MAPS)
LARGEST = 100_000  # bytes of a golden map, and of everything else together


@pytest.mark.parametrize("name", EVERY)
def test_the_golden_map_answers_as_it_did(name):
    place_map = PlaceMap.load(HERE / name, checksum=True)
    assert place_map.info().to_dict()["head"] == (name.replace("_", "-") if name in MAPS else "second-order")
    expected, found = json.loads((HERE / "answers.json").read_text("utf-8"))[name], answers(place_map, queries())
    assert found.keys() == expected.keys() == {"none", "night", "verified"}
    for way in expected:
        for ours, theirs in zip(found[way], expected[way], strict=True):
            assert [hit["id"] for hit in ours] == [hit["id"] for hit in theirs]
            assert [hit["inliers"] for hit in ours] == [hit["inliers"] for hit in theirs]
            for key in ("score", "confidence"):
                np.testing.assert_allclose([h[key] for h in ours], [h[key] for h in theirs], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_the_golden_map_finds_its_photos_wherever_the_repository_is(name):
    place_map = PlaceMap.load(HERE / name)
    assert [record.path for record in place_map.images] == [
        str(HERE.resolve() / "photos" / f"{place}.png") for place in range(10) if place != 4
    ]


@pytest.mark.parametrize("name", EVERY)
def test_the_golden_map_can_be_edited(tmp_path, monkeypatch, name):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    shutil.copytree(HERE / name, tmp_path / "map")
    shutil.copytree(HERE / "photos", tmp_path / "photos")
    editor = PlaceMap.load(tmp_path / "map", encoder=FakeEncoder())
    editor.remove([0])
    editor.refit()
    again = PlaceMap.load(tmp_path / "map", checksum=True, encoder=FakeEncoder())
    assert sorted(record.id for record in again.images) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert again.query(tmp_path / "photos" / "7.png", k=1)[0].id == 7


def test_a_judged_map_is_a_second_order_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    shutil.copytree(HERE / "judged", tmp_path / "map")
    shutil.copytree(HERE / "photos", tmp_path / "photos")
    editor = PlaceMap.load(tmp_path / "map", encoder=FakeEncoder())
    assert "its first answers share" in editor.info().decided[0].reason
    camera = [photo(tmp_path / "camera" / f"{place}.png", place, light=0.8) for place in range(9)]
    report = editor.calibrate(camera, "dusk")
    assert (report.decisions["carrier"], report.decisions["score_calibrated"]) == ("partial", True)
    editor.activate("none")
    assert json.loads((tmp_path / "map" / "map.json").read_text("utf-8"))["head_kind"] == "second-order"
    again = PlaceMap.load(tmp_path / "map", checksum=True, encoder=FakeEncoder())
    assert answers(again, queries()) == answers(PlaceMap.load(HERE / "judged"), queries())
    again.refit()
    info = again.info()
    assert (info.head, info.decisions["carrier"]) == ("second-order", "tempered")
    assert info.reasons["carrier"] == "default: two thirds plain scores, one third whitened scores"
    assert again.state.vocabularies is None


def test_a_refit_replaces_what_a_judge_chose():
    state = PlaceMap.load(HERE / "judged").state
    chosen = dataclasses.replace(state.database, decisions={**state.database.decisions, "carrier": "blend"})
    assert dataclasses.replace(state, heads=(chosen, *state.calibrations)).map_spec.carrier == "tempered"


@pytest.fixture(scope="module")
def now():
    return computed()


def test_golden_arrays(now):
    expected, _ = map_tensors(HERE / "arrays.safetensors")
    found, _ = now
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_golden_decisions(now):
    expected = json.loads((HERE / "decisions.json").read_text("utf-8"))
    _, found = now
    assert found.keys() == expected.keys()
    for name in expected:
        same(json.loads(json.dumps(found[name])), expected[name])


def same(found, expected):
    """Equal, numbers up to what another BLAS changes in the last digits."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list | float):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    else:
        assert found == expected


def test_golden_files_are_small():
    sizes = {
        path: path.stat().st_size for path in HERE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    folders = (*EVERY, "maps")  # of test_versions.py
    of_maps = [sum(size for path, size in sizes.items() if path.is_relative_to(HERE / name)) for name in folders]
    assert all(0 < size < LARGEST for size in of_maps)
    assert 0 < sum(sizes.values()) - sum(of_maps) < LARGEST

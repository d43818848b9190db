"""Maps of every format version are read as they were written, and today's maps by a reader that is not changed."""

import json
import shutil

import pytest

from tests.fakes import FakeEncoder
from tests.golden import regenerate
from tests.golden.versions import HERE, NEW, make_answers, read_pinned, write_map
from tests.maps.conftest import photo
from tfa.maps import PlaceMap
from tfa.maps.folder.format import CELLS_VERSION, FORMAT_VERSION

EVERY = sorted(path.name for path in HERE.iterdir() if path.is_dir())
LARGEST = 100_000  # bytes of a golden map


@pytest.mark.parametrize("name", EVERY)
def test_a_map_answers_as_when_it_was_written(name):
    place_map = PlaceMap.load(HERE / name, checksum=True)
    expected = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    for ours, theirs in zip(make_answers(place_map, regenerate.queries()), expected, strict=True):
        assert ours["way"] == theirs["way"]
        for hits, known in zip(ours["hits"], theirs["hits"], strict=True):
            assert [one[0] for one in hits] == [one[0] for one in known], ours["way"]
            assert [one[1] for one in hits] == pytest.approx([one[1] for one in known], rel=1e-4)
            assert [one[2] for one in hits] == [one[2] for one in known]


@pytest.mark.parametrize("name", EVERY)
def test_a_map_holds_sessions_positions_patches_and_sums(name):
    records, state = read_pinned(HERE / name), PlaceMap.load(HERE / name).state
    assert [record["id"] for record in records] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [record.get("session") for record in records] == [None] * 7 + ["night, rain"] * 2
    assert [record["position"] for record in records][5:] == [
        *({"x": place, "y": 2 * place} for place in (6, 7, 8)),
        None,
    ]
    assert all("crc32" in entry for entry in state.files)
    assert (state.compact is not None) == (name != "version_3")
    assert [head.name for head in state.heads] == ["none", "dusk"]


@pytest.mark.parametrize("name", EVERY)
def test_a_map_can_be_edited(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    shutil.copytree(HERE / name, tmp_path / "map")
    editor = PlaceMap.load(tmp_path / "map", encoder=FakeEncoder())
    assert editor.add([photo(tmp_path / "new.png", 30)]).added == [10]
    editor.remove([0])
    read_pinned(tmp_path / "map")
    again = PlaceMap.load(tmp_path / "map", checksum=True, encoder=FakeEncoder())
    assert sorted(record.id for record in again.images) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert again.query(tmp_path / "new.png", k=1, calibration="none")[0].id == 10


@pytest.mark.parametrize("name", NEW)
def test_a_released_reader_reads_what_is_written_today(name, tmp_path):
    records = read_pinned(write_map(tmp_path, name))
    assert records == read_pinned(HERE / name)  # photos are named from a common folder


@pytest.mark.parametrize("name", [*regenerate.MAPS, *regenerate.OLD_MAPS])
def test_a_released_reader_reads_older_maps(name):
    assert len(read_pinned(regenerate.HERE / name)) == 9


def test_every_version_has_a_golden_map():
    folders = [*(HERE / name for name in EVERY), *(regenerate.HERE / name for name in regenerate.MAPS)]
    versions = {json.loads((folder / "map.json").read_text("utf-8"))["format_version"] for folder in folders}
    assert versions == {*range(FORMAT_VERSION, CELLS_VERSION + 1)}


def test_golden_maps_are_small():
    for name in EVERY:
        assert 0 < sum(path.stat().st_size for path in (HERE / name).iterdir()) < LARGEST

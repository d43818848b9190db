"""A process that loaded a map cannot edit it after a rebuild at the same path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.conftest import FIRST, World
from tests.faults.storage.disk_operations import watched
from tests.faults.storage.edits import EDITS, facts_of, prepared
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.folder import writer
from tfa.service.decoders import SharedEncoder
from tfa.service.live import LiveMap
from tfa.service.middleware import Metrics
from tfa.service.settings import ServiceSettings

REBUILT = ("forced", "removed first")


def rebuild(world: World, path: Path, how: str) -> None:
    """Another map, of five photos, in its place."""
    if how == "removed first":
        shutil.rmtree(path)
    PlaceMap.load(world.folder / "other.tfa").save(path, overwrite=how == "forced")


@pytest.mark.parametrize("how", REBUILT)
@pytest.mark.parametrize("holding", ["just loaded", "after a removal", "after an addition"])
def test_a_map_built_again_is_not_changed_by_who_held_the_old_one(world, tmp_path, campaign, holding, how):
    edits = {
        "remove": lambda holder: holder.remove([1]),
        "add": lambda holder: holder.add([world.more[1]]),
        "refit": lambda holder: holder.refit(),
    }
    for name, edit in edits.items():
        path = world.map("paper", tmp_path / name)
        holder = world.opened(path)
        if holding == "after a removal":
            holder.remove([3])
        elif holding == "after an addition":
            holder.add([world.more[0]])
        rebuild(world, path, how)
        before = (path / "map.json").read_bytes()
        with pytest.raises(BadMap, match="changed by another process"):
            edit(holder)
        assert (path / "map.json").read_bytes() == before
        again = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
        assert len(again) == 5
        assert again.remove([0]).removed == [0]
    campaign.count("edits of a map that was rebuilt meanwhile", len(edits))


@pytest.mark.parametrize("how", REBUILT)
def test_a_service_reads_a_map_that_was_built_again_before_it_edits_it(world, tmp_path, how):
    path = world.map("paper", tmp_path)
    live = LiveMap(world.opened(path), SharedEncoder(FakeEncoder()), ServiceSettings(), Metrics())
    try:
        live.edit("remove", lambda current: current.remove([3])).result()
        rebuild(world, path, how)
        assert live.edit("remove", lambda current: current.remove([1])).result()[0].removed == [1]
        assert sorted(record.id for record in live.current.images) == [0, 2, 3, 4]
    finally:
        live.close()
    assert sorted(record.id for record in PlaceMap.load(path, checksum=True).images) == [0, 2, 3, 4]


def test_no_revision_comes_twice(world, tmp_path):
    path = world.map("paper", tmp_path)
    world.opened(path).remove([3])  # header of revision 2, files of revision 1
    rebuild(world, path, "forced")
    assert world.opened(path).state.revision == 3


def test_the_next_revision_is_beyond_files_that_were_never_named(world, tmp_path):
    path = world.map("paper", tmp_path)
    (path / "gallery-r000007.safetensors").write_bytes(b"of an edit that was given up")
    editor = world.opened(path)
    editor.calibrate(world.camera, name="night")
    again = world.opened(path)
    assert again.state.revision == 8
    assert again.info().to_dict()["calibrations"][0]["calibration"]["revision"] == 8
    assert not (path / "gallery-r000007.safetensors").exists()
    assert editor.info().to_dict()["calibrations"] == again.info().to_dict()["calibrations"]


def test_a_calibration_of_other_images_is_not_adopted(world, tmp_path):
    """A service calibrates a copy; meanwhile the map is built again of the same photos, without what was added."""
    path = world.map("paper", tmp_path)
    apart = world.opened(world.map("paper", tmp_path / "apart"))
    apart.add([world.more[0]])
    apart.calibrate(world.camera, name="night")
    again = world.opened(path)
    with pytest.raises(BadMap, match="was refitted"):
        again.adopt_calibration(apart, "night")
    assert json.loads((path / "map.json").read_text())["active"] == "none"


COMMITS = ("add", "remove", "activate", "refit")


def replace_map(world: World, path: Path, how: str) -> None:
    """What another process may do without asking for the lock, and a new map there."""
    if how == "moved away":
        path.rename(path.with_name("moved.tfa"))
    rebuild(world, path, "removed first" if how == "removed" else "new")


@pytest.mark.parametrize("how", ["removed", "moved away"])
@pytest.mark.parametrize("name", COMMITS)
def test_a_map_built_again_within_a_commit_is_not_changed(world, tmp_path, campaign, name, how):
    """Another map is put in the place of one before each operation of an edit of it, between its check and its end."""
    made, number, step = prepared(world, "paper", tmp_path / "made"), 0, campaign.size(6, 1)
    attempts, came = 0, True
    while came:
        path, left, came = tmp_path / str(number) / "town.tfa", [number], False
        shutil.copytree(made, path)
        holder = world.opened(path)
        before, new, said = facts_of(holder), {}, ""

        def overtaken(*_, path=path, left=left, new=new):
            nonlocal came
            left[0] -= 1
            if left[0] == -1 and not came:
                came = True  # and what follows is not counted
                replace_map(world, path, how)
                new.update((file.name, file.read_bytes()) for file in path.iterdir())

        with watched(lambda *_: None, overtaken):
            try:
                EDITS[name](holder, world)
                done = True
            except BadMap as error:
                done, said = False, str(error)
        if came:
            assert not done
            assert "by another process" in said
            assert {file.name: file.read_bytes() for file in path.iterdir()} == new
            again = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
            assert len(again) == 5
            assert again.remove([0]).removed == [0]
            assert facts_of(holder) == before
            if how == "moved away":  # the old one is whole too, before or after
                world.opened(path.with_name("moved.tfa")).remove([4])
            attempts += 1
        else:
            assert done
        shutil.rmtree(path.parent)
        number += step
    campaign.count("rebuilds during a commit", attempts)


def test_a_map_that_is_being_edited_is_not_overwritten(world, tmp_path):
    path = world.map("paper", tmp_path)
    tried = []

    def overtaken(name, *_):
        if name == "replace" and not tried:
            tried.append(name)
            with pytest.raises(BadMap, match="being edited by another process"):
                rebuild(world, path, "forced")

    with watched(lambda *_: None, overtaken):
        world.opened(path).remove([1])
    assert tried
    assert len(PlaceMap.load(path, checksum=True)) == FIRST - 1


def test_two_saves_of_one_new_name(world, tmp_path, monkeypatch):
    """The second to be done does not replace the first."""
    path, write, faster = tmp_path / "new.tfa", writer.write_all, []

    def overtaken(folder, state):
        if not faster:
            faster.append(True)
            rebuild(world, path, "new")
        return write(folder, state)

    monkeypatch.setattr(writer, "write_all", overtaken)
    with pytest.raises(BadMap, match="exists"):
        world.opened(world.folder / "paper.tfa").save(path)
    assert len(world.opened(path)) == 5
    assert FIRST != 5
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]

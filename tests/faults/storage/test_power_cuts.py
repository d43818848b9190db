"""Power cuts at every operation of every edit, on a disk that keeps only what was synced."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.crash_states import Disk, materialise
from tests.faults.storage.disk_operations import watched
from tests.faults.storage.edits import EDITS, facts_of, prepared
from tfa.base import files
from tfa.errors import BadMap
from tfa.maps import PlaceMap


@pytest.mark.parametrize("name", EDITS)
def test_a_power_cut_leaves_the_map_before_or_the_map_after(world, tmp_path, campaign, name):
    path = prepared(world, "paper", tmp_path / "disk")
    opened, disk, rng = world.opened(path), Disk.of(path), random.Random(name)
    before, states = facts_of(opened), []
    each, step, operations = campaign.size(2, 6), campaign.size(11, 1), 0

    def watch(*operation):
        nonlocal operations
        disk.watch(*operation)
        operations += 1
        if operations % step == 0:
            states.extend(disk.crashes(rng, each))

    with watched(watch):
        EDITS[name](opened, world)
    after = facts_of(opened)
    for state in states:
        materialise(state, path, tmp_path / "cut")
        found = PlaceMap.load(tmp_path / "cut", checksum=True, encoder=FakeEncoder())
        assert facts_of(found) in (before, after)
        found.remove([5])
    for state in disk.crashes(rng, campaign.size(4, 20)):  # acknowledged: whatever is pending now, nothing is lost
        materialise(state, path, tmp_path / "cut")
        assert facts_of(PlaceMap.load(tmp_path / "cut", checksum=True)) == after
        states.append(state)
    campaign.count("power cuts during edits, and right after", len(states))


def test_a_folder_that_is_not_synced_is_noticed(world, tmp_path, monkeypatch):
    """The emulated disk finds what it must: without syncs of folders, or of files, edits are lost or maps damaged."""
    for lost in ("synced folder", "synced file"):
        path = prepared(world, "paper", tmp_path / lost)
        opened, disk, rng, bad = world.opened(path), Disk.of(path), random.Random(0), 0

        def watch(name, target, more, disk=disk, lost=lost):
            folder = isinstance(target, Path) and target.is_dir()
            if name != "fsync" or folder != (lost == "synced folder"):
                disk.watch(name, target, more)

        with watched(watch):
            EDITS["remove"](opened, world)
        for state in disk.crashes(rng, 30):
            materialise(state, path, tmp_path / "cut")
            try:
                bad += facts_of(PlaceMap.load(tmp_path / "cut", checksum=True)) != facts_of(opened)
            except BadMap:
                bad += 1
        assert bad > 0, lost


def test_a_first_save_survives_a_power_cut_with_the_folders_it_is_in(world, tmp_path, monkeypatch):
    synced, real = [], files._fsync_folder

    def noted(handle):
        synced.append(Path(f"/proc/self/fd/{handle}").resolve())
        real(handle)

    monkeypatch.setattr(files, "_fsync_folder", noted)
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("only Linux says which folder a handle is of")
    world.opened(world.folder / "paper.tfa").save(tmp_path / "a" / "b" / "town.tfa")
    assert {tmp_path, tmp_path / "a"} <= set(synced)
    assert synced[-1] == tmp_path / "a" / "b"
    shutil.rmtree(tmp_path / "a")

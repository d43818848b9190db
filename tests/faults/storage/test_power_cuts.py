"""Power cuts at every operation of every edit, on a disk that loses unsynced writes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.conftest import World
from tests.faults.storage.crash_states import Disk, materialise
from tests.faults.storage.disk_operations import watched
from tests.faults.storage.edits import EDITS, facts_of, prepared
from tests.faults.storage.test_litter_and_clocks import LONG_AGO
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


def test_a_folder_that_is_not_synced_is_noticed(world, tmp_path):
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


def checked_first_save(cut: Path, world: World) -> bool:
    """Is the map there after a power cut? Then it is whole; otherwise it can be saved, and what was left is removed."""
    path = cut / "maps" / "town.tfa"
    there = path.exists()
    if not there:
        for left in (cut / "maps").glob(".*"):
            os.utime(left, (LONG_AGO, LONG_AGO))
        world.opened(world.folder / "paper.tfa").save(path)
        assert os.listdir(path.parent) == [path.name]
    found = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
    assert facts_of(found) == facts_of(world.opened(world.folder / "paper.tfa"))
    assert found.remove([5]).removed == [5]
    return there


def test_a_power_cut_during_a_first_save_leaves_no_map_or_all_of_it(world, tmp_path, campaign):
    root = tmp_path / "disk"
    root.mkdir()
    opened, disk, rng = world.opened(world.folder / "paper.tfa"), Disk.of(root), random.Random("first save")
    states, each, step, operations = [], campaign.size(2, 8), campaign.size(9, 1), 0

    def watch(*operation):
        nonlocal operations
        disk.watch(*operation)
        operations += 1
        if operations % step == 0 or (operation[0] in ("replace", "mkdir") and operation[1].is_dir()):
            states.extend(disk.crashes(rng, each))

    with watched(watch):
        opened.save(root / "maps" / "town.tfa")
    there = []
    for state in states:
        materialise(state, root, tmp_path / "cut")
        there.append(checked_first_save(tmp_path / "cut", world))
    assert not all(there)
    for state in disk.crashes(rng, campaign.size(4, 20)):  # acknowledged
        materialise(state, root, tmp_path / "cut")
        assert checked_first_save(tmp_path / "cut", world)
        states.append(state)
    campaign.count("power cuts during first saves, and right after", len(states))


@pytest.mark.parametrize("lost", ["the parent folder", "the map's folder", "the files"])
def test_a_first_save_that_syncs_less_is_noticed(world, tmp_path, lost):
    root = tmp_path / "disk"
    root.mkdir()
    opened, disk, bad = world.opened(world.folder / "paper.tfa"), Disk.of(root), 0
    kinds = {"maps": "the parent folder", "disk": "the parent folder"}

    def watch(name, target, more):
        kind = kinds.get(target.name, "the map's folder") if target.is_dir() else "the files"
        if name != "fsync" or kind != lost:
            disk.watch(name, target, more)

    with watched(watch):
        opened.save(root / "maps" / "town.tfa")
    for state in disk.crashes(random.Random(0), 30):
        materialise(state, root, tmp_path / "cut")
        try:
            bad += not checked_first_save(tmp_path / "cut", world)
        except (BadMap, AssertionError):
            bad += 1
    assert bad > 0

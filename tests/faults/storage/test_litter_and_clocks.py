"""Leftovers of killed processes are removed, and nothing in use, even if the clock is wrong."""

from __future__ import annotations

import os
import time

import pytest

from tests.fakes import FakeEncoder
from tfa.core import files
from tfa.core.files import LockedFolder, tidy, write_atomically
from tfa.maps import PlaceMap
from tfa.photos.token_cache import Shelf

LONG_AGO, IN_THE_FUTURE = 1_000_000, 9_000_000_000


def test_a_folder_of_a_killed_save_is_removed_by_the_next_save(world, tmp_path, campaign):
    left, fresh, foreign = (tmp_path / f".town.tfa.{name}" for name in ("left", "fresh", "foreign"))
    for folder in (left, fresh, foreign):
        folder.mkdir()
        (folder / "head-r000001.safetensors").write_bytes(b"half")
    (foreign / "thesis.txt").write_text("x")
    other = tmp_path / ".village.tfa.left"
    other.mkdir()
    for folder in (left, foreign, other):
        os.utime(folder, (LONG_AGO, LONG_AGO))
    world.opened(world.folder / "paper.tfa").save(tmp_path / "town.tfa")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".town.tfa.foreign", ".town.tfa.fresh", ".village.tfa.left", "town.tfa",
    ]  # fmt: skip
    campaign.count("folders left by killed saves", 1)


@pytest.mark.parametrize("when", [LONG_AGO, IN_THE_FUTURE])
def test_a_save_under_way_is_not_removed_whatever_its_time(tmp_path, campaign, when):
    own = LockedFolder(tmp_path, ".town.tfa.")
    (own.path / "map.json").write_text("{}")
    os.utime(own.path, (when, when))
    tidy(tmp_path, ".town.tfa.*", lambda name: True)
    assert own.path.exists()
    own.close()  # as the end of its process does
    tidy(tmp_path, ".town.tfa.*", lambda name: True)
    assert own.path.exists() == (when == IN_THE_FUTURE)
    campaign.count("clocks that jump", 1)


@pytest.mark.parametrize("jump", [-10 * files.STALE_SECONDS, 10 * files.STALE_SECONDS])
def test_a_shard_that_is_being_written_survives_a_clock_that_jumps(tmp_path, monkeypatch, campaign, jump):
    shelf, now = Shelf(tmp_path, "f"), time.time()

    def write(temporary):
        temporary.write_bytes(b"tokens")
        monkeypatch.setattr(time, "time", lambda: now + jump)
        shelf.tidy()  # another process starts
        assert temporary.exists()

    write_atomically(tmp_path / "a.safetensors", write)
    assert os.listdir(tmp_path) == ["a.safetensors"]
    campaign.count("clocks that jump", 1)


@pytest.mark.parametrize("when", [LONG_AGO, IN_THE_FUTURE])
def test_times_of_files_in_a_map_do_not_matter(world, tmp_path, campaign, when):
    path = world.map("second-order", tmp_path)
    for file in (*path.iterdir(), path):
        os.utime(file, (when, when))
    opened = world.opened(path)
    opened.add(world.more[:1])
    for file in path.iterdir():
        os.utime(file, (when, when))
    opened.remove([0])
    assert len(PlaceMap.load(path, checksum=True, encoder=FakeEncoder())) == 8
    campaign.count("clocks that jump", 2)


def test_files_of_an_edit_that_failed_are_removed_at_once(world, tmp_path, monkeypatch):
    path = world.map("paper", tmp_path)
    opened, names = world.opened(path), sorted(os.listdir(path))
    with monkeypatch.context() as patch:
        patch.setattr("tfa.maps.folder.writer.write_json", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(Exception, match="disk is full"):
            opened.calibrate(world.camera)  # writes two files of tensors before it writes the header
    assert sorted(os.listdir(path)) == names


def test_an_edit_that_cannot_tidy_is_done_all_the_same(world, tmp_path, monkeypatch):
    path = world.map("paper", tmp_path)
    opened = world.opened(path)
    opened.refit()

    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "unlink", refused)
    assert opened.remove([1]).removed == [1]
    assert len(PlaceMap.load(path, checksum=True)) == 7

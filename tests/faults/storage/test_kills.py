"""Kills at every operation of every edit, and at any moment: the map before or the map after, and it can be edited."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.disk_operations import count_of
from tests.faults.storage.edits import EDITS, facts_of, prepared, run_killed
from tests.waiting import PATIENCE
from tfa.maps import PlaceMap
from tfa.maps.folder.writer import MAP_FILE_NAME

pytestmark = pytest.mark.kill
KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def processes() -> Any:
    """Where processes come from that have everything imported and run no thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.storage.edits"])
    return context


def ended(processes: Any, *given: Any) -> int:
    process = processes.Process(target=run_killed, args=tuple(map(str, given[:3])) + given[3:])
    process.start()
    process.join()
    return int(process.exitcode)


def check(world: Any, path: Path, before: Any, after: Any) -> None:
    """The map loads, is one of the two, and the next edit works and leaves nothing behind."""
    opened = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
    assert facts_of(opened) in (before, after)
    gone = opened.images[-1].id
    opened.remove([gone])
    again = PlaceMap.load(path, checksum=True)
    assert gone not in [record.id for record in again.images]
    assert not [file.name for file in path.iterdir() if file.name.startswith(".")]
    named = {entry["name"] for entry in again.state.files}
    left = [file.name for file in path.iterdir() if MAP_FILE_NAME.match(file.name) and file.name not in named]
    assert len(left) <= 2 * len(named)  # at most the files of the revision before stay, for its readers


def sampled(points: int, wanted: int, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(points), min(points, wanted)))


@pytest.mark.parametrize("kind", ["paper", "second-order"])
def test_a_kill_at_any_operation_of_an_edit(world, tmp_path, campaign, processes, kind):
    made, rng = prepared(world, kind, tmp_path / "made"), random.Random(kind)
    kills = 0
    for name, edit in EDITS.items():
        shutil.copytree(made, tmp_path / "whole" / name)
        opened = world.opened(tmp_path / "whole" / name)
        before = facts_of(opened)
        points = count_of(lambda opened=opened, edit=edit: edit(opened, world))
        after = facts_of(PlaceMap.load(tmp_path / "whole" / name))
        for number in sampled(points, campaign.size(2, 10_000), rng):
            path = tmp_path / f"{name}-{number}" / "town.tfa"
            shutil.copytree(made, path)
            assert ended(processes, world.folder, path, name, number) == KILLED
            check(world, path, before, after)
            shutil.rmtree(path.parent)
            kills += 1
    campaign.count("kills at each file operation of an edit", kills)


def test_a_kill_at_any_operation_of_a_first_save(world, tmp_path, campaign, processes):
    opened = world.opened(world.folder / "second-order.tfa")
    points = count_of(lambda: opened.save(tmp_path / "whole" / "town.tfa"))
    numbers = sampled(points, campaign.size(6, 10_000), random.Random(0))
    for number in numbers:
        path = tmp_path / str(number) / "town.tfa"
        assert ended(processes, world.folder, path, "save", number) == KILLED
        if path.exists():  # all of it, or nothing
            assert len(PlaceMap.load(path, checksum=True)) == 8
        else:
            world.opened(world.folder / "second-order.tfa").save(path)
            assert len(PlaceMap.load(path, checksum=True)) == 8
    campaign.count("kills at each file operation of an edit", len(numbers))


def loop_of_edits(folder: str, path: str, started: Any) -> None:
    """Edit until the end comes: each edit that was acknowledged is written down, on disk, before the next."""
    from tests.faults.storage.conftest import World

    world = World(Path(folder))
    opened = world.opened(Path(path))
    opened.query(world.more[0])  # all is loaded that an edit needs
    log = os.open(Path(path).parent / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    started.set()
    for number in itertools.count():
        if number % 3 == 0:
            [added] = opened.add(world.more[:1]).added
            os.write(log, f"{opened.state.revision} {added}\n".encode())
        elif number % 3 == 1:
            opened.remove([added])
            os.write(log, f"{opened.state.revision} -\n".encode())
        else:
            opened.refit()
            os.write(log, f"{opened.state.revision} -\n".encode())


def test_kills_at_any_moment_lose_nothing_that_was_acknowledged(world, tmp_path, campaign, processes):
    rng, kills = random.Random(1), campaign.size(4, 1300)
    for number in range(kills):
        path = world.map("paper", tmp_path / str(number))
        started = processes.Event()
        process = processes.Process(target=loop_of_edits, args=(str(world.folder), str(path), started))
        process.start()
        assert started.wait(PATIENCE)
        process.join(rng.uniform(0, 0.25))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == KILLED
        lines = (path.parent / "acknowledged").read_text().splitlines()
        opened = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
        revision, added = lines[-1].split() if lines else ("1", "-")
        assert opened.state.revision in (int(revision), int(revision) + 1)  # at most one more was under way
        if opened.state.revision == int(revision) and added != "-":
            assert int(added) in [record.id for record in opened.images]
        opened.remove([opened.images[0].id])
        assert len(PlaceMap.load(path, checksum=True)) == len(opened)
        shutil.rmtree(path.parent)
    campaign.count("kills (kill -9) at random moments of edits", kills)

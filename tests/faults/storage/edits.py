"""The edits of a map, by name, for processes that are ended in the middle of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.storage.conftest import FIRST, World
from tests.faults.storage.disk_operations import killed_at
from tfa.maps import PlaceMap

Edit = Callable[[PlaceMap, World], object]
EDITS: dict[str, Edit] = {
    "add": lambda opened, world: opened.add(world.more[:1]),
    "remove": lambda opened, world: opened.remove([2]),
    "calibrate": lambda opened, world: opened.calibrate(world.camera, name="fog"),
    "activate": lambda opened, world: opened.activate(None),
    "drop": lambda opened, world: opened.drop_calibration("night"),
    "refit": lambda opened, world: opened.refit(),
    "overwrite": lambda opened, world: opened.save(opened.path or "", overwrite=True),
}
Facts = tuple[list[tuple[int, bool]], list[str], str, frozenset[int]]


def facts_of(opened: PlaceMap) -> Facts:
    """What tells a state of the map from the next: images, heads, the active one, what was removed."""
    images = [(record.id, record.fitted) for record in opened.state.images]
    heads = [str((head.name, head.calibration and head.calibration["revision"])) for head in opened.state.heads]
    return images, heads, opened.state.active, opened.state.removed


def run_killed(folder: str, path: str, name: str, number: int) -> None:
    """In a process of its own: load the map and do the edit; the end comes after `number` operations."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    world = World(Path(folder))
    if name == "save":
        opened: Any = world.opened(world.folder / "second-order.tfa")
        with killed_at(number):
            opened.save(path)
    else:
        opened = world.opened(Path(path))
        with killed_at(number):
            EDITS[name](opened, world)
    os._exit(0)


def prepared(world: World, kind: str, into: Path) -> Path:
    """A map that every edit above can be done to: with a calibration, and an image added."""
    if not (world.folder / f"edited-{kind}.tfa").exists():
        opened = world.opened(world.map(kind, into / "first"))
        opened.calibrate(world.camera, name="night")
        opened.add(world.more[2:3])
        assert len(opened) == FIRST + 1
        opened.path.rename(world.folder / f"edited-{kind}.tfa")
    return world.map(f"edited-{kind}", into)

"""Random sequences of edits and kills, compared with a simple model of the map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tests.faults.storage.disk_operations import watched
from tests.maps.test_state_machine import CALIBRATIONS, FIRST, MORE, EditedMap, made_world

KILLS = ("add", "remove", "calibrate", "refit", "drop")


class Killed(BaseException):
    """The process is gone: from now on no operation reaches the disk."""


def ends_at(number: int, edit: Callable[[], object]) -> bool:
    """Do an edit until the operation of that number; was it ended?"""
    left = [number]

    def refuse(*_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    try:
        with watched(lambda *_: None, refuse):
            edit()
    except Killed:
        return True
    return False


class KilledMap(EditedMap):
    """With saves elsewhere, and with kills: the map is then loaded as a new process would."""

    kills = 0

    @rule(name=st.sampled_from(["a.tfa", "b.tfa"]))
    def save(self, name: str) -> None:
        self.map.save(self.folder / name, overwrite=True)
        self.name = name

    @precondition(lambda self: self.calibrations)
    @rule(answering=st.booleans())
    def activate(self, answering: bool) -> None:
        name = self.calibrations[0] if answering else None
        assert self.map.activate(name) == name

    @precondition(lambda self: self.calibrations)
    @rule()
    def drop(self) -> None:
        self.map.drop_calibration(self.calibrations.pop())

    @precondition(lambda self: len(self.paths) > 2)
    @rule(kind=st.sampled_from(KILLS), number=st.integers(0, 30), photo=st.integers(0, FIRST + MORE - 1))
    def kill(self, kind: str, number: int, photo: int) -> None:
        path: Path = self.made / f"{photo}.png"
        gone, new = sorted(self.paths)[photo % len(self.paths)], max(self.given) + 1
        paths, calibrations, edit = dict(self.paths), list(self.calibrations), self.map.refit
        if kind == "add" and path not in paths.values():
            edit, paths = lambda: self.map.add([path]), {**paths, new: path}
        elif kind == "remove":
            edit = lambda: self.map.remove([gone])  # noqa: E731
            del paths[gone]
        elif kind == "calibrate":
            edit = lambda: self.map.calibrate(self.made / "camera", name=CALIBRATIONS[0])  # noqa: E731
            calibrations = [*(name for name in calibrations if name != CALIBRATIONS[0]), CALIBRATIONS[0]]
        elif kind == "drop" and calibrations:
            last = calibrations.pop()
            edit = lambda: self.map.drop_calibration(last)  # noqa: E731
        else:
            calibrations = []
        before = self.map.state.revision
        type(self).kills += ends_at(number, edit)
        self.map = self.opened()
        if self.map.state.revision != before:
            self.paths, self.calibrations = paths, calibrations
            self.given.update(paths)


def test_any_order_of_edits_and_kills(tmp_path, campaign):
    KilledMap.made, KilledMap.folder = made_world(tmp_path), tmp_path / "edited"
    KilledMap.kills = 0
    sequences = campaign.size(4, 25)
    bounds = settings(
        max_examples=sequences,
        stateful_step_count=campaign.size(6, 12),
        deadline=None,
        derandomize=not campaign.full,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    run_state_machine_as_test(KilledMap, settings=bounds)
    assert KilledMap.kills > 0 or not campaign.full  # a few sequences may have none
    campaign.count("random sequences of edits and kills", sequences)

"""The slot for the newest image: replacement, retries and start of work."""

from __future__ import annotations

import threading
import time

import pytest

from tests.waiting import PATIENCE, wait_until
from tfa_ros.latest import Latest


@pytest.fixture
def running():
    started: list[Latest] = []
    yield lambda work, rate=0.0: started.append(Latest(work, rate)) or started[-1]
    for one in started:
        one.stop(PATIENCE)
        assert not one._thread.is_alive()


def test_what_comes_while_it_works_replaces_what_waits(running):
    seen, begun, go_on = [], threading.Event(), threading.Event()

    def work(thing):
        seen.append(thing)
        begun.set()
        go_on.wait(PATIENCE)

    latest = running(work)
    latest.put(0)
    assert begun.wait(PATIENCE)
    for thing in range(1, 6):
        latest.put(thing)
    go_on.set()
    wait_until(lambda: len(seen) == 2)
    assert seen == [0, 5]
    assert latest.counts == (6, 4)


def test_work_that_is_to_be_tried_again_gets_the_newest_then(running):
    seen = []

    def work(thing):
        seen.append(thing)
        if len(seen) == 3:
            latest.put("newer")
        return 0.02 if len(seen) < 4 else None

    latest = running(work)
    latest.put("old")
    wait_until(lambda: len(seen) == 4)
    assert seen == ["old", "old", "old", "newer"]
    assert latest.counts == (2, 1)


def test_work_begins_no_oftener_than_the_rate(running):
    begun, before = [], time.monotonic()
    latest = running(lambda thing: begun.append((thing, time.monotonic())), rate=20.0)
    for thing in range(8):
        latest.put(thing)
        wait_until(lambda thing=thing: len(begun) > thing)
    assert [thing for thing, _ in begun] == list(range(8))
    assert begun[-1][1] - before >= 7 / 20


def test_a_pause_does_not_keep_it_from_stopping(running):
    tried = threading.Event()
    latest = running(lambda thing: tried.set() or 100 * PATIENCE)
    latest.put(1)
    assert tried.wait(PATIENCE)
    latest.stop(PATIENCE)
    assert not latest._thread.is_alive()

"""Two processes edit a map and one reads it: no edit that was acknowledged is lost, no load fails."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from tests.faults.storage.conftest import FIRST, World
from tests.waiting import PATIENCE
from tfa.errors import BadMap
from tfa.maps import PlaceMap

pytestmark = pytest.mark.kill


def edit_again_and_again(folder: str, path: str, number: int, ready: Any, stop: Any, told: Any) -> None:
    """Add a photo, remove it, refit now and then; tells at the end which edits were acknowledged last, and how many."""
    world = World(Path(folder))
    photo, added, done, refused = world.more[number], None, 0, 0
    opened = world.opened(Path(path))
    opened.query(photo)
    ready.wait()
    while not done or not stop.is_set():
        try:
            opened = world.opened(Path(path))
            if done % 5 == 4:
                opened.refit()
            elif added is None:
                [added] = opened.add([photo]).added
            else:
                opened.remove([added])
                added = None
            done += 1
        except BadMap as error:
            if "another process" not in str(error):
                raise
            refused += 1
    told.put(("edits", number, added, done, refused))


def read_again_and_again(folder: str, path: str, ready: Any, stop: Any, told: Any) -> None:
    world = World(Path(folder))
    world.opened(Path(path)).query(world.more[3])
    ready.wait()
    loads, failed = 0, []
    while not loads or not stop.is_set():
        try:
            opened = world.opened(Path(path))
            found = {hit.id for hit in opened.query(world.more[3], k=99)}
            assert found == {record.id for record in opened.images}
        except Exception as error:
            failed.append(repr(error))
        loads += 1
    told.put(("loads", loads, failed))


def test_two_edit_and_one_reads(world, tmp_path, campaign):
    path = world.map("paper", tmp_path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.storage.edits"])
    ready, stop, told = context.Barrier(4), context.Event(), context.Queue()
    shared = (str(world.folder), str(path))
    processes = [
        context.Process(target=edit_again_and_again, args=(*shared, number, ready, stop, told)) for number in (0, 1)
    ]
    processes.append(context.Process(target=read_again_and_again, args=(*shared, ready, stop, told)))
    for process in processes:
        process.start()
    try:
        ready.wait(PATIENCE)
        stop.wait(campaign.size(2, 30))
        stop.set()
        answers = [told.get(timeout=PATIENCE) for _ in processes]
    finally:
        stop.set()
        for process in processes:
            process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    edits = [answer for answer in answers if answer[0] == "edits"]
    [(_, loads, failed)] = [answer for answer in answers if answer[0] == "loads"]
    assert failed == []
    opened = PlaceMap.load(path, checksum=True)
    expected = {*range(FIRST), *(added for _, _, added, _, _ in edits if added is not None)}
    assert {record.id for record in opened.images} == expected
    done = sum(edit[3] for edit in edits)
    assert opened.state.revision == 1 + done  # each acknowledged edit is a revision
    assert done > 0
    assert loads > 0
    campaign.count("concurrent edits by two processes", done)
    campaign.count("loads while two processes edit", loads, len(failed))


def test_a_load_between_two_commits_of_another_process(world, tmp_path, monkeypatch, campaign):
    """The reader has a header; before it opens the files, another process commits twice and deletes them."""
    from tfa.maps.folder import reader

    path = world.map("paper", tmp_path)
    editor, check, left = world.opened(path), reader.check_file, [campaign.size(2, 10)]

    def overtaken(*given: Any) -> None:
        if left[0]:
            left[0] -= 1
            editor.refit()
            editor.remove([editor.images[0].id]) if len(editor) > 3 else editor.refit()
        check(*given)

    monkeypatch.setattr(reader, "check_file", overtaken)
    opened = PlaceMap.load(path)
    assert opened.state.digest == editor.state.digest
    campaign.count("loads during commits", campaign.size(2, 10))

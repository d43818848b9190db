"""A bounded part of the random histories; `make histories` runs more. The engine itself must notice lost edits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.faults import history_parts
from tests.faults.histories import Campaign, History, World, open_place
from tests.maps.store.stores import place_of
from tfa.errors import BadMap
from tfa.maps.store import edits, republish
from tfa.search.gallery import DAMAGED
from tfa.verification.patches import CompactTokens

SEED = 1
STORES = [pytest.param(kind, marks=pytest.mark.stores) for kind in ("lance", "postgres")]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World.make(tmp_path_factory.mktemp("world"))


def run(world, place, operations):
    histories = Campaign(world, place, SEED)
    histories.run(operations, length=100)
    assert not histories.failures, "\n".join(histories.failures)
    return histories.done


@pytest.mark.kill
@pytest.mark.parametrize(("where", "bounded", "full"), [("folder", 60, 5000), ("memory", 100, 5000)])
def test_a_map_holds_what_a_plain_model_holds(where, bounded, full, world, tmp_path, campaign):
    with open_place(where, tmp_path) as place:
        done = run(world, place, campaign.size(bounded, full))
    campaign.count(f"operations of random histories: {where}", done)


@pytest.mark.kill
@pytest.mark.parametrize("where", STORES)
def test_a_map_in_a_server_or_a_folder_of_tables_holds_it_too(where, world, request, campaign):
    done = run(world, place_of(where, request), campaign.size(4, 400))
    campaign.count(f"operations of random histories: {where}", done)


def test_the_seed_decides_about_a_history(world, tmp_path, monkeypatch):
    monkeypatch.setattr(History, "race", History.kill)  # no seed decides which of two processes is first
    logs = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        histories = Campaign(world, str(tmp_path / str(number)), SEED)
        seen = []
        histories.run(4, length=4, each=seen.append)
        logs.append([history.log for history in seen])
    assert logs[0] == logs[1]
    assert len(logs[0][0]) == 4


def test_a_wrong_count_is_noticed(world, tmp_path, monkeypatch):
    def miscount(publisher, header, swap=republish.Publisher.swap):
        return swap(publisher, replace(header, count=header.count + 1))

    monkeypatch.setattr(republish.Publisher, "swap", miscount)
    with open_place("memory", tmp_path) as place:
        histories = Campaign(world, place, SEED)
        histories.run(40, length=40)
    [failure] = histories.failures
    assert f"--seed {SEED} --history 0" in failure
    assert "count: " in failure


def test_patches_of_other_images_are_noticed(world, tmp_path, monkeypatch):
    def mix_up(patches, rows):
        mixed, every = np.r_[rows[:-3], rows[-3:][::-1]], np.concatenate([np.asarray(one) for one in patches.chunks])
        return replace(patches, chunks=(every[mixed],), sums=None if patches.sums is None else patches.sums[mixed])

    monkeypatch.setattr("tests.faults.histories.KINDS", ["second-order"])
    monkeypatch.setattr(CompactTokens, "keeping", mix_up)
    with world.cached(), open_place("folder", tmp_path) as place:
        history = History.begin(world, place, SEED, 0)
        for edit in (("add", ["plain-10"], None), ("add", ["plain-12"], None), ("remove", [8])):
            history.edit(edit)
            history.check("an edit")
        query_often(history)
        history.edit(("add", ["plain-14"], None))  # joins additions and drops the removed one
        with pytest.raises(AssertionError, match="inliers of "):
            query_often(history)


@pytest.mark.parametrize("life", [3, 10**6])
def test_a_killed_editor_may_finish_an_addition_of_another(life, world, tmp_path, monkeypatch):
    addition, removal = ("add", ["plain-10"], None), ("remove", [0])
    with world.cached(), open_place("memory", tmp_path) as place:
        for adding in range(30, 0, -1):  # the last call at which it can be killed: its row is written
            history = History.begin(world, place, SEED, adding)
            with history.clock.installed():
                ended = history.kill_here(addition, adding)
            versions = history.editors[0].storage.versions
            if ended and versions.now(fresh=True).header.pending:
                break
        with history.clock.installed():
            history.model = replace(history.model, maybe={history.model.next_id: ("plain-10", None)})
            edits.settle_edits(versions, patience=0.01)  # notes when it was seen
            history.clock.offset += history_parts.MINUTE
            monkeypatch.setattr(history, "draw_edit", lambda: removal)
            monkeypatch.setattr(history.rng, "randint", lambda *_: life)
            history.log.append("kill")
            history.kill()
            history.check("a kill")
            assert not history.model.maybe


def query_often(history):
    for _ in range(60):
        history.query()


def test_answers_are_compared_after_every_operation(world, tmp_path, monkeypatch):
    compared, compare = [], History.compare_answers
    monkeypatch.setattr(History, "compare_answers", lambda *given: compared.append(given) or compare(*given))
    with open_place("memory", tmp_path) as place:
        run(world, place, 20)
    assert len(compared) == 20


def test_an_editor_that_holds_other_images_is_noticed(world, tmp_path):
    with world.cached(), open_place("folder", tmp_path) as place:
        history = History.begin(world, place, SEED, 0)
        history.check("nothing")
        storage = history.editors[1].storage
        storage.replace_state(replace(storage.snapshot().state, removed=frozenset([0])))
        with pytest.raises(AssertionError, match="an editor differs: lost"):
            history.check("nothing")


@pytest.mark.parametrize(("text", "outcome"), [(DAMAGED, "failed"), ("changed by another process", "refused")])
def test_a_map_that_an_edit_finds_damaged_is_a_failure(text, outcome, monkeypatch):
    def fail(*_given):
        raise BadMap(text)

    monkeypatch.setattr(history_parts, "perform", fail)
    assert history_parts.attempt(None, None, ("refit",), "town") == (outcome, text)


def test_an_image_that_comes_back_is_noticed(world, tmp_path):
    with world.cached(), open_place("folder", tmp_path) as place:
        history = History.begin(world, place, SEED, 0)
        history.model = replace(history.model, photos={key: one for key, one in history.model.photos.items() if key})
        with pytest.raises(AssertionError, match=r"unexpected: \{0:"):
            history.check("nothing")

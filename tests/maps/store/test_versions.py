"""Versions of a map in a store: atomic publishing, rollback, cleanup, locks and errors."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.conftest import PLACES, told
from tests.maps.store.stores import Flaky, memory_store
from tests.maps.store.test_edits import sound
from tfa.errors import BadCalibration, BadMap, BadSpec, BadWeights, StoreConflict, StoreUnavailable, UnknownImage
from tfa.maps import PlaceMap
from tfa.maps.storage import MemoryStorage
from tfa.maps.store import StoreStorage, edits, publish, republish, storage
from tfa.maps.store.header import ABANDONED, Builder, claim_key, claim_map, header_key
from tfa.maps.store.publish import Publisher
from tfa.maps.store.storage import StoreSnapshot
from tfa.types import BuildOptions


def built(small, tmp_path):
    """Another map of the same town."""
    return PlaceMap.build(sorted((tmp_path / "town").iterdir())[:9], head="second-order", encoder=FakeEncoder(),
                          spec=SPEC)  # fmt: skip


def test_a_map_is_opened_by_its_url(town, url, dusk):
    opened = PlaceMap.load(url, encoder=FakeEncoder())
    assert isinstance(opened.storage, StoreStorage)
    assert told(opened.query(dusk)) == told(town.query(dusk))
    assert repr(opened) == (
        f"<PlaceMap {url}: 14 photos; encoder fake@28; second-order head (second-order, tempered); no calibration; "
        "reranked>"
    )
    info = opened.info().to_dict()
    assert (info["images"], info["positions"], info["sample"], info["dims"]) == (PLACES, PLACES, PLACES, 64)
    assert (info["name"], info.get("previous"), info["store"]["store"]) == ("town", None, "memory")


def test_a_map_that_is_built_again_appears_at_once_and_can_be_taken_back(small, town, url, dusk, tmp_path):
    first, first_hits = town.storage.view.header, told(town.query(dusk))
    built(small, tmp_path).publish(url, dims=64)
    town.prepare()
    assert len(town) == 9
    assert told(town.query(dusk)) != first_hits
    notes = town.storage.rollback()
    assert told(town.query(dusk)) == first_hits
    assert town.storage.view.header.version == first.version
    assert notes[1].startswith("it has 14 images instead of 9")
    town.storage.rollback()
    assert len(town) == 9
    assert town.storage.view.header.next_id == PLACES  # an id is not given to another image


def test_only_the_version_before_is_kept(small, town, url, tmp_path):
    for _ in range(3):
        built(small, tmp_path).publish(url, dims=64)
    header = town.storage.versions.now(fresh=True).header
    store = memory_store(url)
    assert set(store.names("town__v")) == {header.collection, header.before.collection}
    folders = {key.split("/")[1] for key in store.keys("town/v")}
    assert folders == {f"v{header.version}", f"v{header.before.version}"}


def test_a_collection_that_is_dropped_while_the_header_is_read_is_not_missed(
    small, town, another, url, camera, tmp_path, monkeypatch
):
    town.calibrate(camera, "night")
    store, rebuilt = memory_store(url), built(small, tmp_path)
    real = store.open

    def publish_first(name):
        monkeypatch.setattr(store, "open", real)
        rebuilt.publish(url, dims=64)  # drops the version before the calibration
        return store.open(name)

    monkeypatch.setattr(store, "open", publish_first)
    assert len(another()) == 9


def test_a_map_without_a_version_before_is_not_taken_back(town):
    with pytest.raises(BadMap, match="has no previous version"):
        town.storage.rollback()


def test_heads_that_no_collection_is_of_are_refused_until_they_answer(town, camera, dusk, tmp_path):
    plain = told(town.query(dusk))
    town.calibrate(camera, "night")
    assert told(town.query(dusk, calibration="none")) == plain  # the version before is of it
    town.add([photo(tmp_path / "far.png", 90)])
    with pytest.raises(
        BadCalibration, match="head 'none' is not active; a store holds vectors of one head, now 'night'"
    ):
        town.query(dusk, calibration="none")
    with pytest.raises(BadCalibration, match="calibration 'noon' not found"):
        town.query(dusk, calibration="noon")
    assert town.activate(None) is None
    assert told(town.query(dusk, k=1)) == plain[:1]


def test_a_calibration_replaces_nothing_if_it_fails(town, camera, dusk, monkeypatch):
    before = told(town.query(dusk))
    monkeypatch.setattr(Publisher, "finish", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        town.calibrate(camera, "night")
    assert told(town.query(dusk)) == before
    assert town.storage.store.names("town__v") == [
        town.storage.view.header.collection
    ]  # what was half built is dropped
    assert town.calibrations == []


def test_photos_of_the_map_do_not_calibrate_it(town, tmp_path):
    town.add([photo(tmp_path / "camera" / f"{place}.png", place, light=0.7) for place in range(30, 36)])
    with pytest.raises(BadCalibration, match="6 of 6 photos are in the map"):
        town.calibrate(tmp_path / "camera", "night")


def test_two_builders_of_one_name_are_told_of_each_other(small, town, url):
    with (
        claim_map(memory_store(url), "town", "built", url),
        pytest.raises(StoreConflict, match=r"town is being built by process \d+ of .* for 0 min; try again when"),
    ):
        small.publish(url, dims=64)
    small.publish(url, dims=64)


def test_an_abandoned_claim_is_taken_and_what_it_left_is_dropped(small, town, url):
    store = memory_store(url)
    long_ago = time.time() - 1.5 * ABANDONED
    left = Builder("process 1 of elsewhere", "built", long_ago, long_ago, "x")
    store.put(claim_key("town"), left.to_bytes())
    store.create("town__v77", 64)
    store.put("town/v77/skeleton/map.json", b"half")
    small.publish(url, dims=64)
    assert "town__v77" not in store.names()
    assert not store.keys("town/v77")


def test_a_builder_that_was_taken_for_dead_publishes_nothing(small, town, url, dusk, monkeypatch):
    store, before = memory_store(url), told(town.query(dusk))
    publisher = Publisher(store, "town", url)
    real = Publisher.finish

    def late(self, *given, **named):
        store.put(claim_key("town"), Builder("process 1 of elsewhere", "built", 0, time.time(), "y").to_bytes())
        publisher._claim.renew()
        return real(self, *given, **named)

    monkeypatch.setattr(Publisher, "finish", late)
    with pytest.raises(StoreConflict, match="another process took over"):
        publish.publish_map(small, publisher, dims=64)
    assert told(town.query(dusk)) == before


def test_a_map_that_is_not_there_is_refused_with_those_that_are(town, url):
    place = url.rpartition("/")[0]
    with pytest.raises(BadMap, match=r"there is no map 'twn' .*available: town.*did you mean town\?"):
        PlaceMap.load(f"{place}/twn")


def test_a_newer_format_is_refused(town, url):
    store = memory_store(url)
    newer = {**json.loads(store.read(header_key("town"))), "format_version": 99}
    store.put(header_key("town"), json.dumps(newer).encode())
    with pytest.raises(BadMap, match="this release reads tfa-engine-map 2 and 3; use a newer tfa-vpr"):
        PlaceMap.load(url)
    store.put(header_key("town"), b"{not json")
    with pytest.raises(BadMap, match="has no readable header"):
        PlaceMap.load(url)


def test_a_document_that_is_missing_is_named(town, url):
    store = memory_store(url)
    store.erase(town.storage.view.header.reduction)
    with pytest.raises(BadMap, match="town/v1/reduction is missing in the store"):
        PlaceMap.load(url)


def test_another_encoder_is_refused(town, url, dusk):
    with pytest.raises(BadWeights, match="this map was built with fake@28"):
        PlaceMap.load(url, encoder=FakeEncoder(salt="other")).query(dusk)


def test_a_map_of_the_papers_head_is_refused(tmp_path, small, url):
    paper = PlaceMap.build(tmp_path / "town", head="paper", encoder=FakeEncoder(), spec=SPEC)
    with pytest.raises(BadSpec, match="this map has the paper head; build with --head second-order"):
        paper.publish(url)


def test_an_older_map_of_a_residual_head_is_refused(tmp_path, small, url):
    made = PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC)
    paper = PlaceMap.build(
        tmp_path / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(head="paper", storage="int7")
    )
    other = replace(made.state.database, stored=paper.state.head)  # as if a judge had chosen residuals
    decisions = {**other.decisions, "representation": "hard"}
    judged = PlaceMap(
        MemoryStorage(replace(made.state, heads=(replace(other, decisions=decisions),))), encoder=FakeEncoder()
    )
    with pytest.raises(BadSpec, match="this map has hard residuals; run tfa refit first"):
        judged.publish(url, dims=64)


@pytest.mark.parametrize("call", ["follow", "refit"])
def test_what_needs_every_row_is_refused(town, call):
    with pytest.raises(BadSpec):
        getattr(town, call)()


def test_a_store_that_goes_away_is_named_and_comes_back(town, url, dusk):
    store = Flaky(memory_store(url))
    flaky = PlaceMap(StoreStorage(store, "town", url), FakeEncoder())
    expected = told(flaky.query(dusk))
    store.there = False
    with pytest.raises(StoreUnavailable, match="flaky://here does not answer"):
        flaky.query(dusk)
    with pytest.raises(StoreUnavailable):
        flaky.add([dusk])
    store.there = True
    assert told(flaky.query(dusk)) == expected


def test_answers_do_not_depend_on_the_photos_beside_them(town, tmp_path):
    photos = [photo(tmp_path / f"dusk{place}.png", place, light=0.8) for place in range(20)]
    together = town.query_many(photos, k=4)
    assert [told(answer.hits) for answer in together] == [told(town.query(one, k=4)) for one in photos]


def test_a_store_keeps_the_reach_of_the_map_it_was_built_of(town, small, url):
    assert town.reach == small.reach
    view = town.storage.view
    older = StoreSnapshot(replace(view, header=replace(view.header, reach=None)), {})
    assert older.reach == 25.0
    assert StoreSnapshot(replace(view, header=replace(view.header, reach=80.0)), {}).reach == 80.0


def test_edits_after_a_rollback_are_not_lost_with_another_head(town, camera, tmp_path):
    """As many edits before the rollback as after it: the two versions hold different images nevertheless."""
    town.calibrate(camera, "night")
    town.activate(None)
    town.add([photo(tmp_path / "new.png", 40)])
    town.storage.rollback()
    town.remove([0])
    town.activate(None)
    assert sorted(record.id for record in town.images) == list(range(1, PLACES))
    assert sound(town) == PLACES - 1


@pytest.mark.parametrize("active", ["night", None])
def test_a_calibration_is_not_searched_in_vectors_of_another_one_of_its_name(active, town, camera, dusk):
    town.calibrate(camera[:6], "night")
    expected = told(town.query(dusk, calibration="night"))
    town.activate(active)
    town.calibrate(camera[4:], "night")
    assert told(town.query(dusk, calibration="night")) != expected
    town.storage.rollback()
    if active is None:
        with pytest.raises(BadCalibration, match="head 'night' is not active"):
            town.query(dusk, calibration="night")
    town.activate("night")
    assert told(town.query(dusk)) == expected
    town.remove([2, 3])
    assert sound(town) == PLACES - 2


def test_a_head_that_was_active_before_is_activated_without_new_vectors(town, another, camera):
    town.calibrate(camera, "night")
    used = {town.storage.view.header.collection, town.storage.view.header.before.collection}
    for head in (None, "night", None):
        another().activate(head)
        assert town.storage.versions.now(fresh=True).header.collections == used
    town.storage.rollback()
    assert sound(town) == PLACES
    assert town.activate(None) is None
    assert town.storage.versions.now(fresh=True).header.collections == used


@pytest.mark.parametrize("verb", ["calibrate", "activate", "drop", "rollback"])
def test_an_edit_that_began_before_a_claim_is_not_lost(verb, town, another, camera, tmp_path, monkeypatch):
    town.calibrate(camera, "night")
    town.activate(None)
    real, other, new = republish.settle_edits, another(), photo(tmp_path / "new.png", 40)

    def edit_after(*args, **named):
        view = real(*args, **named)
        monkeypatch.setattr(republish, "settle_edits", real)
        with monkeypatch.context() as patch:
            patch.setattr(edits, "read_builder", lambda *_: None)  # it looked before the claim
            other.remove([2])
            other.add([new])
        return view

    monkeypatch.setattr(republish, "settle_edits", edit_after)
    if verb == "calibrate":
        town.calibrate(camera, "fog")
    elif verb == "activate":
        town.activate("night")
    elif verb == "drop":
        town.drop_calibration("night")
    else:
        town.storage.rollback()
        assert sound(town) == PLACES
        assert town.storage.versions.now(fresh=True).header.next_id == PLACES + 1
        town.storage.rollback()
    assert sorted(record.id for record in town.images) == sorted({*range(PLACES + 1)} - {2})
    assert sound(town) == PLACES
    assert town.storage.versions.now(fresh=True).header.next_id == PLACES + 1


def test_a_calibration_that_is_activated_meanwhile_is_not_dropped(town, another, camera, monkeypatch):
    town.calibrate(camera, "night")
    real, other = storage.forget_head, another()

    def activate_first(*args):
        other.activate("night")
        return real(*args)

    monkeypatch.setattr(storage, "forget_head", activate_first)
    with pytest.raises(StoreConflict, match="calibration 'night' was activated meanwhile; try again"):
        town.drop_calibration("night")
    assert (town.storage.versions.now(fresh=True).header.active, sound(town)) == ("night", PLACES)
    monkeypatch.setattr(storage, "forget_head", real)
    town.drop_calibration("night")
    assert (town.calibrations, sound(town)) == ([], PLACES)


def interrupt(patch, place, name):
    """Kill the editor at a step of its edit."""

    def killed(*_args, **_named):
        raise KeyboardInterrupt

    patch.setattr(place, name, killed)
    return pytest.raises(KeyboardInterrupt)


def settle(town, monkeypatch):
    """Let another editor finish what killed ones left."""
    monkeypatch.setattr(edits, "ABANDONED", 0.0)  # a minute later
    edits.settle_edits(town.storage.versions, patience=0.01)


@pytest.mark.parametrize("kind", ["add", "remove"])
def test_an_interrupted_edit_is_finished_after_a_rebuild_and_a_rollback(kind, small, town, url, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        if kind == "add":
            with interrupt(patch, edits, "_count_images"):
                town.add([photo(tmp_path / "new.png", 40)])
        else:
            with interrupt(patch, type(town.storage.view.active.collection), "delete"):
                town.remove([1, 2])
    built(small, tmp_path).publish(url, dims=64)
    town.storage.rollback()
    settle(town, monkeypatch)
    assert sound(town) == len(town.images) == (PLACES + 1 if kind == "add" else PLACES - 2)


def test_images_of_an_interrupted_addition_are_not_removed_before_it_is_finished(town, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, interrupt(patch, edits, "_count_images"):
        town.add([photo(tmp_path / "new.png", 40), photo(tmp_path / "newer.png", 41)])
    assert len(town.images) == len(town) == PLACES
    assert town.storage.record(PLACES) is None
    with pytest.raises(UnknownImage):
        town.remove([PLACES])
    settle(town, monkeypatch)
    assert town.remove([PLACES]).removed == [PLACES]
    assert sound(town) == PLACES + 1

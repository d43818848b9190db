"""Edits of a map in a store: by several at once, interrupted, and done again."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.conftest import PLACES, told
from tests.maps.store.stores import memory_store
from tests.waiting import wait_until
from tfa.errors import StoreConflict, UnknownImage
from tfa.maps import PlaceMap
from tfa.maps.store import edits, versions
from tfa.maps.store import header as header_module
from tfa.maps.store.header import ABANDONED, Pending, claim_map, header_key, parse_header, read_moments
from tfa.maps.store.storage import StoreStorage
from tfa.search.reduced import Moments
from tfa.search.store import Entries
from tfa.types import ImageRecord


def sound(town):
    """Do count and moments in the header equal what the collection holds?"""
    view = town.storage.versions.now(fresh=True)
    pages = list(view.active.collection.pages())
    expected = Moments.of(np.concatenate([page.vectors for page in pages]))
    assert view.header.placed == sum(one["position"] is not None for page in pages for one in page.payload)
    assert view.header.count == expected.count == view.active.moments.count
    np.testing.assert_allclose(view.active.moments.second, expected.second, atol=1e-6)
    assert not view.header.pending
    return expected.count


def test_an_edit_is_seen_by_others_when_they_look_again(town, another, tmp_path, monkeypatch):
    other = another()
    before = other.query(photo(tmp_path / "q.png", 40, light=0.9), k=1)
    added = town.add([photo(tmp_path / "@1@2@.png", 40)]).added
    monkeypatch.setattr(versions, "_LOOK_AGAIN", 0.0)  # half a second later
    after = other.query(tmp_path / "q.png", k=1)
    assert before[0].id != added[0] == after[0].id
    assert len(other) == PLACES + 1
    town.remove(added)
    assert told(other.query(tmp_path / "q.png", k=1)) == told(before)
    assert other.storage.record(added[0]) is None
    assert sound(town) == PLACES


@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_branch_is_edited_while_a_snapshot_stays_as_it_was(place, small, tmp_path, request):
    small.save(tmp_path / "town.tfa")
    storage = small.storage if place == "folder" else request.getfixturevalue("town").storage
    assert storage.refresh() is storage
    snapshot, version, content = storage.snapshot(), storage.version, photo(tmp_path / "new.png", 40).read_bytes()
    branch = small.with_storage(storage.branch())
    path = branch.storage.put_photo("new.png", hashlib.sha256(content).hexdigest(), content)
    record = ImageRecord(id=0, path=path, digest=hashlib.sha256(content).hexdigest(), fitted=False)
    tokens = small.encode_photos([tmp_path / "new.png"], skip_bad=False, progress=None).tokens
    assert branch.add_records(tokens, [record]).added == [PLACES]
    assert len(snapshot) == PLACES
    assert storage.refresh(branch.storage) is storage  # the edit is to be published
    fresh = storage.refresh()  # the edit is that of another process
    assert (len(fresh.snapshot()), fresh.version) == (PLACES + 1, branch.storage.version)
    assert fresh.version != version
    stored = fresh.record(PLACES)
    assert fresh.read_photo(stored) == content
    fresh.discard_photos([stored.path])  # an image names it
    assert fresh.read_photo(stored) == content
    assert fresh.read_photo(replace(stored, digest="0" * 64)) is None


def test_a_photo_that_is_there_is_left_as_it_is_and_adding_twice_is_adding_once(town, tmp_path):
    new = [photo(tmp_path / "new" / f"{place}.png", place) for place in (40, 41)]
    first, again = town.add(new), town.add(new)
    assert (first.added, again.added) == ([PLACES, PLACES + 1], [])
    assert again.notes[0] == "photos already in the map: 2"
    assert sound(town) == PLACES + 2


def test_editors_at_once_lose_nothing(town, another, tmp_path):
    sets = [[photo(tmp_path / f"{e}" / f"{n}.png", 100 + 10 * e + n) for n in range(3)] for e in range(4)]
    reports, errors = [], []

    def edit(photos):
        try:
            reports.append(another().add(photos))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=edit, args=(photos,)) for photos in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(one for report in reports for one in report.added) == list(range(PLACES, PLACES + 12))
    assert sound(town) == PLACES + 12


@pytest.mark.parametrize("killed", [False, True], ids=["completed", "killed"])
@pytest.mark.parametrize("first", ["claimed first", "claimed last"])
def test_a_photo_that_two_editors_add_at_once_is_added_once(town, another, tmp_path, monkeypatch, first, killed):
    same, other = photo(tmp_path / "@1@2@.png", 40), photo(tmp_path / "@3@4@.png", 41)
    real, reports = edits.write_entries, []

    def die(*_given, **_named):
        raise KeyboardInterrupt

    def write_while_another_adds(*given):
        monkeypatch.setattr(edits, "write_entries", real)
        if first == "claimed last":  # completes before this one has written
            reports.append(another().add([same, other]))
        real(*given)
        if first == "claimed first":  # finds the rows, which no header counts
            monkeypatch.setattr(StoreStorage, "find_digests", lambda *_given: {})
            reports.append(another().add([same, other]))
            monkeypatch.undo()
        if killed:
            monkeypatch.setattr(edits, "_count_images", die)

    monkeypatch.setattr(edits, "write_entries", write_while_another_adds)
    if killed:
        with pytest.raises(KeyboardInterrupt):
            town.add([same])
        monkeypatch.undo()
        monkeypatch.setattr(edits, "ABANDONED", 0.0)  # a minute later
        edits.settle_edits(town.storage.versions)
    else:
        report = town.add([same])
        assert report.added == []
        assert report.notes[0] == "photos already in the map: 1"
    assert [one.added for one in reports] == [[PLACES + 1, PLACES + 2]]
    assert sound(town) == PLACES + 2
    assert sum(record.path.endswith("@1@2@.png") for record in town.records()) == 1


@pytest.mark.parametrize("step", ["write", "swap"])
def test_an_addition_that_was_killed_is_settled_by_the_next_edit(town, tmp_path, monkeypatch, step):
    new = [photo(tmp_path / "new" / f"{place}.png", place) for place in (40, 41)]

    def killed(*_given, **_named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(edits, "write_entries" if step == "write" else "_count_images", killed)
        with pytest.raises(KeyboardInterrupt):
            town.add(new)
    pending = town.storage.versions.now(fresh=True).header.pending
    assert [edit.ids for edit in pending.values()] == [(PLACES, PLACES + 2)]
    monkeypatch.setattr(edits, "ABANDONED", 0.0)  # a minute later
    town.remove([0])
    there = 2 if step == "swap" else 0
    assert sound(town) == PLACES - 1 + there
    town.add(new)
    assert sound(town) == PLACES + 1


def test_a_removal_that_was_killed_is_done_by_the_next_edit_and_seen_at_once(town, dusk, monkeypatch):
    best = town.query(dusk, k=1)[0].id
    collection = town.storage.view.active.collection

    def killed(_ids):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collection, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            town.remove([best])
    assert collection.count() == PLACES
    assert best not in [hit.id for hit in town.query(dusk, k=PLACES)]
    assert town.storage.record(best) is None
    assert town.remove([best + 1]).removed == [best + 1]
    with pytest.raises(UnknownImage):
        town.remove([best])
    monkeypatch.setattr(edits, "ABANDONED", 0.0)
    edits.settle_edits(town.storage.versions)
    assert sound(town) == PLACES - 2


def test_a_map_that_is_calibrated_is_not_edited_meanwhile(town, url, tmp_path):
    with (
        claim_map(memory_store(url), "town", "calibrated", url),
        pytest.raises(StoreConflict, match=r"is being calibrated by process \d+ of .* for 0 min; try again"),
    ):
        town.add([photo(tmp_path / "new.png", 40)])
    assert town.add([tmp_path / "new.png"]).added == [PLACES]


def test_an_editor_that_others_overtake_many_times_succeeds_in_the_end(town, monkeypatch):
    store, left = town.storage.store, [30]
    real = store.swap

    def busy(key, old, new):
        if key == header_key("town") and old is not None and left[0]:
            left[0] -= 1
            header = parse_header(old, "town")
            real(key, old, header.changed(editor="process 7 of elsewhere").to_bytes())
            return False
        return real(key, old, new)

    monkeypatch.setattr(store, "swap", busy)
    monkeypatch.setattr(edits, "_PAUSE", 0.0)
    assert town.remove([1]).removed == [1]
    assert left == [0]
    assert 1 not in {record.id for record in town.records()}


def test_ids_are_given_once(town, tmp_path):
    first = town.add([photo(tmp_path / "a.png", 40)]).added
    town.remove(first)
    assert town.add([photo(tmp_path / "b.png", 41)]).added == [first[0] + 1]


def test_images_are_removed_by_path_and_by_id(town, tmp_path):
    names = {record.id: record.path for record in town.records()}
    gone = town.remove([tmp_path / "town" / "@3@3@.png", "@5@5@.png", 7]).removed
    wanted = [one for one, path in names.items() if path.endswith(("/@3@3@.png", "/@5@5@.png")) or one == 7]
    assert gone == sorted(wanted)
    assert {record.id for record in town.records()} == set(names) - set(gone)
    assert town.remove([np.int64(8)]).removed == [8]
    for image in (True, 1.5, None, b"9.png"):
        with pytest.raises(UnknownImage, match=r"^\S+ is not in the map; list its images"):
            town.remove([image])


def change_header(town, **changes):
    view = town.storage.versions.now(fresh=True)
    header = replace(view.header, **changes).changed()
    assert town.storage.store.swap(header_key("town"), view.content, header.to_bytes())


@pytest.mark.parametrize("clock", [-3600, 0, 3600], ids=["behind", "equal", "ahead"])
def test_an_edit_of_another_is_settled_a_minute_after_this_machine_saw_it_whatever_its_clock(town, clock):
    pending = Pending("add", (PLACES, PLACES + 1), time.time() + clock, "process 1 of elsewhere")
    change_header(town, pending={"x": pending}, next_id=PLACES + 1)
    town.remove([2])
    header = town.storage.versions.now(fresh=True).header
    assert set(header.pending) == {"x"}
    [(machine, seen)] = header.silent["x"].items()
    change_header(town, silent={"x": {"elsewhere": seen - 1.5 * ABANDONED, machine: seen - 0.5 * ABANDONED}})
    town.remove([3])
    assert set(town.storage.versions.now(fresh=True).header.pending) == {"x"}
    change_header(town, silent={"x": {machine: seen - 1.5 * ABANDONED}})
    town.remove([4])
    header = town.storage.versions.now(fresh=True).header
    assert not header.pending
    assert not header.silent


def fall_silent(town):
    """Make this machine see the last heartbeat of every pending edit long ago."""
    long_ago = {edits._read_clock()[0]: -1e9}
    edits._swap_header(
        town.storage.versions, lambda view: replace(view.header, silent=dict.fromkeys(view.header.pending, long_ago))
    )


def test_an_addition_with_a_heartbeat_is_not_settled_however_long_it_takes(town, another, tmp_path, monkeypatch):
    monkeypatch.setattr(header_module, "_HEARTBEAT", 0.02)
    real, other = edits.write_entries, another()

    def write_slowly(*given):
        other.remove([2])
        header = other.storage.versions.now(fresh=True).header
        assert len(header.pending) == 1
        fall_silent(other)
        wait_until(lambda: not other.storage.versions.now(fresh=True).header.silent)
        other.remove([3])
        assert len(other.storage.versions.now(fresh=True).header.pending) == 1
        return real(*given)

    monkeypatch.setattr(edits, "write_entries", write_slowly)
    assert town.add([photo(tmp_path / "new.png", 40)]).added == [PLACES]
    assert sound(town) == PLACES - 1


@pytest.mark.parametrize("published", [False, True], ids=["same version", "new version"])
def test_an_addition_that_was_settled_under_way_is_counted(town, another, camera, tmp_path, monkeypatch, published):
    new = [photo(tmp_path / "new" / f"@{place}@{place}@.png", place) for place in (40, 41, 42)]
    real, other = edits.write_entries, another()

    def write_slowly(collection, entries):
        monkeypatch.setattr(edits, "write_entries", real)
        real(collection, Entries(entries.ids[:1], entries.vectors[:1], entries.payload[:1], entries.full[:1]))
        fall_silent(other)
        other.remove([2])
        assert sound(other) == PLACES
        if published:
            other.calibrate(camera, "night")
        return real(collection, entries)

    monkeypatch.setattr(edits, "write_entries", write_slowly)
    assert town.add(new).added == [PLACES, PLACES + 1, PLACES + 2]
    assert sound(town) == PLACES + 2
    assert len(list(town.records())) == PLACES + 2
    assert town.storage.versions.now(fresh=True).header.placed == PLACES + 2


@pytest.mark.parametrize("copied", [True, False], ids=["before", "after"])
def test_an_addition_that_was_taken_for_dead_leaves_no_rows_in_the_previous_version(
    copied, town, another, camera, tmp_path, monkeypatch
):
    new = [photo(tmp_path / "new" / f"@{place}@{place}@.png", place) for place in (40, 41)]
    real, other = edits.write_entries, another()

    def write_late(collection, entries):
        monkeypatch.setattr(edits, "write_entries", real)
        fall_silent(other)
        other.remove([2])
        if copied:  # no header counts these rows when they are calibrated
            real(collection, entries)
        other.calibrate(camera, "night")
        return real(collection, entries)

    monkeypatch.setattr(edits, "write_entries", write_late)
    assert town.add(new).added == [PLACES, PLACES + 1]
    assert sound(town) == PLACES + 1
    town.storage.rollback()
    assert sound(town) == len(list(town.records())) == PLACES - 1
    town.storage.rollback()
    town.activate(None)
    assert sound(town) == len(list(town.records())) == PLACES + 1


def rebuild_when(claimed, town, url, size, tmp_path, monkeypatch):
    """Publish another map at the URL after the first swap of the header, or before the second one."""
    paths = [photo(tmp_path / "rebuilt" / f"@{place}@{place}@.png", 30 + place) for place in range(size)]
    rebuilt = PlaceMap.build(paths, head="second-order", encoder=FakeEncoder(), spec=SPEC)
    store, swaps = town.storage.store, []
    real = store.swap

    def publish():
        monkeypatch.setattr(store, "swap", real)
        rebuilt.publish(url, dims=64)

    def swap(key, old, new):
        swaps.append(key)
        if len(swaps) == 2:
            publish()
        swapped = real(key, old, new)
        if claimed and len(swaps) == 1:
            publish()
        return swapped

    monkeypatch.setattr(store, "swap", swap)


@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "written"])
@pytest.mark.parametrize("size", [PLACES - 5, PLACES, PLACES + 6])
def test_an_addition_to_a_map_that_is_rebuilt_meanwhile_is_refused(town, url, size, claimed, tmp_path, monkeypatch):
    new = photo(tmp_path / "@1@2@.png", 80)
    rebuild_when(claimed, town, url, size, tmp_path, monkeypatch)
    with pytest.raises(StoreConflict, match="town was rebuilt during the addition; nothing was added"):
        town.add([new])
    assert sound(town) == size
    assert [record.id for record in town.records()] == list(range(size))
    assert all("rebuilt" in record.path for record in town.records())
    assert len(town.query(new, k=99)) == size
    town.storage.rollback()
    fall_silent(town)
    edits.settle_edits(town.storage.versions)
    assert sound(town) == PLACES
    assert town.add([new]).added == [max(size, PLACES + 1)]
    assert sound(town) == PLACES + 1


@pytest.mark.parametrize("claimed", [True, False], ids=["hidden", "deleted"])
def test_a_removal_deletes_no_image_of_a_map_that_is_rebuilt_meanwhile(town, url, claimed, tmp_path, monkeypatch):
    rebuild_when(claimed, town, url, PLACES, tmp_path, monkeypatch)
    assert town.remove([2, 3]).removed == [2, 3]
    assert sound(town) == PLACES
    town.storage.rollback()
    fall_silent(town)
    edits.settle_edits(town.storage.versions)
    assert sound(town) == PLACES - 2


@pytest.mark.parametrize("image", [5, "@5@5@.png"])
def test_a_removal_of_images_that_a_rebuilt_map_names_otherwise_is_refused(town, url, image, tmp_path, monkeypatch):
    paths = [photo(tmp_path / "rebuilt" / f"@{place}@{place}@.png", 60 + place) for place in range(PLACES)]
    rebuilt = PlaceMap.build(paths, head="second-order", encoder=FakeEncoder(), spec=SPEC)
    find = StoreStorage.find_records

    def find_before_the_rebuild(storage, photos):
        found = find(storage, photos)
        rebuilt.publish(url, dims=64)
        return found

    monkeypatch.setattr(StoreStorage, "find_records", find_before_the_rebuild)
    with pytest.raises(StoreConflict, match="town was rebuilt during the removal; list its images and remove them"):
        town.remove([image])
    assert sound(town) == PLACES


def test_moments_of_edits_do_not_pile_up(town, tmp_path):
    for place in (40, 41, 42):
        town.add([photo(tmp_path / f"{place}.png", place)])
    header = town.storage.versions.now(fresh=True).header
    kept = [key for key in town.storage.store.keys("town/") if "moments" in key]
    assert kept == [header.moments]
    assert read_moments(town.storage.store, header.moments).count == PLACES + 3


def test_sessions_filter_what_was_added_with_them(town, tmp_path, dusk):
    night = town.add([photo(tmp_path / f"n{place}.png", place, light=0.9) for place in (5, 6)], session="night").added
    town.use_encoder(town.options)
    town._encoder = FakeEncoder()
    assert {hit.id for hit in town.query(dusk, k=9, sessions=("night",))} == set(night)
    assert town.query(dusk, k=9, sessions=("nobody",)).hits == []
    whole = {hit.id: hit for hit in town.query(dusk, k=99, rerank=False)}
    for hit in town.query(dusk, k=9, sessions=("night",), rerank=False):
        assert hit.score == whole[hit.id].score


def test_heartbeats_do_not_change_the_revision(town, another, tmp_path, monkeypatch):
    monkeypatch.setattr(header_module, "_HEARTBEAT", 0.02)
    real, other = edits.write_entries, another()

    def write_slowly(*given):
        before = other.storage.versions.now(fresh=True)
        wait_until(lambda: other.storage.versions.now(fresh=True).content != before.content)
        after = other.storage.versions.now(fresh=True)
        assert after.header.revision == before.header.revision
        assert other.remove([2], revision=after.header.revision).removed == [2]
        return real(*given)

    monkeypatch.setattr(edits, "write_entries", write_slowly)
    assert town.add([photo(tmp_path / "new.png", 40)]).added == [PLACES]


def test_a_rebuild_after_the_revision_was_compared_is_noticed(town, monkeypatch, url, tmp_path):
    paths = [photo(tmp_path / "rebuilt" / f"@{place}@{place}@.png", 30 + place) for place in range(PLACES)]
    rebuilt = PlaceMap.build(paths, head="second-order", encoder=FakeEncoder(), spec=SPEC)
    storage, real = town.storage, town.storage.snapshot
    revision = storage.versions.now(fresh=True).header.revision

    def publish_afterwards(**given):
        found = real(**given)
        monkeypatch.setattr(storage, "snapshot", real)
        rebuilt.publish(url, dims=64)
        return found

    monkeypatch.setattr(storage, "snapshot", publish_afterwards)
    with pytest.raises(StoreConflict, match="was rebuilt"):
        town.remove([3], revision=revision)
    assert sound(town) == PLACES

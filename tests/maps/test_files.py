"""Maps on disk: a written map reads back equal, and a damaged one is refused."""

import json
import os
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, killed_before_the_header, photo, reopened, scores
from tfa.core import files as storage
from tfa.core.files import map_tensors, write_tensors
from tfa.errors import BadMap, UnknownImage
from tfa.maps import PlaceMap, state, upkeep
from tfa.maps.folder import format, writer
from tfa.maps.stored_head import read_rows
from tfa.types import ImageRecord


def test_a_map_survives_the_disk_bit_for_bit(place_map, saved, town):
    again = reopened(saved)
    np.testing.assert_array_equal(scores(again, sorted(town.iterdir())), scores(place_map, sorted(town.iterdir())))
    assert again.images == place_map.images
    assert again.info().to_dict()["evidence"] == place_map.info().to_dict()["evidence"]
    arrays = [part.gallery.chunks[0] for part in again.state.head.scorer.terms]
    assert all(isinstance(a, np.memmap) and a.dtype == np.float16 for a in arrays)


def test_saving_refuses_to_overwrite_by_accident(place_map, saved, tmp_path):
    with pytest.raises(BadMap, match="exists"):
        place_map.save(saved)
    place_map.save(saved, overwrite=True)
    assert len(reopened(saved)) == 14
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("x")
    with pytest.raises(BadMap, match="not a map"):
        place_map.save(tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def edit_header(path, **changes):
    values = json.loads((path / "map.json").read_text())
    (path / "map.json").write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: edit_header(p, format_version=99), "format version 99"),
        (
            lambda p: edit_header(p, format="tfa-map"),
            r"'tfa-map', must be 'tfa-place-map'; .* tfa build PHOTOS --out .* --force",
        ),
        (lambda p: edit_header(p, next_id=3), "edited or damaged"),
        (lambda p: edit_header(p, format="zip"), "'zip'"),
        (lambda p: (p / "map.json").write_text("{"), "not a readable header"),
        (lambda p: (p / "map.json").write_text("[]"), "not a readable header"),
        (lambda p: (p / "map.json").unlink(), "has no map.json"),
        (lambda p: next(p.glob("head-*")).unlink(), "is missing"),
        (lambda p: os.truncate(next(p.glob("gallery-*")), 100), "truncated"),
    ],
)
def test_a_damaged_map_is_refused(saved, damage, message):
    damage(saved)
    with pytest.raises(BadMap, match=message):
        PlaceMap.load(saved)


@pytest.mark.parametrize("role", ["head", "gallery"])
def test_a_changed_byte_is_seen_when_checksums_are_asked_for(saved, role, monkeypatch):
    file = next(saved.glob(f"{role}-*"))
    flip_byte(file)
    with pytest.raises(BadMap, match="sha256 differs"):
        PlaceMap.load(saved, checksum=True)
    read = []
    monkeypatch.setattr(format, "hash_file", read.append)
    PlaceMap.load(saved)
    assert read == []  # sizes only: a large map opens at once


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[-8] ^= 0x01
    path.write_bytes(bytes(content))


def test_a_missing_map_says_how_to_build_one(tmp_path):
    with pytest.raises(BadMap, match="tfa build"):
        PlaceMap.load(tmp_path / "nowhere.tfa")


def test_header_names_no_path_outside(saved):
    values = json.loads((saved / "map.json").read_text())
    values.pop("digest")
    values["files"][0]["name"] = "../evil.safetensors"
    (saved / "map.json").write_text(json.dumps({**values, "digest": storage.hash_json(values)}))
    with pytest.raises(BadMap):
        PlaceMap.load(saved)


# --- edits -------------------------------------------------------------------------------------------------------


def test_add_and_remove_in_place(saved, town, tmp_path, cache):
    editor = reopened(saved)
    before = {name: (saved / name).stat().st_mtime_ns for name in os.listdir(saved) if name != "map.json"}
    report = editor.add([photo(tmp_path / "new.png", 77)])
    assert report.added == [14]
    assert editor.query(tmp_path / "new.png", k=1)[0].id == 14
    again = reopened(saved)
    assert len(again) == 15
    assert again.query(tmp_path / "new.png", k=1)[0].id == 14
    for name, time in before.items():
        assert (saved / name).stat().st_mtime_ns == time  # an addition rewrites nothing but the header

    report = again.remove([str(town / "03.png"), 14])
    assert report.removed == [3, 14]
    for opened in (again, reopened(saved)):
        assert len(opened) == 13
        ids = {hit.id for hit in opened.query(town / "03.png", k=99)}
        assert 3 not in ids
        assert len(ids) == 13
        assert opened.query(town / "05.png", k=1)[0].id == 5


def test_removing_says_what_stays_and_refit_forgets_it(town, tmp_path, cache):
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    built.save(tmp_path / "m.tfa")
    report = built.remove([0, 1])
    assert any("to fit the head without them, run tfa refit" in note for note in report.notes)
    assert built.info().to_dict()["removed_images"] == 2
    built.refit()
    opened = reopened(tmp_path / "m.tfa")
    assert opened.info().to_dict()["removed_images"] == 0
    assert opened.info().to_dict()["fitted_images"] == 12
    assert sorted(record.id for record in opened.images) == list(range(2, 14))
    assert opened.add([photo(tmp_path / "later.png", 50)]).added == [14]  # ids are never given twice
    # Header, head, vocabularies, compaction, and for each of two segments gallery, images and compact tokens.
    assert len(list((tmp_path / "m.tfa").iterdir())) == 10


def test_refit_equals_a_fresh_build(saved, town, tmp_path, cache):
    editor = reopened(saved)
    more = [photo(town / f"more{i}.png", 100 + i) for i in range(6)]
    notes = editor.add(more).notes
    assert any("not fitted on 30% of the photos" in note for note in notes)
    assert editor.unseen_share == pytest.approx(0.3)
    editor.refit()
    assert editor.unseen_share == 0
    fresh = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=editor.state.map_spec)
    np.testing.assert_array_equal(
        scores(reopened(saved), sorted(town.iterdir())), scores(fresh, sorted(town.iterdir()))
    )


def test_few_additions_need_no_refit(saved, tmp_path, cache):
    assert reopened(saved).add([photo(tmp_path / "a.png", 60)]).notes == []


def test_added_rows_are_those_a_query_would_have(saved, town, tmp_path, cache):
    """A photo added twice under two names scores like itself: the frozen head describes it as it would a query."""
    editor = reopened(saved)
    editor.add([photo(tmp_path / "copy.png", 6)])
    found = scores(editor, sorted(town.iterdir()))
    np.testing.assert_array_equal(found[:, 14], found[:, 6])


def test_many_small_additions_are_joined(saved, tmp_path, cache):
    editor = reopened(saved)
    for i in range(writer.MAX_SEGMENTS + 3):
        editor.add([photo(tmp_path / f"n{i}.png", 200 + i)])
    opened = reopened(saved)
    assert len(opened) == 14 + writer.MAX_SEGMENTS + 3
    assert len([entry for entry in opened.state.files if entry["role"] == "gallery"]) <= writer.MAX_SEGMENTS
    for i in (0, writer.MAX_SEGMENTS, writer.MAX_SEGMENTS + 2):
        assert opened.query(tmp_path / f"n{i}.png", k=1)[0].id == 14 + i
    opened.save(tmp_path / "copy.tfa")
    assert reopened(tmp_path / "copy.tfa").query(tmp_path / "n4.png", k=1)[0].id == 18


def test_adding_what_is_there_changes_nothing(saved, town, cache):
    editor = reopened(saved)
    report = editor.add([town / "00.png"])
    assert report.added == []
    assert "already" in report.notes[0]
    assert len(reopened(saved)) == 14


def test_unknown_and_ambiguous_names(saved, town, tmp_path, cache):
    editor = reopened(saved)
    with pytest.raises(UnknownImage, match="not in the map"):
        editor.remove(["zebra.png"])
    with pytest.raises(UnknownImage):
        editor.remove([99])
    editor.add([photo(tmp_path / "other" / "00.png", 61)])
    with pytest.raises(UnknownImage, match="matches 2 photos"):
        editor.remove(["00.png"])
    for image in (True, 1.5, None, b"00.png"):
        with pytest.raises(UnknownImage, match=r"^\S+ is not in the map; list its images"):
            editor.remove([image])
    assert editor.remove(["other/00.png", np.int64(1)]).removed == [1, 14]
    assert len(reopened(saved)) == 13  # the failed removals removed nothing


def test_an_image_that_answers_is_found_by_its_digest_before_a_removed_copy(saved, town, tmp_path):
    editor, copy = reopened(saved), tmp_path / "copy.png"
    shutil.copy(town / "05.png", copy)
    digest = editor.images[5].digest
    assert editor.remove(editor.add([copy]).added).removed == [14]
    assert editor.storage.find_digests([digest, "none"]) == {digest: 5}
    editor.remove([5])
    assert list(editor.storage.find_digests([digest])) == [digest]  # as long as its row is stored


def test_photos_that_moved_leave_removed_additions_behind(saved, town, tmp_path):
    editor = reopened(saved)
    editor.add([photo(tmp_path / f"{place}.png", place) for place in (40, 41)])
    editor.remove([2, 14])
    upkeep.relocate_photos(editor, town, town.rename(tmp_path / "moved"))
    again = reopened(saved)
    assert again.state.removed == {2}  # the head is fitted on it
    assert [record.id for record in again.state.images] == [*range(14), 15]
    assert again.query(tmp_path / "41.png", k=1)[0].id == 15


def test_many_names_are_looked_up_by_an_index(monkeypatch):
    records = [ImageRecord(id=i, path=f"/photos/{i % 50}/{i}.jpg", digest="", fitted=True) for i in range(2000)]
    made = []
    monkeypatch.setattr(upkeep, "Path", lambda name: made.append(name) or Path(name))
    names = [f"{i % 50}/{i}.jpg" for i in range(0, 2000, 2)]
    assert [record.id for record in upkeep.find_image_records(records, names)] == list(range(0, 2000, 2))
    assert len(made) < 10 * len(names)  # and not names times records


def test_a_map_edited_elsewhere_is_not_overwritten(saved, cache):
    one, other = reopened(saved), reopened(saved)
    one.remove([0])
    with pytest.raises(BadMap, match="another process"):
        other.remove([1])


def test_a_map_can_be_emptied(saved, town):
    editor = reopened(saved)
    editor.remove(list(range(14)))
    assert editor.query(town / "00.png").hits == []
    assert len(reopened(saved)) == 0


def test_refit_after_the_cache_was_lost(saved, town, tmp_path, monkeypatch, cache):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty"))
    editor = reopened(saved)
    editor.refit()  # encodes the photos again
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty2"))
    photo(town / "02.png", 900)
    with pytest.raises(BadMap, match=r"02\.png is not the photo"):
        reopened(saved).refit()
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty3"))
    (town / "02.png").unlink()
    with pytest.raises(BadMap, match="neither in the token cache nor on disk"):
        reopened(saved).refit()


def test_a_failed_edit_leaves_the_map_as_it_was(saved, tmp_path, monkeypatch, cache):
    editor = reopened(saved)
    monkeypatch.setattr(writer, "write_json", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        editor.add([photo(tmp_path / "x.png", 70)])
    assert len(editor) == 14
    assert len(reopened(saved)) == 14


@pytest.mark.kill
def test_a_kill_before_the_header_is_replaced_changes_nothing(saved, tmp_path, cache):
    new = photo(tmp_path / "x.png", 70)
    assert killed_before_the_header(saved, "opened.add([sys.argv[2]])", new) == -9
    opened = reopened(saved)
    assert len(opened) == 14
    assert opened.add([new]).added == [14]  # and the next edit works
    assert len(reopened(saved)) == 15


def test_overwriting_is_one_step_too(place_map, saved, town, cache, monkeypatch):
    other = PlaceMap.build([town / f"{i:02d}.png" for i in range(5)], head="paper", encoder=FakeEncoder(), spec=SPEC)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_json", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            other.save(saved, overwrite=True)
    assert len(reopened(saved)) == 14
    other.save(saved, overwrite=True)
    assert len(reopened(saved)) == 5
    reopened(saved).remove([0])  # the files of the map before stay for one more edit
    assert len(list(saved.iterdir())) == 7


def test_a_damaged_map_can_be_overwritten(place_map, saved):
    (saved / "map.json").write_text("{")
    place_map.save(saved, overwrite=True)
    assert len(reopened(saved)) == 14


@pytest.fixture(scope="module")
def second_order(tmp_path_factory):
    """A map of the default head, and one of its photos."""
    root = tmp_path_factory.mktemp("sums")
    photos = [photo(root / "town" / f"{place:02d}.png", place) for place in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(root / "cache"))
        PlaceMap.build(root / "town", encoder=FakeEncoder()).save(root / "town.tfa")
    return root / "town.tfa", photos[3]


def query_copy(place_map, path, query):
    place_map.save(path)
    reopened(path).query(query)


ROLES = ("images", "gallery", "space", "coordinates", "compaction", "tokens")


@pytest.mark.parametrize("role", ROLES)
def test_damage_is_noticed_by_the_first_query(second_order, role, tmp_path):
    path = shutil.copytree(second_order[0], tmp_path / "town.tfa")
    file = next(path.glob(f"{role}-*"))
    if role == "images":
        file.write_text(file.read_text().replace("03.png", "02.png"))
    else:
        content = file.read_bytes()
        file.write_bytes(content[:-64] + bytes(255 - byte for byte in content[-64:]))
    damaged = PlaceMap.load(path, encoder=FakeEncoder())
    with pytest.raises(BadMap, match=r"checksum differs.*rebuild the map"):
        damaged.query(second_order[1])
    with pytest.raises(BadMap, match="checksum differs"):  # nor does a copy hide the damage
        query_copy(damaged, tmp_path / "copy.tfa", second_order[1])


def test_files_are_compared_once_and_only_those_of_the_head_that_answers(second_order, cache, tmp_path, monkeypatch):
    path = shutil.copytree(second_order[0], tmp_path / "town.tfa")
    opened = PlaceMap.load(path, encoder=FakeEncoder())
    opened.calibrate([photo(tmp_path / f"{place}.png", place, light=0.8) for place in range(8)], name="day")
    read, real = [], zlib.crc32
    spy = SimpleNamespace(crc32=lambda content: read.append(content.obj.filename.stem) or real(content))
    monkeypatch.setattr(state, "zlib", spy)
    opened = PlaceMap.load(path, encoder=FakeEncoder())
    assert read == []  # a large map opens at once
    opened.query(second_order[1], calibration="none")
    first = [f"{role}-r000001" for role in ("compaction", "coordinates", "gallery", "head", "images", "space")]
    assert sorted(read) == first
    opened.query(second_order[1], calibration="none")
    assert sorted(read) == first
    opened.query(second_order[1], calibration="day")
    assert read[len(first) :] == ["head-day-r000002", "gallery-day-r000002"]


def test_maps_without_fast_checksums_answer(second_order, cache, tmp_path):
    path = shutil.copytree(second_order[0], tmp_path / "town.tfa")
    [tokens] = path.glob("tokens-*")
    arrays, metadata = map_tensors(tokens)
    written = write_tensors(tokens, {"patches": arrays["patches"]}, metadata)
    files = [
        {key: value for key, value in entry.items() if key != "crc32"}
        | ({"bytes": written.bytes, "sha256": written.sha256} if entry["role"] == "tokens" else {})
        for entry in json.loads((path / "map.json").read_text())["files"]
    ]
    header = {**json.loads((path / "map.json").read_text()), "files": files}
    edit_header(path, files=files, digest=format.compute_digest(header))
    opened = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
    assert opened.state.compact.sums is None
    [before, after] = [one.query(second_order[1]) for one in (reopened(second_order[0]), opened)]
    assert [hit.id for hit in before] == [hit.id for hit in after]
    opened.add([photo(tmp_path / "new.png", 50)])
    again = PlaceMap.load(path, encoder=FakeEncoder())
    assert again.state.compact.sums is None  # as long as one segment has none
    again.save(tmp_path / "copy.tfa")
    assert len(reopened(tmp_path / "copy.tfa").state.compact.sums) == 9
    assert again.query(tmp_path / "new.png").hits[0].id == 8


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": np.zeros((2, 3), np.int8), "a.step": np.zeros((), np.float32)},
        {"a": np.zeros((2, 3, 1), np.int8), "a.step": np.zeros(2, np.float32)},
        {"a": np.zeros((2, 3), np.int8), "a.step": np.zeros(2, np.float32), "a.fine": np.zeros((2, 2), np.int8)},
        {"a": np.zeros(6, np.float16)},
    ],
)
def test_rows_that_do_not_fit_their_steps_are_refused(tensors):
    with pytest.raises(ValueError, match="do not fit"):
        read_rows("a", tensors, None)

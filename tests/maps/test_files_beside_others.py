"""Maps that move with their photos, and maps that are read while they are written."""

import json
import shutil
import threading

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo, reopened, scores
from tfa.core.files import hash_file
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.folder import reader, writer
from tfa.maps.folder.format import compute_digest

# --- where the photos are ----------------------------------------------------------------------------------------


def test_paths_are_kept_relative_to_the_photos(saved, town, tmp_path, cache):
    editor = reopened(saved, cache)
    editor.add([photo(tmp_path / "elsewhere" / "new.png", 77), photo(town / "sub" / "late.png", 78)])
    editor.add([photo(saved / "photos" / "ab" / "upload.png", 79)])
    paths = [record["path"] for file in sorted(saved.glob("images-*")) for record in json.loads(file.read_text())]
    assert paths[:2] == ["00.png", "01.png"]
    assert paths[14:] == [str(tmp_path / "elsewhere" / "new.png"), "sub/late.png", "map:photos/ab/upload.png"]
    assert [record.path for record in reopened(saved).images] == [record.path for record in editor.images]
    assert reopened(saved).info().to_dict()["photo_root"] == str(town)


def test_a_map_that_moves_with_its_photos_finds_them(saved, town, tmp_path, cache, monkeypatch):
    reopened(saved, cache).add([photo(saved / "photos" / "ab" / "upload.png", 79)])
    there = tmp_path / "another" / "place"
    there.mkdir(parents=True)
    town.rename(there / "town")
    saved.rename(there / "town.tfa")
    moved = reopened(there / "town.tfa")
    assert moved.images[3].path == str(there / "town" / "03.png")
    assert moved.images[14].path == str(there / "town.tfa" / "photos" / "ab" / "upload.png")
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "empty"))
    moved.refit()  # encodes every photo again
    assert reopened(there / "town.tfa").state.photo_root == str(there / "town")
    (there / "town").rename(tmp_path / "gone")  # nowhere to be found: the path it had
    assert reopened(there / "town.tfa").images[3].path == str(there / "town" / "03.png")


# --- readers beside a writer -------------------------------------------------------------------------------------


def committed_between(monkeypatch, edit, times=1):
    """Let `edit` run after the reader has the header and before it looks at the first file."""
    real, left = reader.check_file, [times]

    def racing(*given):
        if left[0] > 0:
            left[0] -= 1
            edit()
        real(*given)

    monkeypatch.setattr(reader, "check_file", racing)


def test_a_reader_finds_the_files_of_the_header_it_has(saved, town, cache, monkeypatch):
    editor = reopened(saved, cache)
    expected = scores(editor, sorted(town.iterdir()))
    committed_between(monkeypatch, editor.refit)
    opened = reopened(saved)  # the old files are still there
    assert opened.state.revision == 1
    np.testing.assert_array_equal(scores(opened, sorted(town.iterdir())), expected)


def test_a_reader_that_was_overtaken_twice_reads_the_newer_map(saved, cache, monkeypatch):
    editor = reopened(saved, cache)
    committed_between(monkeypatch, lambda: (editor.refit(), editor.remove([0])))
    opened = reopened(saved)
    assert (opened.state.revision, len(opened)) == (3, 13)


def test_a_reader_that_is_overtaken_many_times_reads_the_newest_map_in_the_end(saved, cache, monkeypatch):
    editor = reopened(saved, cache)
    committed_between(monkeypatch, lambda: (editor.refit(), editor.refit()), times=5)
    assert reopened(saved).state.revision == 11


def test_a_reader_pairs_no_header_with_files_of_another_map_at_its_path(saved, tmp_path, monkeypatch):
    other = shutil.copytree(saved, tmp_path / "other.tfa")
    images = other / "images-r000001.json"
    images.write_text(images.read_text().replace("00.png", "99.png"))  # of equal size
    header = json.loads((other / "map.json").read_text())
    for entry in header["files"]:
        entry["sha256"] = hash_file(other / entry["name"])
    header["digest"] = compute_digest(header)
    (other / "map.json").write_text(json.dumps(header))

    def replace_folder():
        saved.rename(tmp_path / "aside.tfa")
        other.rename(saved)

    committed_between(monkeypatch, replace_folder)
    opened = reopened(saved)
    assert opened.images[0].path.endswith("99.png")
    assert opened.state.digest == header["digest"]


def test_reading_while_another_process_edits(saved, cache):
    """No reader is refused while refits and removals are committed as fast as they can be."""
    editor = reopened(saved, cache)
    stop, refused, seen = threading.Event(), [], set()

    def read():
        while not stop.is_set():
            try:
                seen.add(PlaceMap.load(saved, encoder=FakeEncoder()).state.revision)
            except BadMap as error:
                refused.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for image in range(4):
            editor.refit()
            editor.remove([image])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert refused == []
    assert len(seen) > 1


def test_an_edit_under_way_is_not_disturbed(saved):
    one = reopened(saved)
    with writer.hold_for_edit(saved), pytest.raises(BadMap, match="being edited"):
        one.remove([0])
    assert one.remove([0]).removed == [0]


def test_a_file_given_twice_is_added_once(saved, tmp_path, cache):
    new = photo(tmp_path / "new.png", 77)
    (tmp_path / "x").mkdir()
    report = reopened(saved).add([new, tmp_path / "x" / ".." / "new.png", new])
    assert report.added == [14]
    assert len(reopened(saved)) == 15


def test_litter_of_a_killed_writer_is_tidied_by_the_next_edit(saved):
    (saved / ".gallery-r000009.safetensors.abc.tmp").write_bytes(b"half")
    (saved / ".map.json.xyz.tmp").write_bytes(b"half")
    reopened(saved).remove([1])
    assert not [f.name for f in saved.iterdir() if f.name.startswith(".")]

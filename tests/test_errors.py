"""Errors list the local files and folders that their message names."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tfa.errors import BadMap, DiskFull, NoImages, OutOfResources, TfaError, from_os_error
from tfa.maps import PlaceMap
from tfa.photos.images import find_images


def test_of_its_paths_an_error_shows_others_the_last_name_alone():
    folder = Path("/srv/maps of ours/town.tfa")
    error = BadMap(f"{folder / 'map.json'} is no header of {folder}; see http://a.b/c/d and /v1/images", folder)
    assert str(error).startswith("/srv/maps of ours/town.tfa/map.json is no header of /srv/")
    assert error.public == "town.tfa/map.json is no header of town.tfa; see http://a.b/c/d and /v1/images"
    both = TfaError(f"{folder / 'a.jpg'} is not in {folder}", folder, folder / "a.jpg")
    assert both.public == "a.jpg is not in town.tfa"
    assert TfaError("k=0 is out of range").public == "k=0 is out of range"


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(4):
        photo(tmp_path / "town" / f"{place}.png", place)
    PlaceMap.build(tmp_path / "town", head="paper", encoder=FakeEncoder(), spec=SPEC).save(tmp_path / "town.tfa")
    return tmp_path


def damage_header(folder):
    (folder / "town.tfa" / "map.json").write_text("{")


def truncate(folder):
    file = next((folder / "town.tfa").glob("gallery-*"))
    file.write_bytes(file.read_bytes()[:-1])


def remove_file(folder):
    next((folder / "town.tfa").glob("images-*")).unlink()


def lose_photos(folder):
    for path in (*(folder / "cache").rglob("*.safetensors"), folder / "town" / "1.png"):
        path.unlink()


def break_photo(folder):
    for path in (folder / "cache").rglob("*.safetensors"):
        path.unlink()
    (folder / "town" / "1.png").write_bytes(b"no photo")


def another_photo(folder):
    for path in (folder / "cache").rglob("*.safetensors"):
        path.unlink()
    photo(folder / "town" / "1.png", 77)


@pytest.mark.parametrize("spoil", [damage_header, truncate, remove_file, lose_photos, break_photo, another_photo])
def test_errors_of_a_map_declare_their_paths(town, spoil):
    spoil(town)
    with pytest.raises(TfaError) as caught:
        PlaceMap.load(town / "town.tfa", encoder=FakeEncoder()).refit()
    assert str(town) in str(caught.value)
    assert str(town) not in caught.value.public


def test_errors_of_photos_declare_their_paths(town):
    place_map = PlaceMap.load(town / "town.tfa", encoder=FakeEncoder())
    (town / "empty").mkdir()
    for photos in (town / "nowhere", town / "empty"):
        with pytest.raises(NoImages) as missing:
            find_images(photos)
        assert str(town) not in missing.value.public
    with pytest.raises(TfaError) as known:
        place_map.calibrate(town / "town")
    assert str(town) in str(known.value)
    assert str(town) not in known.value.public


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/srv/a.bin"), DiskFull, "the disk is full at /srv/a.bin"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull, "the disk is full at /srv/town.tfa"),
        (OSError(errno.EMFILE, "Too many open files", "/srv/a.bin"), OutOfResources, "too many open files at"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfResources, "out of memory"),
        (MemoryError("Unable to allocate 3 GiB"), OutOfResources, r"out of memory \(Unable to allocate 3 GiB\)"),
    ],
)
def test_what_ran_out_is_said(given, kind, words):
    error = from_os_error(given, "/srv/town.tfa")
    assert isinstance(error, kind)
    with pytest.raises(kind, match=words):
        raise error
    assert "/srv" not in error.public


def test_other_objections_of_the_system_stay_what_they_are():
    assert from_os_error(PermissionError(errno.EACCES, "Permission denied", "/srv/a.bin")) is None


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        SystemError("<ufunc 'subtract'> returned NULL without setting an exception"),
        ImportError("numpy.so: failed to map segment from shared object"),
    ],
)
def test_every_form_of_too_little_memory_is_reported_as_such(error):
    known = from_os_error(error)
    assert isinstance(known, OutOfResources)
    assert "out of memory" in str(known)


def test_other_runtime_errors_are_not_taken_for_too_little_memory():
    assert from_os_error(RuntimeError("no kernel for this type")) is None

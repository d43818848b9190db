"""`tfa relocate`: maps whose photos were moved."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import new_url
from tfa.maps import PlaceMap
from tfa.maps.upkeep import relocate_photos


@pytest.fixture
def moved(fake_encoder: Path) -> Path:
    """A map with a segment of added photos, and its photos in another folder."""
    for place in range(6):
        photo(Path("photos", "a" if place < 3 else "b", f"{place}.png"), place)
    built = PlaceMap.build("photos", head="second-order", encoder=FakeEncoder(), spec=SPEC)
    built.save("town.tfa")
    built.add([photo(Path("photos/new.png"), 7), photo(Path("elsewhere/8.png"), 8)])
    built.remove([1])
    shutil.move("photos", "disk")
    return fake_encoder


def list_paths(path: str | Path = "town.tfa") -> list[str]:
    return [str(Path(image.path).relative_to(Path.cwd())) for image in PlaceMap.load(path).images]


NEW = [*(f"disk/{name}.png" for name in ("a/0", "a/2", "b/3", "b/4", "b/5", "new")), "elsewhere/8.png"]


def test_a_folder_map_finds_moved_photos(run, moved):
    result = run("relocate", "town.tfa", "photos", "disk")
    assert result.stdout == "relocated 6 images to disk\n"
    assert list_paths() == NEW
    opened = PlaceMap.load("town.tfa", checksum=True)
    assert opened.storage.read_photo(opened.images[0]) == Path("disk/a/0.png").read_bytes()
    assert opened.query("disk/b/4.png").hits[0].image == str(Path("disk/b/4.png").resolve())
    opened.add([photo(Path("disk/last.png"), 9)])
    assert list_paths() == [*NEW, "disk/last.png"]
    assert json.loads(Path("town.tfa/map.json").read_text())["photos"]["root"] == str(moved / "disk")


def test_missing_photos_are_counted(run, moved):
    Path("disk/b/4.png").unlink()
    result = run("relocate", "town.tfa", "photos", "disk", "--json")
    assert json.loads(result.stdout) == {"moved": 6, "missing": [str(moved / "disk/b/4.png")]}
    shutil.move("disk", "photos")
    assert "note: 1 photo not found there, such as" in run("relocate", "town.tfa", "disk", "photos").stderr


def test_part_of_the_photos_moves(run, moved):
    shutil.move("disk", "photos")
    shutil.move("photos/b", "b")
    assert run("relocate", "town.tfa", "photos/b/", "b").exit_code == 0
    assert list_paths()[:3] == ["photos/a/0.png", "photos/a/2.png", "b/3.png"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("pho", "disk", "no map image is in"),
        ("photos", "elsewhere", "none of the 6 photos is in"),
        ("photos", "x", "'x' does not exist"),
    ],
)
def test_a_wrong_folder_changes_nothing(run, moved, old, new, sentence):
    before = Path("town.tfa/map.json").read_bytes()
    refused = run("relocate", "town.tfa", old, new)
    assert refused.exit_code != 0
    assert sentence in " ".join(refused.stderr.split())
    assert Path("town.tfa/map.json").read_bytes() == before


def test_an_interrupted_relocation_changes_nothing(moved, monkeypatch):
    before, real = sorted(Path("town.tfa").iterdir()), os.replace

    def interrupt(source, target, **folders):
        if Path(target).name == "map.json":
            raise KeyboardInterrupt
        real(source, target, **folders)

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        relocate_photos(PlaceMap.load("town.tfa"), Path("photos"), Path("disk"))
    assert sorted(Path("town.tfa").iterdir()) == before
    assert list_paths()[0] == "photos/a/0.png"


def test_a_map_in_a_store_finds_moved_photos(run, moved):
    url = new_url("memory://test{n}")
    PlaceMap.load("town.tfa").publish(url, dims=64)
    assert run("relocate", url, "photos", "disk").stdout == "relocated 6 images to disk\n"
    assert list_paths(url) == NEW
    place_map = PlaceMap.load(url, encoder=FakeEncoder())
    assert place_map.query("disk/b/4.png", rerank=False).hits[0].image == str(Path("disk/b/4.png").resolve())
    assert {Path(image.path).parts[-3] for image in place_map.state.images[:6]} == {"disk"}
    assert run("rollback", url).exit_code == 0
    assert list_paths(url)[0] == "photos/a/0.png"

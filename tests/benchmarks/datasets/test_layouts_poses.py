"""Layouts whose positives are near: Baidu-Mall, UAV-VisLoc."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfa.evaluate.positives import earth_points
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts import uav_visloc
from tfa_bench.datasets.layouts.anyloc import camera
from tfa_bench.datasets.layouts.uav_visloc import east_and_north
from tfa_bench.datasets.load import load_dataset

UNTURNED = "1 0 0\n0 1 0\n0 0 1"
QUARTER = "0 -1 0\n1 0 0\n0 0 1"  # 90 degrees about z


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)


def mall(root: Path, split: str, name: str, centre: str, turn: str = UNTURNED) -> None:
    picture(root / f"{split}_images_undistort" / f"{name}.jpg")
    (root / f"{split}_gt").mkdir(exist_ok=True)
    text = f"{UNTURNED}\n0 0 0\n{turn}\n{centre}\n1280 720\n\n"
    (root / f"{split}_gt" / f"{name}.camera").write_text(text)


@pytest.fixture
def baidu(tmp_path: Path) -> Path:
    mall(tmp_path, "training", "a", "0 0 0")
    mall(tmp_path, "training", "b", "6 8 0", QUARTER)
    mall(tmp_path, "training", "c", "0 0 10.5")
    mall(tmp_path, "query", "q", "0 0 0")
    return tmp_path


def test_cameras_within_ten_metres_in_space_are_positives_the_border_included(baidu: Path) -> None:
    found = camera.load(baidu)
    assert [own.tolist() for own in found.positives] == [[0, 1]]
    assert [own.tolist() for own in camera.load(baidu, radius=11).positives] == [[0, 1, 2]]


def test_an_angle_narrows_positives_and_is_off_by_default(baidu: Path) -> None:
    found = camera.load(baidu, max_angle=20)
    assert [own.tolist() for own in found.positives] == [[0]]
    assert "20 degrees" in found.notes[0]
    assert [own.tolist() for own in camera.load(baidu, max_angle=90.001).positives] == [[0, 1]]


def test_a_broken_centre_is_named_with_its_line(baidu: Path) -> None:
    mall(baidu, "query", "q", "0 zero 0")
    with pytest.raises(BadDataset, match=r"q\.camera, line 8: '0 zero 0' is not a camera center"):
        camera.load(baidu)


def test_a_matrix_that_does_not_turn_is_an_error_when_angles_count(baidu: Path) -> None:
    mall(baidu, "query", "q", "0 0 0", "2 0 0\n0 1 0\n0 0 1")
    with pytest.raises(BadDataset, match="not a rotation"):
        camera.load(baidu, max_angle=20)
    assert camera.load(baidu).positives[0].tolist() == [0, 1]


def test_an_image_without_its_camera_file_is_an_error_that_names_it(baidu: Path) -> None:
    picture(baidu / "query_images_undistort" / "r.jpg")
    with pytest.raises(BadDataset, match=r"r\.camera is missing"):
        camera.load(baidu)


def test_a_camera_file_that_ends_early_is_an_error(baidu: Path) -> None:
    (baidu / "query_gt/q.camera").write_text("1 0 0\n")
    with pytest.raises(BadDataset, match="has 1 lines; a camera file has 9"):
        camera.load(baidu)


METRE = 1 / 111_320  # degrees of longitude at the equator, near enough


@pytest.fixture
def visloc(tmp_path: Path) -> Path:
    for name in ("01_0001.JPG", "01_0002.JPG", "01_0003.JPG"):
        picture(tmp_path / "01/drone" / name)
    rows = f"1,01_0001.JPG,x,0,10,400\n2,01_0002.JPG,x,0,{10 + 150 * METRE},400\n"
    (tmp_path / "01/01.csv").write_text("num,filename,date,lat,lon,height\n" + rows)
    for name in ("b.png", "a.png"):
        picture(tmp_path / "01/tiles" / name)
    tiles = f"b.png,0,{10 + 90 * METRE},80\na.png,0,{10 - 20 * METRE},80\n"
    (tmp_path / "01/tiles/tiles.csv").write_text("file,lat,lon,half_width\n" + tiles)
    return tmp_path


def test_tiles_within_a_hundred_metres_are_positives(visloc: Path) -> None:
    found = uav_visloc.load(visloc)
    assert [image.name for image in found.database] == ["a.png", "b.png"]
    assert [query.name for query in found.queries] == ["01_0001.JPG", "01_0002.JPG"]
    assert [own.tolist() for own in found.positives] == [[0, 1], [1]]
    assert "not public" in found.notes[0]
    assert "1 photos have no row" in found.notes[1]


def test_coverage_requires_that_a_tile_shows_the_position(visloc: Path) -> None:
    found = uav_visloc.load(visloc, coverage=True)
    assert [own.tolist() for own in found.positives] == [[0], [1]]


def test_the_card_requires_coverage(visloc: Path) -> None:
    assert [own.tolist() for own in load_dataset("uav-visloc", visloc).positives] == [[0], [1]]
    (visloc / "card.json").write_text('{"options": {"coverage": false}}')
    assert [own.tolist() for own in load_dataset("uav-visloc", visloc).positives] == [[0, 1], [1]]


def test_a_query_far_from_every_tile_has_no_positives(visloc: Path) -> None:
    assert [own.tolist() for own in uav_visloc.load(visloc, radius=1.0, coverage=True).positives] == [[], []]


def test_photos_may_be_named_by_number(visloc: Path) -> None:
    (visloc / "01/01.csv").write_text("num,lat,lon\n3,0,10\n")
    assert [query.name for query in uav_visloc.load(visloc).queries] == ["01_0003.JPG"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,lat,lon\na.png,0,east\n", r"tiles\.csv, line 2: 'east' is not a number for lon"),
        ("file,lat,lon\na.png,0,10\nc.png,0,10\n", r"tiles\.csv, line 3: 'c\.png' is not a file"),
        ("file,lat,lon\na.png,0,10\na.png,0,11\n", r"tiles\.csv, line 3: 'a\.png' is listed twice"),
        ("file,lat,lon\na.png,110,10\n", r"tiles\.csv, line 2: lat 110, lon 10 is not a position on Earth"),
        ("file,x,y\na.png,1,1\n", "no column lat or latitude"),
        ("file,lat,lon\n", "has no rows"),
    ],
)
def test_a_broken_table_of_tiles_is_named_with_its_line(visloc: Path, text: str, message: str) -> None:
    (visloc / "01/tiles/tiles.csv").write_text(text)
    with pytest.raises(BadDataset, match=message):
        uav_visloc.load(visloc)


def test_a_folder_without_maps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match="has no folder NN/drone"):
        uav_visloc.load(tmp_path)


def test_earth_points_are_metres_apart() -> None:
    # a degree of latitude at the equator is 110 574 m on the ellipsoid; the straight line is a metre shorter
    south, north = earth_points(np.array([[-0.5, 0.0], [0.5, 0.0]]))
    assert np.linalg.norm(north - south) == pytest.approx(110_573, abs=1)
    # along the equator it is a circle: a chord of one degree is 2 a sin(1/2 degree)
    west, east = earth_points(np.array([[0.0, 10.0], [0.0, 11.0]]))
    assert np.linalg.norm(east - west) == pytest.approx(2 * 6378137 * np.sin(np.radians(0.5)))
    offset = east_and_north(np.array([0.0, 0.0])) @ (north - south)
    assert offset == pytest.approx([0.0, np.linalg.norm(north - south)], abs=1)

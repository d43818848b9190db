"""Layouts whose positives are near: Baidu-Mall, UAV-VisLoc, 4Seasons, RobotCar Seasons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfa.bench.datasets.files import BadDataset
from tfa.bench.datasets.layouts import camera, poses_4seasons, robotcar, uav_visloc
from tfa.bench.datasets.layouts.earth import earth_points, east_and_north
from tfa.bench.datasets.layouts.pose_files import read_centres

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
    with pytest.raises(BadDataset, match=r"q\.camera, line 8: '0 zero 0' is not a camera centre"):
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
        ("file,lat,lon\na.png,110,10\n", r"tiles\.csv, line 2: lat 110, lon 10 is no place on Earth"),
        ("file,x,y\na.png,1,1\n", "no column lat or latitude"),
        ("file,lat,lon\n", "holds no row"),
    ],
)
def test_a_broken_table_of_tiles_is_named_with_its_line(visloc: Path, text: str, message: str) -> None:
    (visloc / "01/tiles/tiles.csv").write_text(text)
    with pytest.raises(BadDataset, match=message):
        uav_visloc.load(visloc)


def test_a_folder_without_maps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadDataset, match="holds no folder NN/drone"):
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


# A quarter turn about z from the GNSS frame to the world, and a shift; the scale doubles.
TRANSFORMATIONS = """# transform_S_AS: translation vector, rotation quaternion
0.0,0.0,0.0,0.0,0.0,0.0,1.0

# TS_cam_imu: translation vector, rotation quaternion
9,9,9,0,0,0,1

# transform_w_gpsw: translation vector, rotation quaternion
{shift},0.0,0.0,0.0,0.0,0.70710678,0.70710678

# transform_e_gpsw: translation vector, rotation quaternion
4164702.5,857109.7,4738828.7,0.0,0.0,0.0,1.0

# GNSS scale
2.0
"""


def recording(folder: Path, poses: str, shift: float, frames: tuple[int, ...] = (100, 200)) -> None:
    for stamp in frames:
        picture(folder / f"undistorted_images/cam0/{stamp}.png")
    (folder / "GNSSPoses.txt").write_text("# frame_id, tx, ty, tz, qx, qy, qz, qw, scale, quality, v3\n" + poses)
    (folder / "Transformations.txt").write_text(TRANSFORMATIONS.format(shift=shift))


@pytest.fixture
def seasons(tmp_path: Path) -> Path:
    recording(tmp_path / "reference", "100,0,0,0,0,0,0,1,2.0,1,0\n200,50,0,0,0,0,0,1,2.0,1,0\n", shift=0)
    # the query's frame starts 100 m further along, so its origin is where the reference is at x = 50 (times 2)
    recording(tmp_path / "query", "100 0 0 0 0 0 0 1\n300 50 0 0 0 0 0 1 2.0\n", shift=-100, frames=(100, 200, 300))
    return tmp_path


def test_recordings_meet_on_earth_not_in_their_own_frames(seasons: Path) -> None:
    found = poses_4seasons.load(seasons)
    assert [image.name for image in found.database] == ["100.png", "200.png"]
    assert [query.name for query in found.queries] == ["100.png", "300.png"]
    assert [own.tolist() for own in found.positives] == [[1], []]
    assert "not public" in found.notes[0]
    assert found.notes[1] == "query: 1 frames without a pose are left out"


def test_distances_carry_the_scale(seasons: Path) -> None:
    close = [len(own) for own in poses_4seasons.load(seasons, radius=99.9).positives]
    wide = [len(own) for own in poses_4seasons.load(seasons, radius=100.1).positives]
    assert close == [1, 0]
    assert wide == [2, 1]


def test_aligned_poses_need_no_transformations(seasons: Path) -> None:
    for folder in ("reference", "query"):
        (seasons / folder / "Transformations.txt").unlink()
    found = poses_4seasons.load(seasons, aligned=True)
    assert [own.tolist() for own in found.positives] == [[0], [1]]
    with pytest.raises(BadDataset, match=r"Transformations\.txt is missing"):
        poses_4seasons.load(seasons)


def test_the_chain_of_motions_is_undone_in_order(tmp_path: Path) -> None:
    (tmp_path / "Transformations.txt").write_text(TRANSFORMATIONS.format(shift=10))
    earth = poses_4seasons.on_earth(np.array([[5.0, 1.0, 0.0]]), np.array([2.0]), tmp_path / "Transformations.txt")
    # world (10, 2, 0); minus the shift (0, 2, 0); back by a quarter turn (2, 0, 0); plus the Earth's shift
    assert earth[0] == pytest.approx([4164704.5, 857109.7, 4738828.7], abs=1e-6)


def test_a_line_of_nan_is_a_frame_without_a_pose(seasons: Path) -> None:
    recording(seasons / "reference", "100,nan,nan,nan,nan,nan,nan,nan,2\n200,50,0,0,0,0,0,1,2\n", shift=0)
    found = poses_4seasons.load(seasons)
    assert [image.name for image in found.database] == ["200.png"]


@pytest.mark.parametrize(
    ("poses", "message"),
    [
        ("100,0,0,0\n", r"GNSSPoses\.txt, line 2: '100,0,0,0' is not a pose"),
        ("100,0,0,0,0,0,0,1\n200,a,0,0,0,0,0,1\n", r"GNSSPoses\.txt, line 3: .* is not a pose"),
        ("7,0,0,0,0,0,0,1\n", "has no timestamp of"),
    ],
)
def test_a_broken_pose_is_named_with_its_line(seasons: Path, poses: str, message: str) -> None:
    recording(seasons / "reference", poses, shift=0)
    with pytest.raises(BadDataset, match=message):
        poses_4seasons.load(seasons)


def test_transformations_without_a_motion_or_a_scale_are_errors(seasons: Path) -> None:
    file = seasons / "query/Transformations.txt"
    file.write_text(TRANSFORMATIONS.format(shift=0).replace("transform_e_gpsw", "transform_other"))
    with pytest.raises(BadDataset, match="lacks transform_e_gpsw"):
        poses_4seasons.load(seasons)
    file.write_text(TRANSFORMATIONS.format(shift=0).split("# GNSS scale")[0])
    with pytest.raises(BadDataset, match="give a scale"):
        poses_4seasons.load(seasons)
    file.write_text(TRANSFORMATIONS.format(shift=0).replace("0.0,0.0,0.70710678,0.70710678", "0,0,0,0"))
    with pytest.raises(BadDataset, match="line 8: transform_w_gpsw: the quaternion is zero"):
        poses_4seasons.load(seasons)


@pytest.fixture
def oxford(tmp_path: Path) -> Path:
    for name in ("overcast-reference/rear/1.jpg", "overcast-reference/rear/2.jpg", "overcast-reference/left/1.jpg"):
        picture(tmp_path / "images" / name)
    for name in ("dawn/rear/11.jpg", "dawn/rear/12.jpg", "snow/rear/13.jpg"):
        picture(tmp_path / "images" / name)
    (tmp_path / "3D-models/all-merged").mkdir(parents=True)
    images = (
        "./overcast-reference/rear/1.png 400 1 0 0 0 0 0 0 0 0",
        "./overcast-reference/rear/2.png 400 1 0 0 0 100 0 0 0 0",
    )
    model = "NVM_V3\n\n2\n" + "\n".join(images) + "\n\n1\n0 0 0 1 2 3 0\n"
    (tmp_path / "3D-models/all-merged/all.nvm").write_text(model)
    # camera to world, by rows: the centre (90, 0, 0) is the fourth column
    (tmp_path / "robotcar_v2_train.txt").write_text("dawn/rear/12.png 1 0 0 90 0 1 0 0 0 0 1 0 0 0 0 1\nrear/13.png\n")
    return tmp_path


def test_robotcar_matches_queries_with_a_pose_by_distance(oxford: Path) -> None:
    found = robotcar.load(oxford, conditions=("dawn", "snow"))
    assert [image.name for image in found.database] == ["1.jpg", "2.jpg"]
    assert [query.name for query in found.queries] == ["12.jpg"]
    assert [own.tolist() for own in found.positives] == [[1]]
    assert {name: own.tolist() for name, own in found.conditions.items()} == {"dawn": [0]}
    assert "2 queries without a pose" in found.notes[1]
    assert "no query is left of snow" in found.notes[2]


def test_positives_of_a_file_take_the_place_of_poses(oxford: Path) -> None:
    lists = {"images/snow/rear/13.jpg": ["images/overcast-reference/rear/2.jpg"], "11.jpg": []}
    (oxford / "positives.json").write_text(json.dumps(lists))
    found = robotcar.load(oxford, conditions=("dawn", "snow"))
    assert [query.name for query in found.queries] == ["11.jpg", "13.jpg"]
    assert [own.tolist() for own in found.positives] == [[], [1]]
    assert {name: own.tolist() for name, own in found.conditions.items()} == {"dawn": [0], "snow": [1]}


def test_all_nine_conditions_are_expected_by_default(oxford: Path) -> None:
    with pytest.raises(BadDataset, match="dusk/rear is missing"):
        robotcar.load(oxford)


def test_missing_poses_are_named(oxford: Path) -> None:
    (oxford / "robotcar_v2_train.txt").unlink()
    with pytest.raises(BadDataset, match=r"robotcar_v2_train\.txt is missing"):
        robotcar.load(oxford, conditions=("dawn",))


def test_queries_without_any_pose_are_an_error(oxford: Path) -> None:
    with pytest.raises(BadDataset, match="no query has a pose"):
        robotcar.load(oxford, conditions=("snow",))


def test_a_quaternion_pose_is_world_to_camera(tmp_path: Path) -> None:
    # R turns a quarter about z and t = (1, 0, 0): c = -Rᵀ t = (0, 1, 0)
    (tmp_path / "poses.txt").write_text("# name qw qx qy qz tx ty tz\n\na/b.jpg 0.70710678 0 0 0.70710678 1 0 0\n")
    assert read_centres(tmp_path / "poses.txt")["a/b.jpg"] == pytest.approx([0, 1, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 1 0 0 0 1 1 1\nb.jpg 1 0 0 0 1 1\n", r"poses\.txt, line 2: .* is not a pose"),
        ("a.jpg 0 0 0 0 1 1 1\n", r"poses\.txt, line 1: the quaternion is zero"),
        ("NVM_V3\n\ntwo\n", r"poses\.txt, line 3: 'two' is not the number of images"),
        ("NVM_V3\n\n2\na.jpg 400 1 0 0 0 1 2 3 0 0\n", r"poses\.txt, line 4: .* is not an image of an NVM model"),
        ("\n", "holds no pose"),
    ],
)
def test_a_broken_file_of_poses_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "poses.txt").write_text(text)
    with pytest.raises(BadDataset, match=message):
        read_centres(tmp_path / "poses.txt")

"""Layouts of drives with poses of their cameras: 4Seasons, RobotCar Seasons."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.datasets.test_layouts_poses import picture
from tfa_bench.datasets.files import BadDataset
from tfa_bench.datasets.layouts.drives import on_earth, poses_4seasons, robotcar
from tfa_bench.datasets.poses import read_centers

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
    earth = on_earth(np.array([[5.0, 1.0, 0.0]]), np.array([2.0]), tmp_path / "Transformations.txt")
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
    assert "no queries left for snow" in found.notes[2]


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
    assert read_centers(tmp_path / "poses.txt")["a/b.jpg"] == pytest.approx([0, 1, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jpg 1 0 0 0 1 1 1\nb.jpg 1 0 0 0 1 1\n", r"poses\.txt, line 2: .* is not a pose"),
        ("a.jpg 0 0 0 0 1 1 1\n", r"poses\.txt, line 1: the quaternion is zero"),
        ("NVM_V3\n\ntwo\n", r"poses\.txt, line 3: 'two' is not an NVM model's number of images"),
        ("NVM_V3\n\n2\na.jpg 400 1 0 0 0 1 2 3 0 0\n", r"poses\.txt, line 4: .* is not an image of an NVM model"),
        ("\n", "has no poses"),
    ],
)
def test_a_broken_file_of_poses_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "poses.txt").write_text(text)
    with pytest.raises(BadDataset, match=message):
        read_centers(tmp_path / "poses.txt")

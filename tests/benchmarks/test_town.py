"""The demo town is drawn from real poses, twice, and its ground truth is geometry."""

from __future__ import annotations

import csv
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfa.errors import BadSpec
from town.countryside import outside_photos
from town.render import Camera, Quad, Scene, Texture, draw_scene
from town.route import on_street, plan_route, plan_streets
from town.textures import plain
from town.traverses import RADIUS, Town, find_positives, plan_poses, plan_world, render_town

SIZE = (160, 120)


pytestmark = pytest.mark.slow  # drawing is what takes time


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return render_town(tmp_path_factory.mktemp("town"), references=16, queries=8, size=SIZE)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), float)


def test_writes_what_it_promises(town: Town) -> None:
    references, queries = sorted(town.references.iterdir()), sorted(town.queries.iterdir())
    assert [p.name for p in references] == town.reference_files == [f"ref_{i:03d}.jpg" for i in range(16)]
    assert [p.name for p in queries] == town.query_files == [f"query_{i:03d}.jpg" for i in range(8)]
    assert {pixels(p).shape for p in references + queries} == {(SIZE[1], SIZE[0], 3)}
    with open(town.positions_csv, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == town.reference_files
    np.testing.assert_allclose([[float(r["x"]), float(r["y"])] for r in rows], town.reference_positions, atol=1e-3)
    assert json.loads(town.positives_json.read_text()) == town.positives


def test_same_seed_same_bytes_other_seed_other_town(tmp_path: Path) -> None:
    few = {"references": 3, "queries": 2, "size": (64, 48)}
    runs = [render_town(tmp_path / name, seed=seed, **few) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    contents = [{p.relative_to(t.folder): p.read_bytes() for p in t.folder.rglob("*.*")} for t in runs]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 7
    assert all(contents[0][name] != contents[2][name] for name in contents[0] if name.suffix == ".jpg")


def test_positives_are_near_look_the_same_way_and_none_is_forgotten(town: Town) -> None:
    assert list(town.positives) == town.query_files
    for number, file in enumerate(town.query_files):
        gap = np.linalg.norm(town.reference_positions - town.query_positions[number], axis=1)
        turn = np.cos(town.reference_headings - town.query_headings[number])
        listed = np.array([f in town.positives[file] for f in town.reference_files])
        assert listed.any()
        # A lane offset of at most 2.5 m lies between the distance on the map and the one along the route.
        assert (gap[listed] <= RADIUS + 2.5).all()
        assert (turn[listed] > np.cos(np.deg2rad(41))).all()
        assert listed[(gap < 6) & (turn > np.cos(np.deg2rad(20)))].all()


@pytest.mark.parametrize("references", [2, 5, 40, 90, 140])
def test_no_query_is_without_an_answer(references: int) -> None:
    for seed in range(6):
        route = plan_route(plan_streets(seed))
        first, second = plan_poses(route, references, 45, seed)
        names = [f"r{i}" for i in range(references)]
        found = find_positives(route, names, first, [f"q{i}" for i in range(45)], second)
        assert min(map(len, found.values())) >= 1


def test_traverses_drive_apart_within_the_road() -> None:
    world = plan_world(0)
    first, second = plan_poses(world.route, 90, 45, 0)
    steps = [np.hypot(a.x - b.x, a.y - b.y) for a, b in pairwise(first)]
    assert min(steps) > 5
    assert max(steps) <= 8
    for pose in second:
        x, y, heading = world.route.pose(pose.traveled, -0.8)
        assert 1.0 <= np.hypot(pose.x - x, pose.y - y) <= 2.5
        assert abs(pose.heading - heading) <= np.deg2rad(10)
        assert on_street(np.array([[pose.x, pose.y]]), world.streets)
    assert not any(on_street(house.samples, world.streets) for house in world.houses)


def test_a_wall_corner_lands_on_the_pixel_of_the_pinhole_formula() -> None:
    camera = Camera(x=1.0, y=2.0, height=1.5, heading=np.deg2rad(30), fov=np.deg2rad(80), horizon=0.5)
    size = (400, 300)
    focal = 200 / np.tan(np.deg2rad(40))
    # By hand: a wall whose top left corner is 8 m ahead, 2 m to the left and 3 m above the ground.
    ahead, right = np.array([np.cos(np.pi / 6), np.sin(np.pi / 6)]), np.array([np.sin(np.pi / 6), -np.cos(np.pi / 6)])
    corner = np.array([1.0, 2.0]) + 8 * ahead - 2 * right
    wall = Quad((*corner, 3.0), (*(3 * right + 4 * ahead), 0.0), (0.0, 0.0, -3.0), Texture(lambda: plain((200, 0, 0))))
    scene = Scene([wall])
    frame = draw_scene(scene, camera, size, np.full((1, 4), 255, np.uint8), np.zeros(3, np.float32))
    rows, columns = np.nonzero(frame.inverse_depth)
    # Edges of the drawn region: left 2 m left at 8 m, right 1 m right at 12 m, top 1.5 m up and bottom 1.5 m down.
    assert columns.min() == pytest.approx(200 - focal * 2 / 8, abs=1)
    assert columns.max() + 1 == pytest.approx(200 + focal * 1 / 12, abs=1)
    left = rows[columns == columns.min()]
    assert left.min() == pytest.approx(150 - focal * 1.5 / 8, abs=1)
    assert left.max() + 1 == pytest.approx(150 + focal * 1.5 / 8, abs=1)
    last = rows[columns == columns.max()]
    assert last.min() == pytest.approx(150 - focal * 1.5 / 12, abs=1)
    assert 1 / frame.inverse_depth[150, columns.min()] == pytest.approx(8, abs=0.05)
    projected, depth = camera.project(np.array([[*corner, 3.0]]), size)
    np.testing.assert_allclose(projected[0], [200 - focal * 2 / 8, 150 - focal * 1.5 / 8])
    assert depth[0] == pytest.approx(8)


def test_nearer_hides_farther_and_walls_are_seen_from_outside_only() -> None:
    camera = Camera(0, 0, 1.5, 0.0, horizon=0.5)
    red, green = (Texture(lambda c=c: plain(c)) for c in ((200, 0, 0), (0, 200, 0)))
    near = Quad((5.0, 1.0, 3.0), (0.0, -2.0, 0.0), (0.0, 0.0, -3.0), red, one_sided=True)
    far = Quad((9.0, 8.0, 3.0), (0.0, -16.0, 0.0), (0.0, 0.0, -3.0), green, one_sided=True)
    light = np.full((2, 4), 255, np.uint8)
    for quads in ([near, far], [far, near]):
        color = draw_scene(Scene(quads), camera, (80, 60), light, np.zeros(3, np.float32)).color
        assert color[30, 40].argmax() in (0, 3)
        assert color[30, 40, 1] == 0
        assert color[30, 5, 1] > 150
    behind = Camera(12, 0, 1.5, np.pi, horizon=0.5)
    assert not draw_scene(Scene([near, far]), behind, (80, 60), light, np.zeros(3, np.float32)).inverse_depth.any()


def test_traverses_differ_in_light(town: Town) -> None:
    day = np.mean([pixels(town.references / f).mean((0, 1)) for f in town.reference_files], axis=0)
    dusk = np.mean([pixels(town.queries / f).mean((0, 1)) for f in town.query_files], axis=0)
    assert np.abs(day - dusk).max() > 8
    sky = [pixels(p)[:10].mean((0, 1)) for p in (town.references / "ref_008.jpg", town.queries / "query_004.jpg")]
    assert sky[0][2] - sky[0][0] > sky[1][2] - sky[1][0] + 20  # the day's sky is bluer


def layout(path: Path) -> np.ndarray:
    """Edge strengths on a coarse grid, normalised: what a light-blind eye remembers of a place."""
    grey = pixels(path).mean(2)
    edges = np.abs(np.diff(grey, axis=1))[:-1] + np.abs(np.diff(grey, axis=0))[:, :-1]
    grid = edges[: 119 // 7 * 7, : 159 // 10 * 10].reshape(17, 7, 15, 10).mean((1, 3)).ravel()
    return (grid - grid.mean()) / np.linalg.norm(grid - grid.mean())


def test_near_poses_look_more_alike_than_far_ones(town: Town) -> None:
    references = np.array([layout(town.references / f) for f in town.reference_files])
    queries = np.array([layout(town.queries / f) for f in town.query_files])
    alike = queries @ references.T
    near = np.array([[f in town.positives[q] for f in town.reference_files] for q in town.query_files])
    assert alike[near].mean() > alike[~near].mean() + 0.05
    steps = np.arange(16)
    gap = np.abs(steps[:, None] - steps)
    same_day = references @ references.T
    assert same_day[gap == 1].mean() > same_day[gap > 4].mean() + 0.1


def test_outside_photos_are_drawn_repeatably_and_show_no_street(tmp_path: Path, town: Town) -> None:
    first = outside_photos(tmp_path / "a", 3, SIZE, seed=1)
    second = outside_photos(tmp_path / "b", 3, SIZE, seed=1)
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert len({p.read_bytes() for p in first}) == 3
    green, street = pixels(first[0])[-30:].mean((0, 1)), pixels(town.references / "ref_004.jpg")[-30:].mean((0, 1))
    assert green[1] - green[2] > 10 + street[1] - street[2]


@pytest.mark.parametrize("wrong", [{"references": 1}, {"queries": 0}, {"size": (16, 16)}])
def test_a_town_too_small_to_draw_is_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(BadSpec, match="at least 2 references"):
        render_town(tmp_path, **wrong)

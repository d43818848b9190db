"""A small procedural town, photographed twice along one route: the dataset of demo and tests.

The seed fixes streets, houses and their fronts. A traverse has its own light, weather, season and parked cars; the
second one also drives in another part of the road and looks a little to the side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tfa.core.files import write_atomically, write_json, write_text
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import BadSpec
from town.ground import ground_quads
from town.houses import House, house_quads, plan_houses
from town.props import Tree, furniture_quads, parked_cars, plan_trees, tree_quads
from town.render import Camera, Quad, Scene, draw_scene
from town.route import Route, Street, plan_route, plan_streets
from town.weather import (
    CLEAR_DAY,
    WET_DUSK,
    Shadows,
    Weather,
    cast_shadows,
    develop,
    fill_sky,
    light_table,
    paint_sky,
    save_options,
)

SPACING = 7.0  # meters between references, unless the whole tour is covered more densely
RADIUS = 12.0  # a reference this near along the route shows the same place
SIMILAR_HEADING = np.deg2rad(40.0)
LANE = -0.8  # lateral position of the references, meters left of the center line
OVERSAMPLE = 2


@dataclass(frozen=True)
class Pose:
    """Pose of a photo: meters along the route, position, and heading in radians."""

    traveled: float
    x: float
    y: float
    heading: float


@dataclass(frozen=True)
class Town:
    """Output of `render_town`. Positions are `(n, 2)` meters, headings `(n,)` radians."""

    folder: Path
    references: Path
    queries: Path
    positions_csv: Path
    positives_json: Path
    reference_files: list[str]
    query_files: list[str]
    reference_positions: np.ndarray
    query_positions: np.ndarray
    reference_headings: np.ndarray
    query_headings: np.ndarray
    positives: dict[str, list[str]]


@dataclass(frozen=True)
class World:
    """Everything that the seed fixes."""

    seed: int
    streets: list[Street]
    route: Route
    houses: list[House]
    trees: list[Tree]

    @cached_property
    def built(self) -> list[Quad]:
        """Return the quads that look the same in both traverses, painted once."""
        houses = [quad for house in self.houses for quad in house_quads(house, self.seed)]
        return houses + furniture_quads(self.streets, self.seed)


def plan_world(seed: int) -> World:
    streets = plan_streets(seed)
    return World(seed, streets, plan_route(streets), plan_houses(streets, seed), plan_trees(streets, seed))


def render_town(
    folder: Path,
    *,
    references: int = 90,
    queries: int = 45,
    size: tuple[int, int] = (480, 360),
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> Town:
    """Draw both traverses into `folder`, with `positions.csv` and `positives.json`; same seed, same bytes."""
    if references < 2 or queries < 1 or min(size) < 32:
        raise BadSpec(
            f"a town of {references} references and {queries} queries of {size[0]}×{size[1]} pixels cannot be drawn; "
            "it needs at least 2 references, 1 query and 32 pixels a side"
        )
    world = plan_world(seed)
    first, second = plan_poses(world.route, references, queries, seed)
    reference_files = [f"ref_{i:03d}.jpg" for i in range(references)]
    query_files = [f"query_{i:03d}.jpg" for i in range(queries)]
    listener = as_progress(progress)
    drives = [("references", reference_files, first, CLEAR_DAY), ("queries", query_files, second, WET_DUSK)]
    for drive, (name, files, poses, weather) in enumerate(drives):
        traverse = Traverse(world, weather)
        jobs = track_progress(zip(files, poses, strict=True), len(files), f"drawing {name}", listener, "images")
        for number, (file, pose) in enumerate(jobs):
            photo = traverse.photo(pose, size, [seed, 40, drive, number])
            _save(folder / name / file, photo, weather)
    positives = find_positives(world.route, reference_files, first, query_files, second)
    _write_positions(folder / "positions.csv", reference_files, first)
    write_json(folder / "positives.json", positives)
    return Town(
        folder, folder / "references", folder / "queries", folder / "positions.csv", folder / "positives.json",
        reference_files, query_files, _places(first), _places(second), _headings(first), _headings(second), positives,
    )  # fmt: skip


def plan_poses(route: Route, references: int, queries: int, seed: int) -> tuple[list[Pose], list[Pose]]:
    """Plan references at even steps, and queries over the same stretch, next to the references' lane."""
    rng = np.random.default_rng([seed, 30])
    whole = route.length / references
    step = whole if whole <= 8 else SPACING  # few references cover the start of the tour
    first = [_pose(route, step * i, LANE) for i in range(references)]
    stretch = step * (references - 1)
    second = []
    for i in range(queries):
        traveled = stretch * (i + float(rng.uniform(0.1, 0.9))) / queries
        # Parked cars are on the right, so the offset is smaller there.
        aside = float(rng.uniform(1.0, 2.5)) if rng.random() < 0.6 else -float(rng.uniform(1.0, 1.7))
        second.append(_pose(route, traveled, LANE + aside, float(np.deg2rad(rng.uniform(-10, 10)))))
    return first, second


def _pose(route: Route, traveled: float, lateral: float, turn: float = 0.0) -> Pose:
    x, y, heading = route.pose(traveled, lateral)
    return Pose(traveled % route.length, x, y, heading + turn)


def find_positives(
    route: Route, reference_files: list[str], references: list[Pose], query_files: list[str], queries: list[Pose]
) -> dict[str, list[str]]:
    """Return, for each query, the references within `RADIUS` along the route with a similar heading."""
    traveled, headings = np.array([p.traveled for p in references]), _headings(references)
    positives = {}
    for file, pose in zip(query_files, queries, strict=True):
        turn = np.abs((headings - pose.heading + np.pi) % (2 * np.pi) - np.pi)
        good = (route.apart(traveled, np.array(pose.traveled)) <= RADIUS) & (turn <= SIMILAR_HEADING)
        assert good.any(), f"{file} has no reference within {RADIUS} m"  # steps are at most 8 m, turns are gentle
        positives[file] = [reference_files[i] for i in np.flatnonzero(good)]
    return positives


class Traverse:
    """One drive through the world in one weather."""

    def __init__(self, world: World, weather: Weather) -> None:
        seed, rng = world.seed, np.random.default_rng([world.seed, 41, *weather.name.encode()])
        quads = world.built + ground_quads(world.streets, seed, weather.lawn)
        quads += tree_quads(world.trees, seed, weather.leaves)
        quads += parked_cars(world.streets, rng, weather.parked)
        self.weather, self.scene = weather, Scene(quads)
        self.sky = paint_sky(weather, rng, np.random.default_rng([seed, 42]))
        self.shadows = town_shadows(world, weather) if max(weather.sunlight) > 0 else None

    def photo(self, pose: Pose, size: tuple[int, int], seed: list[int]) -> Image.Image:
        rng = np.random.default_rng(seed)
        camera = Camera(pose.x, pose.y, 1.75 + float(rng.uniform(-0.05, 0.05)), pose.heading)
        fine = (size[0] * OVERSAMPLE, size[1] * OVERSAMPLE)
        light = light_table(self.scene, camera, self.weather)
        frame = draw_scene(self.scene, camera, fine, light, np.asarray(self.weather.glow, np.float32))
        fill_sky(frame, camera, self.sky)
        return develop(frame, camera, self.weather, self.shadows, OVERSAMPLE, rng)


def town_shadows(world: World, weather: Weather, cell: float = 0.5) -> Shadows:
    """Cast the heights of houses and crowns on a grid of the plan away from the sun."""
    outline = np.concatenate([house.footprint() for house in world.houses])
    low, high = outline.min(0) - 10, outline.max(0) + 10
    columns, rows = ((high - low) / cell).astype(int)
    plan = Image.new("F", (int(columns), int(rows)))
    pen = ImageDraw.Draw(plan)
    for tree in world.trees:
        x, y, r = (tree.x - low[0]) / cell, (tree.y - low[1]) / cell, tree.height * 0.22 / cell
        pen.ellipse((x - r, y - r, x + r, y + r), fill=tree.height * 0.85)
    for house in world.houses:
        pen.polygon(
            [(float(x), float(y)) for x, y in (house.footprint() - low) / cell], fill=(house.eaves + house.ridge) / 2
        )
    return cast_shadows(np.asarray(plan), (float(low[0]), float(low[1])), cell, weather.sun)


def _places(poses: list[Pose]) -> np.ndarray:
    return np.array([[p.x, p.y] for p in poses])


def _headings(poses: list[Pose]) -> np.ndarray:
    return np.array([p.heading for p in poses])


def _save(path: Path, photo: Image.Image, weather: Weather) -> None:
    write_atomically(path, lambda temporary: photo.save(temporary, **save_options(weather)))


def _write_positions(path: Path, files: list[str], poses: list[Pose]) -> None:
    lines = ["file,x,y", *(f"{file},{pose.x:.3f},{pose.y:.3f}" for file, pose in zip(files, poses, strict=True))]
    write_text(path, "\n".join(lines) + "\n")

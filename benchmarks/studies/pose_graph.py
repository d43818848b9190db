"""Close a map: two laps through the rendered town, a noisy odometry, and loops as edges of a pose graph in GTSAM.

The edges are those of `tfa loops --out loops.g2o`: two frames show one place, within about a meter, and nothing is
said on their heading. Wrong edges join places of opposite sides of the tour, as a loop closer might by mistake.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from studies.options import format_markdown, make_parser, open_progress, print_table, read_study, run_script
from tfa.cli.console import delivered, print_text, say
from tfa.core.files import write_text
from tfa.core.progress import Progress, track_progress
from tfa.encoders import load_encoder
from tfa.encoders.catalogue import DEFAULT_ENCODER
from tfa.errors import MissingExtra
from tfa.maps.loop_closer import LoopCloser
from tfa.types import LoopsResult
from town.route import plan_route, plan_streets
from town.traverses import LANE, Pose, Traverse, plan_world
from town.weather import CLEAR_DAY

STEP = 4.0  # meters between frames
LAPS = 2
GAP = "20"  # frames
SIZE = (240, 180)  # pixels
NEAR = 3 * STEP  # meters within which two frames of a loop may be
SIGMAS = (0.1, 0.1, np.deg2rad(1.0))  # odometry noise of a step: along, across (meters), heading
BIAS = np.deg2rad(0.15)  # heading that the odometry gains per step, which its noise model does not know
LOOP_SIGMAS = (1.0, 1.0, 1000.0)  # of EDGE_SE2 in loops.g2o: meters, and no statement on the heading
KERNELS = {"none": "no kernel", "huber": "Huber", "cauchy": "Cauchy", "gnc": "GNC"}
WRONG = (0, 1, 10)  # wrong edges; several in a row agree with each other, as a false loop with its chain
SEEDS = range(10)

Pairs = Sequence[tuple[int, int]]  # (match, query)


@dataclass(frozen=True)
class GraphError:
    """Trajectory errors (ATE RMSE, meters) over the seeds of the odometry."""

    kernel: str | None  # None: odometry only
    wrong_edges: int
    mean: float
    worst: float


def plan_laps(seed: int = 0) -> list[Pose]:
    """Plan a drive of two laps that sways in its lane and does not stop at the same spots twice."""
    route = plan_route(plan_streets(seed))
    poses = []
    for traveled in np.arange(0, LAPS * route.length, STEP).tolist():
        x, y, heading = route.pose(traveled, LANE + 0.5 * np.sin(traveled / 37))
        poses.append(Pose(traveled, x, y, heading + np.deg2rad(3) * np.sin(traveled / 23)))
    return poses


def render_laps(folder: Path, poses: Sequence[Pose], progress: Progress, seed: int = 0) -> list[Path]:
    """Draw the photos of the drive; those in the folder are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    traverse, files = Traverse(plan_world(seed), CLEAR_DAY), []
    for number, pose in enumerate(track_progress(poses, len(poses), "drawing frames", progress, "images")):
        files.append(folder / f"{number:04d}.jpg")
        if not files[-1].exists():
            traverse.photo(pose, SIZE, [seed, 50, number]).save(files[-1], quality=90)
    return files


def close_loops(files: Sequence[Path], progress: Progress) -> LoopsResult:
    """Pass the photos through a loop closer with the default encoder in 8 bits."""
    closer = LoopCloser(load_encoder(DEFAULT_ENCODER, precision="int8"), GAP)
    for file in track_progress(files, len(files), "closing loops", progress, "images"):
        closer.step(file)
    return LoopsResult(frames=closer.frames, keyframes=len(closer), sessions=1, loops=closer.loops)


# --- odometry and errors -----------------------------------------------------------------------------------------


def as_states(poses: Iterable[Pose]) -> np.ndarray:
    """Return x, y, heading (n, 3)."""
    return np.array([(pose.x, pose.y, pose.heading) for pose in poses])


def measure_steps(states: np.ndarray, seed: int | None = None) -> np.ndarray:
    """Return the motion (n − 1, 3) between states in the frame of the earlier one; with a seed, as odometry."""
    moved, (cos, sin) = np.diff(states[:, :2], axis=0), (np.cos(states[:-1, 2]), np.sin(states[:-1, 2]))
    turned = (np.diff(states[:, 2]) + np.pi) % (2 * np.pi) - np.pi
    x, y = moved.T
    steps = np.stack([cos * x + sin * y, cos * y - sin * x, turned], axis=1)
    if seed is not None:
        steps += np.random.default_rng([seed, 60]).normal((0, 0, BIAS), SIGMAS, steps.shape)
    return steps


def add_steps(start: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the states (n, 3) that steps lead to."""
    headings = np.concatenate([[start[2]], start[2] + np.cumsum(steps[:, 2])])
    cos, sin, (x, y) = np.cos(headings[:-1]), np.sin(headings[:-1]), steps[:, :2].T
    moved = np.cumsum(np.stack([cos * x - sin * y, sin * x + cos * y], axis=1), axis=0)
    return np.column_stack([np.concatenate([start[None, :2], start[:2] + moved]), headings])


def align(places: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return places (n, 2) moved and turned onto the ground truth by least squares."""
    center, goal = places.mean(axis=0), truth.mean(axis=0)
    u, _, vt = np.linalg.svd((truth - goal).T @ (places - center))
    flip = np.diag([1.0, np.sign(np.linalg.det(u @ vt))])  # a rotation, not a reflection
    return (places - center) @ (u @ flip @ vt).T + goal


def measure_ate(places: np.ndarray, truth: np.ndarray) -> float:
    """Return the absolute trajectory error after alignment: √(mean ‖p − p*‖²), as `evo_ape --align`."""
    return float(np.sqrt(((align(places, truth) - truth) ** 2).sum(axis=1).mean()))


def count_false(pairs: Pairs, states: np.ndarray) -> int:
    """Count pairs of frames that are too far from each other to show one place."""
    return sum(float(np.linalg.norm(states[match, :2] - states[query, :2])) > NEAR for match, query in pairs)


def make_wrong(count: int, frames: int) -> Pairs:
    """Return successive wrong pairs: a quarter into the first lap with three quarters into the second."""
    lap = frames // LAPS
    return [(lap // 4 + n, lap + 3 * lap // 4 + n) for n in range(count)]


# --- the graph ---------------------------------------------------------------------------------------------------


def optimize(steps: np.ndarray, start: np.ndarray, pairs: Pairs, kernel: str) -> np.ndarray:
    """Return the states (n, 3) of a pose graph with odometry steps and loops; the kernel applies to loops only."""
    try:
        import gtsam
    except ImportError:
        raise MissingExtra("a pose graph needs GTSAM; install with: pip install 'tfa-bench[slam]'") from None
    graph, noise = gtsam.NonlinearFactorGraph(), gtsam.noiseModel
    graph.add(gtsam.PriorFactorPose2(0, gtsam.Pose2(*start), noise.Diagonal.Sigmas(np.full(3, 1e-3))))
    odometry = noise.Diagonal.Sigmas(np.array(SIGMAS))
    for node, step in enumerate(steps):
        graph.add(gtsam.BetweenFactorPose2(node, node + 1, gtsam.Pose2(*step), odometry))
    trusted = graph.size()
    loop: Any = noise.Diagonal.Sigmas(np.array(LOOP_SIGMAS))
    if kernel in ("huber", "cauchy"):
        estimators = noise.mEstimator
        loop = noise.Robust.Create((estimators.Huber if kernel == "huber" else estimators.Cauchy).Create(1.0), loop)
    for match, query in pairs:
        graph.add(gtsam.BetweenFactorPose2(match, query, gtsam.Pose2(), loop))
    values = gtsam.Values()
    for node, state in enumerate(add_steps(start, steps)):
        values.insert(node, gtsam.Pose2(*state))
    if kernel == "gnc":
        options = gtsam.GncLMParams(gtsam.LevenbergMarquardtParams())
        options.setKnownInliers(list(range(trusted)))
        values = gtsam.GncLMOptimizer(graph, values, options).optimize()
    else:
        values = gtsam.LevenbergMarquardtOptimizer(graph, values, gtsam.LevenbergMarquardtParams()).optimize()
    poses = [values.atPose2(node) for node in range(len(steps) + 1)]
    return np.array([(pose.x(), pose.y(), pose.theta()) for pose in poses])


def study_graph(states: np.ndarray, pairs: Pairs, seeds: Iterable[int] = SEEDS) -> list[GraphError]:
    """Measure odometry only, then every kernel with every number of wrong edges."""
    odometry = {seed: measure_steps(states, seed) for seed in seeds}
    truth, start = states[:, :2], states[0]
    plain = [measure_ate(add_steps(start, steps)[:, :2], truth) for steps in odometry.values()]
    errors = [GraphError(None, 0, mean(plain), max(plain))]
    for kernel in KERNELS:
        for count in WRONG:
            edges = [*pairs, *make_wrong(count, len(states))]
            solved = [optimize(steps, start, edges, kernel)[:, :2] for steps in odometry.values()]
            ates = [measure_ate(places, truth) for places in solved]
            errors.append(GraphError(kernel, count, mean(ates), max(ates)))
    return errors


# --- table and picture -------------------------------------------------------------------------------------------

COLUMNS = ("Trajectory error in meters, mean (worst)", *(f"{n} wrong edge{'s' * (n != 1)}" for n in WRONG))


def table_rows(errors: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row per kernel."""
    cells: dict[str | None, list[str]] = {}
    for one in errors:
        cells.setdefault(one["kernel"], []).append(f"{one['mean']:.1f} ({one['worst']:.1f})")
    return [
        (KERNELS[name], *row) if name else ("odometry only", *row, *["–"] * (len(WRONG) - 1))
        for name, row in cells.items()
    ]


def draw_picture(states: np.ndarray, before: np.ndarray, after: np.ndarray) -> str:
    """Draw ground truth with the trajectory before and after, side by side, as SVG."""
    truth = states[:, :2]
    panels = [("odometry", align(before[:, :2], truth)), ("with loops", align(after[:, :2], truth))]
    points = np.concatenate([truth, *(places for _, places in panels)])
    low, size = points.min(axis=0) - 10, np.ptp(points, axis=0) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * size[0]:.0f} {size[1] + 16:.0f}" '
        'fill="none" stroke-width="2" font-family="sans-serif" font-size="12">'
    ]
    for number, (title, places) in enumerate(panels):
        parts.append(f'<g transform="translate({number * size[0]:.0f} 0)">')
        for line, color in ((truth, "#999"), (places, "#d62728" if number == 0 else "#1f77b4")):
            drawn = np.column_stack([line[:, 0] - low[0], low[1] + size[1] - line[:, 1]])  # north is up
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
            parts.append(f'<polyline stroke="{color}" points="{path}"/>')
        label = f"{title}: error {measure_ate(places, truth):.1f} m"
        parts.append(f'<text x="10" y="{size[1] + 10:.0f}" fill="#777">{label}</text></g>')
    return "\n".join([*parts, "</svg>\n"])


def main(argv: Sequence[str] | None = None) -> int:
    """Close the loops of two laps through the rendered town in a pose graph, with and without wrong edges."""
    parser: ArgumentParser = make_parser(main.__doc__ or "")
    parser.add_argument("--show", type=Path, metavar="FILE.json", help="print the table of a stored result as Markdown")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="draw the photos here, or use those in it")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the trajectory before and after")
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.show is not None:
        print_text(format_markdown(COLUMNS, table_rows(read_study(arguments.show)["errors"])))
        return
    bars, poses = open_progress(arguments), plan_laps()
    with TemporaryDirectory() as folder:
        result = close_loops(render_laps(arguments.photos or Path(folder), poses, bars), bars)
    states, pairs = as_states(poses), [(one.match, one.query) for one in result.pairs]
    errors = [asdict(one) for one in study_graph(states, pairs)]
    facts = {"encoder": f"{DEFAULT_ENCODER}, int8", "frames": len(poses), "meters": round(poses[-1].traveled)}
    facts |= {"pairs": len(pairs), "false_pairs": count_false(pairs, states), "seeds": len(SEEDS)}
    if arguments.picture is not None:
        steps = measure_steps(states, 0)
        after = optimize(steps, states[0], pairs, "cauchy")
        write_text(arguments.picture, draw_picture(states, add_steps(states[0], steps), after))
    if not delivered({**facts, "errors": errors}, out=arguments.out, json=arguments.json):
        say(", ".join(f"{name} {value}" for name, value in facts.items()), style="bold")
        print_table(COLUMNS, table_rows(errors), 1)


if __name__ == "__main__":
    sys.exit(main())

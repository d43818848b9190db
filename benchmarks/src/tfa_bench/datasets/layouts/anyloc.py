"""Datasets packaged by AnyLoc, and VPAIR, which lists its positives in the same way.

`camera`: Baidu-Mall, with one `.camera` file per image.

    training_images_undistort/<name>.jpg   training_gt/<name>.camera   database
    query_images_undistort/<name>.jpg      query_gt/<name>.camera      queries

A `.camera` file has its camera center (meters) in the last line but one and its rotation in lines 5 to 7. Positives are
within a radius in space, 10 m by default, for any viewing direction.

`gt_matches`: Nardo-Air, two folders and a table of the five best references per query.

    reference_images/   query_images/   gt_matches.csv

The table has the columns query_ind and top_1_ref_ind to top_5_ref_ind, which count images from 0 in natural name order.

`gt_npy`: two folders and a `*_gt.npy`, an array of [query, positives], both counted from 0.

    day_right/   night_right/   gardens_gt.npy   Gardens Point
    db_images/   q_images/      eiffel_gt.npy    Eiffel, where AnyLoc skips 101 rows (skip=101)

Images are counted in natural name order. The file is a pickled object array, read by an unpickler that accepts only
arrays and numbers.

`vpair`: aerial queries, rendered references and optionally 10 000 distractors.

    reference_views/   queries/   distractors/   vpair_gt.npy

`vpair_gt.npy` lists the positives of each query as reference indices in natural name order. Distractors follow the
references, so the indices are valid with and without them.
"""

from __future__ import annotations

import re
import reprlib
from pathlib import Path

import numpy as np

from tfa.evaluate.positives import within
from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    LayoutFunctions,
    bad_line,
    checked_indices,
    images_in,
    in_query_order,
    lines_of,
    natural_order,
    numbers,
    read_table,
    split_fields,
    whole_number,
)
from tfa_bench.datasets.poses import angles_between
from tfa_bench.datasets.safe_pickle import load_rows

# --- camera --------------------------------------------------------------------------------------------------------


_LINES = 9  # intrinsics (3), distortion, rotation (3), center, image size


def load_camera(root: Path, *, radius: float = 10.0, max_angle: float | None = None) -> DatasetFiles:
    """Load positives by distance, optionally limited to rotations at most `max_angle` degrees apart."""
    turned = max_angle is not None
    database = images_in(root / "training_images_undistort")
    queries = images_in(root / "query_images_undistort")
    centers, turns = _poses(database, root / "training_gt", turned)
    query_centers, query_turns = _poses(queries, root / "query_gt", turned)
    positives = within(centers, query_centers, radius)
    notes: tuple[str, ...] = ()
    if max_angle is not None:
        positives = tuple(
            close[angles_between(turn, turns[close]) <= max_angle]
            for close, turn in zip(positives, query_turns, strict=True)
        )
        notes = (f"positives are at most {max_angle:g} degrees apart in rotation",)
    return DatasetFiles(database, queries, positives, notes=notes)


def _poses(images: tuple[Path, ...], folder: Path, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return camera centers `(m, 3)` and, if requested, rotations `(m, 3, 3)`."""
    read = [_pose(folder / f"{image.stem}.camera", turned) for image in images]
    return np.array([center for center, _ in read]), np.array([turn for _, turn in read])


def _pose(path: Path, turned: bool) -> tuple[list[float], list[list[float]]]:
    lines = lines_of(path)
    if len(lines) < _LINES:
        raise BadDataset(f"{path} has {len(lines)} lines; a camera file has {_LINES}")
    center = numbers(split_fields(lines[-2]), 3, path, len(lines) - 1, "a camera center")
    if not turned:
        return center, []
    turn = [numbers(split_fields(lines[row]), 3, path, row + 1, "a row of a rotation") for row in (4, 5, 6)]
    if not np.allclose(np.array(turn) @ np.array(turn).T, np.eye(3), atol=1e-2):  # files round to a few digits
        raise bad_line(path, 5, "lines 5 to 7 are not a rotation")
    return center, turn


# --- gt_matches ----------------------------------------------------------------------------------------------------


def load_gt_matches(
    root: Path,
    *,
    database: str = "reference_images",
    queries: str = "query_images",
    matches: str = "gt_matches.csv",
    top: int = 5,
) -> DatasetFiles:
    """Load positives from the columns top_1_ref_ind to top_`top`_ref_ind."""
    references = natural_order(images_in(root / database))
    query_images = natural_order(images_in(root / queries))
    table = read_table(root / matches)
    who = table.column("query_ind")
    best = [table.column(f"top_{rank}_ref_ind") for rank in range(1, top + 1)]
    rows = []
    for line, row in table.rows:
        query = whole_number(re.sub(r"\.0*$", "", row[who]))  # pandas writes 3.0 for 3
        if query is None:
            raise bad_line(table.path, line, f"query_ind is {row[who]!r}; it must be the index of a query")
        listed = [table.number(line, row, column) for column in best]
        indices = checked_indices(listed, len(references), f"{table.path}, line {line}")
        rows.append((query, indices))
    positives, notes = in_query_order(rows, len(query_images), table.path)
    return DatasetFiles(references, query_images, positives, notes=notes)


# --- gt_npy --------------------------------------------------------------------------------------------------------


def load_gt_npy(
    root: Path,
    *,
    database: str = "day_right",
    queries: str = "night_right",
    positives: str = "gardens_gt.npy",
    skip: int = 0,
) -> DatasetFiles:
    """Load positives as listed, skipping the first `skip` rows of the file."""
    references = natural_order(images_in(root / database))
    query_images = natural_order(images_in(root / queries))
    listed, notes = read_positives(root / positives, len(references), len(query_images), skip=skip)
    return DatasetFiles(references, query_images, listed, notes=notes)


def read_positives(
    path: Path, images: int, queries: int, *, skip: int = 0
) -> tuple[tuple[np.ndarray, ...], tuple[str, ...]]:
    """Read the positives of each query from an array of [query, positives], with notes."""
    if not path.is_file():
        raise BadDataset(f"{path} is missing; it must list the positives of each query")
    rows: list[tuple[int | None, np.ndarray]] = []
    for number, row in enumerate(load_rows(path)[skip:], skip):
        where = f"{path}, row {number}"
        try:
            query, indices = row
        except (TypeError, ValueError):
            shown = reprlib.repr(row)
            raise BadDataset(f"{where}: a row must be [query, positives], this one is {shown}") from None
        rows.append((_query_number(query, skip), checked_indices(indices, images, where)))
    return in_query_order(rows, queries, path)


def _query_number(value: object, skip: int) -> int | None:
    """Return the query index of a row, counted from the first row kept; None if it is not an integer."""
    try:
        number = np.asarray(value)
        if number.size != 1 or number.dtype.kind not in "iuf" or number.item() != int(number.item()):
            return None
        return int(number.item()) - skip
    except (ValueError, OverflowError):  # rows of unequal length; not a number, infinite
        return None


# --- vpair ---------------------------------------------------------------------------------------------------------


def load_vpair(root: Path, *, distractors: bool = False) -> DatasetFiles:
    """Load references, then distractors if requested; positives are references only."""
    references = natural_order(images_in(root / "reference_views"))
    queries = natural_order(images_in(root / "queries"))
    positives, notes = read_positives(root / "vpair_gt.npy", len(references), len(queries))
    if distractors:
        others = natural_order(images_in(root / "distractors"))
        return DatasetFiles(
            references + others, queries, positives, notes=(*notes, f"{len(others)} distractors appended")
        )
    return DatasetFiles(references, queries, positives, notes=notes)


# --- layouts by name ---------------------------------------------------------------------------------------------

camera = LayoutFunctions(load_camera)
gt_matches = LayoutFunctions(load_gt_matches)
gt_npy = LayoutFunctions(load_gt_npy)
vpair = LayoutFunctions(load_vpair)

"""Sample photos: a small town on a clear day, and a second drive at dusk in the rain."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfa.core.files import write_json, write_text
from tfa.errors import BadSpec
from tfa.types import POSITION_KINDS

_TOWN = Path(__file__).parent / "town"


@dataclass(frozen=True)
class SampleTown:
    """Copied photos of the town. Positions are (n, 2) meters."""

    references: Path
    queries: Path
    positions_csv: Path
    positives_json: Path
    reference_files: list[str]
    query_files: list[str]
    reference_positions: np.ndarray
    query_positions: np.ndarray
    positives: dict[str, list[str]]


def copy_sample_town(folder: Path, *, references: int = 90, queries: int = 45) -> SampleTown:
    """Copy the first references of the route, and queries evenly sampled from those with positives among them."""
    if references < 2 or queries < 1:
        raise BadSpec(f"got {references} references and {queries} queries; use at least 2 references and 1 query")
    folder = Path(folder)
    place, query_place = _read_positions("positions.csv"), _read_positions("query_positions.csv")
    database = list(place)[:references]
    listed = json.loads((_TOWN / "positives.json").read_text("utf-8"))
    answered = {query: [name for name in right if name in database] for query, right in listed.items()}
    answered = {query: right for query, right in answered.items() if right}
    count = min(queries, len(answered))
    chosen = [list(answered)[at * len(answered) // count] for at in range(count)]
    town = SampleTown(
        folder / "references",
        folder / "queries",
        folder / "positions.csv",
        folder / "positives.json",
        database,
        chosen,
        np.array([place[name] for name in database]),
        np.array([query_place[name] for name in chosen]),
        {query: answered[query] for query in chosen},
    )
    for drive, names in ((town.references, database), (town.queries, chosen)):
        shutil.rmtree(drive, ignore_errors=True)  # remove photos of an earlier run
        drive.mkdir(parents=True)
        for name in names:
            shutil.copyfile(_TOWN / drive.name / name, drive / name)
    lines = [",".join(("file", *POSITION_KINDS[1]))]
    lines += [f"{name},{place[name][0]},{place[name][1]}" for name in database]
    write_text(town.positions_csv, "\n".join(lines) + "\n")
    write_json(town.positives_json, town.positives)
    return town


def _read_positions(name: str) -> dict[str, tuple[float, float]]:
    with (_TOWN / name).open(newline="", encoding="utf-8") as file:
        return {row["file"]: (float(row["x"]), float(row["y"])) for row in csv.DictReader(file)}

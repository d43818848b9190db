"""The JSON and CSV that commands print on the rendered town, compared with approved files.

To approve a change, run with `TFA_TEST_APPROVE=1` and read the difference in `tests/walkthrough/approved`.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tfa.cli.app import app

APPROVED = Path(__file__).parent / "approved"
ROUNDING = 1e-3  # another processor rounds the last digits of scores differently

# Name of the approved file, the command. They run in this order, in one folder.
COMMANDS = [
    ("build", "build photos/ --out town.tfa --positions positions.csv"),
    ("build-paper", "build photos/ --out paper.tfa --positions positions.csv --head paper"),
    ("info", "info town.tfa"),
    ("info-paper", "info paper.tfa"),
    ("query", "query town.tfa photo.jpg -k 3"),
    ("query-folder", "query town.tfa evening-walk/ -k 2"),
    ("query-sure", "query town.tfa evening-walk/ --sure"),
    ("query-sequence", "query town.tfa --sequence drive/"),
    ("query-region", "query town.tfa evening-walk/ -k 2 --region -20,-20,20,20"),
    ("query-unreadable", "query town.tfa positions.csv photo.jpg"),
    ("calibrate", "calibrate town.tfa robot-camera/ --name night"),
    ("info-calibrated", "info town.tfa"),
    ("query-calibrated", "query town.tfa photo.jpg --calibration night"),
    ("explain", "explain town.tfa photo.jpg"),
    ("report", "report town.tfa"),
    ("evaluate", "evaluate town.tfa evening-walk/ --ground-truth positives.json"),
    ("add", "add town.tfa new.jpg --session walk"),
    ("remove", "remove town.tfa photos/0003.jpg"),
    ("refit", "refit town.tfa"),
    ("merge", "merge town.tfa paper.tfa --out both.tfa"),
    ("prune", "prune both.tfa --duplicates-only --dry-run"),
    ("encoders", "encoders"),
    ("bench-run", "bench run --dataset my-town=data/my-town --heads anyloc,tfa --out results/"),
    ("bench-score", "bench score results/ --against anyloc"),
]
HEX = re.compile(r"\b[0-9a-f]{12,64}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+]+Z?")
UNSTABLE = {"seconds", "bytes", "milliseconds", "created", "size", "versions", "threads", "weights", "timings"}


def normalize(value: Any, work: Path) -> Any:
    """Replace what differs between runs or is prose."""
    if isinstance(value, dict):
        return {key: "…" if key in UNSTABLE else normalize(item, work) for key, item in value.items()}
    if isinstance(value, list):
        return [normalize(item, work) for item in value]
    if isinstance(value, str):
        value = TIME.sub("TIME", HEX.sub("HEX", value.replace(str(work), "WORK")))
        return "a sentence" if value.count(" ") >= 3 else value
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value


def difference(value: Any, approved: Any, where: str = "$") -> str | None:
    """Return the first place where two values differ, None if nowhere."""
    if isinstance(value, dict) and isinstance(approved, dict):
        if value.keys() != approved.keys():
            return f"{where}: keys {sorted(value.keys() ^ approved.keys())}"
        return next((d for key in value if (d := difference(value[key], approved[key], f"{where}.{key}"))), None)
    if isinstance(value, list) and isinstance(approved, list):
        if len(value) != len(approved):
            return f"{where}: {len(value)} items, approved {len(approved)}"
        pairs = enumerate(zip(value, approved, strict=True))
        return next((d for i, (a, b) in pairs if (d := difference(a, b, f"{where}[{i}]"))), None)
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, approved))
    if numbers and isinstance(value, float) | isinstance(approved, float):
        same = math.isclose(value, approved, rel_tol=ROUNDING, abs_tol=1e-3)
    else:
        same = type(value) is type(approved) and value == approved
    return None if same else f"{where}: {value!r}, approved {approved!r}"


def check(name: str, value: Any) -> str | None:
    file = APPROVED / f"{name}.json"
    if os.environ.get("TFA_TEST_APPROVE"):
        file.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return difference(value, json.loads(file.read_text("utf-8")))


def test_commands_print_the_approved_json(newcomer: Path):
    problems = []
    for name, command in COMMANDS:
        done = CliRunner().invoke(app, [*command.split(), "--json"], catch_exceptions=False)
        assert done.exit_code in (0, 1), f"{command}\n{done.output}"
        problem = check(name, normalize(json.loads(done.stdout), newcomer))
        problems += [f"{name}{problem[1:]}"] if problem else []
    assert problems == []


def test_answers_as_csv_have_the_approved_columns(newcomer: Path):
    for command in ("build photos/ --out town.tfa --positions positions.csv", "query town.tfa drive/ --out a.csv"):
        done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
    with (newcomer / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert check("answers-csv", [list(rows[0]), len(rows)]) is None


@pytest.mark.parametrize("part", ["paths", "schemas"])
def test_the_service_documents_the_approved_interface(part: str):
    import tfa
    from tests.fakes import FakeEncoder
    from tfa.service.app import create_app
    from tfa.service.settings import ServiceSettings

    golden = tfa.PlaceMap.load(Path(__file__).parents[1] / "golden" / "judged", encoder=FakeEncoder())
    document = create_app([golden], ServiceSettings()).openapi()
    if part == "paths":
        value = {path: sorted(methods) for path, methods in document["paths"].items()}
    else:
        value = {name: sorted(one.get("properties", {})) for name, one in document["components"]["schemas"].items()}
    assert check(f"openapi-{part}", value) is None

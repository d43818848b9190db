"""The notebook runs from its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tutorial.ipynb"


def code_cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_cell_runs(newcomer, capsys):
    scope: dict[str, object] = {}
    for number, cell in enumerate(code_cells()):
        exec(compile(cell, f"cell {number}", "exec"), scope)
    said = capsys.readouterr().out
    assert "24 photos by day, 12 at dusk in the rain" in said
    assert "frames at the right place" in said
    assert [line.split()[0] for line in said.splitlines() if "R@1" in line] == ["none", "dusk"]


def test_it_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
    assert len(code_cells()) >= 7


@pytest.mark.parametrize("forbidden", ["!", "%"])
def test_it_needs_nothing_but_python(forbidden):
    assert not [line for cell in code_cells() for line in cell.splitlines() if line.startswith(forbidden)]

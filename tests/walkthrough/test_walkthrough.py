"""A new user types the commands of the pages in order, and each has the described effect."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.walkthrough.commands import ROOT, steps_of, unmarked
from tfa.cli.app import app

README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
# Commands of the README that other tests run: on fresh clones, in an empty environment, by the fault campaign.
ELSEWHERE = {
    *("make demo", "make check", "tfa demo", "python3 -m venv .venv && . .venv/bin/activate"),
    "pip install -c constraints.txt .",
}


def test_the_readme(types, newcomer):
    for step in steps_of(README):
        types.type(step)
    assert {"town.tfa", "answer.png", "failures.html", "report.html", "explorer.html", "results"} <= {
        path.name for path in newcomer.iterdir()
    }
    answers = json.loads((newcomer / "answers.json").read_text("utf-8"))["answers"]
    assert len(answers) == len(list((newcomer / "evening-walk").iterdir()))
    assert "AnyLoc" in types.said["tfa bench table heads --records results/"]


def test_the_tutorial(types, after_demo):
    for step in steps_of(TUTORIAL):
        types.type(step)
    assert [".jpg" in line for line in types.printed] == [True] * 3  # the client's hits
    evaluated = "tfa evaluate town.tfa evening-walk/ --ground-truth positives.json --html failures.html"
    assert "night" in types.said[evaluated]
    assert (after_demo / "why.png").stat().st_size > 1000
    assert len(json.loads((after_demo / "answers.json").read_text("utf-8"))["answers"]) == 5
    info = json.loads(CliRunner().invoke(app, ["info", "town.tfa", "--json"]).stdout)
    assert info["calibrations"] == []  # dropped in step 6
    assert info["images"] == len(list((after_demo / "photos").iterdir()))  # one added, one removed


@pytest.mark.parametrize(("page", "least"), [(README, 14), (TUTORIAL, 15)])
def test_no_command_of_the_pages_is_left_out(page, least):
    assert len(steps_of(page)) >= least
    assert set(unmarked(page)) <= ELSEWHERE


def test_no_page_names_an_index_that_does_not_have_us():
    for page in (README, TUTORIAL, *sorted((ROOT / "docs").glob("*.md"))):
        for line in page.read_text("utf-8").splitlines():
            if "pip install tfa" in line:
                raise AssertionError(f"{page.name}: {line.strip()}")

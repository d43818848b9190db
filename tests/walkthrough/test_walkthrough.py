"""A newcomer types what the pages say, in order, and each command does what it should."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.walkthrough.commands import Step, steps_of, unmarked
from tfa.cli.app import app

ROOT = Path(__file__).parents[2]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
# Commands of the README that other tests run: on fresh clones, in an empty environment, by the fault campaign.
ELSEWHERE = {"make demo", "make check", "pip install -c constraints.txt ."}
PORT = "8000"
ADDRESS = f"http://127.0.0.1:{PORT}"


# `tfa` with the quick encoder, in a process of its own.
TFA = """
import sys
import tfa.maps.map
from tests.fakes import FakeEncoder
from tfa.cli.app import main
tfa.maps.map.load_encoder = lambda *_, **__: FakeEncoder()
main()
"""


class Newcomer:
    """Types commands, one after the other. A service goes on in the background until the end."""

    def __init__(self) -> None:
        self.said, self.printed = dict[str, str](), list[str]()
        self._service: subprocess.Popen[str] | None = None
        self._address = ""

    def type(self, step: Step) -> None:
        if step.language == "python":
            text = step.text.replace(ADDRESS, self._address)
            exec(compile(text, "tutorial", "exec"), {"print": lambda *words: self.printed.append(str(words))})
            return
        words = step.words
        assert words[0] == "tfa"
        if words[1] == "serve":
            self._serve(words[1:])
            return
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{step.text}\n{done.output}"
        self.said[" ".join(words)] = done.stdout
        if step.redirected is not None:
            Path(step.redirected).write_text(done.stdout, "utf-8")

    def _serve(self, words: list[str]) -> None:
        """At any free port: 8000 may be taken where tests run."""
        words = [word for word in words if word not in ("--port", PORT)]
        command = [sys.executable, "-c", TFA, *words, "--port", "0"]
        given = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1"}
        self._service = subprocess.Popen(
            command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._service.stdout is not None
        heard = []
        for line in self._service.stdout:
            heard.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                self._address = found[0]
                return
        raise AssertionError("the service did not start:\n" + "".join(heard))

    def leave(self) -> None:
        if self._service is not None:
            self._service.terminate()
            self._service.communicate(timeout=60)
            assert self._service.returncode in (0, -signal.SIGTERM)


@pytest.fixture
def types(newcomer):
    somebody = Newcomer()
    yield somebody
    somebody.leave()


def test_the_readme(types, newcomer):
    for step in steps_of(README):
        types.type(step)
    assert {"town.tfa", "answer.png", "failures.html", "report.html", "explorer.html", "results"} <= {
        path.name for path in newcomer.iterdir()
    }
    answers = json.loads((newcomer / "answers.json").read_text("utf-8"))["answers"]
    assert len(answers) == len(list((newcomer / "evening-walk").iterdir()))
    assert "AnyLoc" in types.said["tfa bench table primary --records results/"]


def test_the_tutorial(types, newcomer):
    for step in steps_of(TUTORIAL):
        types.type(step)
    assert [".jpg" in line for line in types.printed] == [True] * 3  # the client's hits
    assert (
        "night" in types.said["tfa evaluate town.tfa evening-walk/ --ground-truth positives.json --html failures.html"]
    )
    assert (newcomer / "why.png").stat().st_size > 1000
    kept = json.loads(CliRunner().invoke(app, ["info", "town.tfa", "--json"]).stdout)
    assert kept["calibrations"] == []  # dropped on the way
    assert kept["images"] == len(list((newcomer / "photos").iterdir()))  # one came, one went


@pytest.mark.parametrize(("page", "least"), [(README, 14), (TUTORIAL, 15)])
def test_no_command_of_the_pages_is_left_out(page, least):
    assert len(steps_of(page)) >= least
    assert set(unmarked(page)) <= ELSEWHERE


def test_no_page_names_an_index_that_does_not_have_us():
    for page in (README, TUTORIAL, *sorted((ROOT / "docs").glob("*.md"))):
        for line in page.read_text("utf-8").splitlines():
            if "pip install tfa" in line:
                raise AssertionError(f"{page.name}: {line.strip()}")

"""The rendered town as the pages have it: photos/, positions.csv, positives.json, evening-walk/ and the rest."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fakes import FakeEncoder
from tests.waiting import PATIENCE, child_environment
from tests.walkthrough.commands import ROOT, Step
from tfa.cli.app import app
from town.traverses import render_town

REFERENCES, QUERIES = 16, 10
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


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a newcomer has it after copying the demo's town; drawn once."""
    root = tmp_path_factory.mktemp("newcomer")
    town = render_town(root / "town", references=REFERENCES, queries=QUERIES, size=(96, 72))
    (root / "photos").mkdir()
    renamed = {name: f"{number:04d}.jpg" for number, name in enumerate(town.reference_files)}
    for name, short in renamed.items():
        shutil.copy(town.references / name, root / "photos" / short)
    positions = town.positions_csv.read_text("utf-8")
    for name, short in renamed.items():
        positions = positions.replace(name, short)
    (root / "positions.csv").write_text(positions, "utf-8")
    truth = {query: [renamed[name] for name in names] for query, names in town.positives.items()}
    (root / "positives.json").write_text(json.dumps(truth), "utf-8")
    for folder in ("evening-walk", "drive"):
        shutil.copytree(town.queries, root / folder)
    # Of the walk itself: two photos cannot be told apart in so small a picture by anything but their noise.
    (root / "robot-camera").mkdir()
    for name in town.query_files[::2]:
        shutil.copy(town.queries / name, root / "robot-camera" / name)
    shutil.copy(town.queries / town.query_files[4], root / "photo.jpg")
    shutil.copy(town.queries / town.query_files[7], root / "new.jpg")
    for part, source in (("database", town.references), ("queries", town.queries)):
        (root / "data" / "my-town" / part).mkdir(parents=True)
        for number, path in enumerate(sorted(source.glob("*.jpg"))[:QUERIES]):
            shutil.copy(path, root / "data" / "my-town" / part / f"{number:07d}.jpg")
    pairs = {f"{number:07d}.jpg": [f"{number:07d}.jpg"] for number in range(QUERIES)}
    (root / "data" / "my-town" / "positives.json").write_text(json.dumps(pairs), "utf-8")
    (root / "demo-out").mkdir()
    (root / "town").rename(root / "demo-out" / "town")
    return root


def use_quick_encoder(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    """Enter a working folder with its own cache and a quick encoder in place of the default one."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("TFA_CACHE", str(work.parent / "cache"))
    import tfa.maps.building.passes
    import tfa.maps.map

    for name, module in list(sys.modules.items()):
        if name.startswith("tfa.") and hasattr(module, "load_encoder"):
            monkeypatch.setattr(module, "load_encoder", lambda *_, **__: FakeEncoder())
    tfa.maps.building.passes._load_once.cache_clear()


@pytest.fixture
def newcomer(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of one walk."""
    work = tmp_path / "work"
    shutil.copytree(drawn, work, ignore=shutil.ignore_patterns("demo-out"))
    use_quick_encoder(monkeypatch, work)
    return work


@pytest.fixture
def after_demo(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with nothing but the photos that `tfa demo` writes."""
    work = tmp_path / "work"
    shutil.copytree(drawn / "demo-out", work / "demo-out")
    use_quick_encoder(monkeypatch, work)
    return work


class Newcomer:
    """Types commands, one after the other. A service runs in the background until the end."""

    def __init__(self) -> None:
        self.said, self.printed = dict[str, str](), list[str]()
        self._service: subprocess.Popen[str] | None = None
        self._address = ""

    def type(self, step: Step) -> None:
        if step.language == "python":
            text = step.text.replace(ADDRESS, self._address)
            exec(compile(text, "page", "exec"), {"print": lambda *words: self.printed.append(str(words))})
            return
        words = step.words
        if words[0] != "tfa":
            self._shell(step)
            return
        if words[1] == "serve":
            self._serve(words[1:])
            return
        done = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{step.text}\n{done.output}"
        self.said[" ".join(words)] = done.stdout
        if step.redirected is not None:
            Path(step.redirected).write_text(done.stdout, "utf-8")

    def tfa(self, command: str) -> None:
        self.type(Step("sh", f"tfa {command}"))

    def _shell(self, step: Step) -> None:
        """Run curl, or a command that copies files."""
        assert step.words[0] in ("curl", "cp", "mkdir"), step.text
        if shutil.which(step.words[0]) is None:
            return
        command = step.text.replace(ADDRESS, self._address)
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.said[step.text] = done.stdout

    def _serve(self, words: list[str]) -> None:
        """Serve at any free port: 8000 may be taken."""
        words = [word for word in words if word not in ("--port", PORT)]
        command = [sys.executable, "-c", TFA, *words, "--port", "0"]
        environment = child_environment(ROOT, PYTHONUNBUFFERED="1")
        self._service = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._service.stdout is not None
        lines = []
        for line in self._service.stdout:
            lines.append(line)
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address:
                self._address = address[0]
                return
        raise AssertionError("the service did not start:\n" + "".join(lines))

    def leave(self) -> None:
        if self._service is not None:
            self._service.terminate()
            self._service.communicate(timeout=PATIENCE)
            assert self._service.returncode in (0, -signal.SIGTERM)


@pytest.fixture
def types() -> Iterator[Newcomer]:
    somebody = Newcomer()
    yield somebody
    somebody.leave()

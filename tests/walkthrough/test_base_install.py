"""The README's commands in an environment that has only the base dependencies, so no PyTorch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.waiting import PATIENCE, child_environment
from tests.walkthrough.commands import ROOT, steps_of
from tfa.encoders import load_encoder
from tfa.errors import WeightsMissing

MOST_PACKAGES = 35  # and ourselves

# Runs commands in order in one process, and the service in another until it answers.
SCRIPT = """
import importlib.util, json, re, subprocess, sys, urllib.request
from typer.testing import CliRunner
from tfa.cli.app import app

assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("transformers") is None
for words in json.load(sys.stdin):
    if words[0] == "serve":
        command = [sys.executable, "-m", "tfa", *words, "--port", "0"]
        service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        addresses = (re.search(r"http://127[.]0[.]0[.]1:[0-9]+", line) for line in service.stdout)
        address = next(found[0] for found in addresses if found)
        assert urllib.request.urlopen(f"{address}/healthz").status == 200
        service.terminate()
        service.wait()
        continue
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{words}\\n{done.output}\\n{done.exception!r}"
"""


def list_base_packages() -> set[str]:
    """Return the distributions that pip installs with ours, without extras."""
    packages: set[str] = set()
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    while needed:
        requirement = Requirement(needed.pop())
        name = canonicalize_name(requirement.name)
        if name not in packages and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            packages.add(name)
            needed += distribution(name).requires or ()
    return packages


def test_the_base_install_is_small() -> None:
    packages = list_base_packages()
    assert len(packages) <= MOST_PACKAGES, sorted(packages)
    assert not {"torch", "transformers"} & packages


@pytest.mark.encoder
@pytest.mark.slow
def test_the_readme_needs_only_the_base_install(drawn: Path, tmp_path: Path) -> None:
    try:
        load_encoder()
    except WeightsMissing as error:
        pytest.skip(f"the default encoder's weights are not available: {error}")
    venv.create(tmp_path / "env", symlinks=True)
    [packages] = (tmp_path / "env").glob("lib/python*/site-packages")
    for name in list_base_packages():
        files = distribution(name)
        for top in {file.parts[0] for file in files.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(files.locate_file(top))
    work = tmp_path / "work"
    shutil.copytree(drawn, work, ignore=shutil.ignore_patterns("demo-out", "data"))
    commands = [step.words[1:] for step in steps_of(ROOT / "README.md") if step.words[0] == "tfa"]
    commands = [words for words in commands if words[0] != "bench"]  # tfa-bench installs torch
    assert {"build", "query", "calibrate", "evaluate", "report", "serve"} <= {words[0] for words in commands}
    environment = child_environment(ROOT, PYTHONPATH=str(ROOT / "src"))
    done = subprocess.run(
        [tmp_path / "env/bin/python", "-c", SCRIPT], input=json.dumps(commands), cwd=work, env=environment,
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (work / "failures.html").exists()
    assert sys.prefix != str(tmp_path / "env")

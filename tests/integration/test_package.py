"""What is distributed: the wheel holds every file of the package, the source archive all that its tests need."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, tracked_files

LEFT_OUT = {
    ".ci",
    ".gitattributes",
    ".gitignore",
    "pyproject.toml",
    "results",
}  # hatch adds pyproject.toml and .gitignore by itself


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--disable-pip-version-check",
        "--wheel-dir",
        tmp_path,
    ]
    done = subprocess.run([*map(str, command), str(ROOT)], capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in done.stdout + done.stderr:
        pytest.skip("no package index to fetch the build backend from")
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("tfa_vpr-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tfa/")}
    package = {file.relative_to(ROOT / "src").as_posix() for file in tracked_files() if ROOT / "src" in file.parents}
    assert {Path(name).suffix for name in package} >= {".py", ".html", ".js", ".css", ".json", ".typed"}
    assert sorted(package - held) == []


def test_the_source_archive_holds_what_tests_and_documents_need() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = set(settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert {file.relative_to(ROOT).parts[0] for file in tracked_files()} - included == LEFT_OUT

"""A wheel and an sdist are built, installed where nothing else of the project is, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.test_layout import ROOT, tracked_files
from tests.dependencies.audit import pins
from tfa.version import __version__

pytestmark = pytest.mark.slow
# hatch adds pyproject.toml and .gitignore by itself
LEFT_OUT = {".ci", ".gitattributes", ".gitignore", ".pre-commit-config.yaml", "pyproject.toml", "results"}
# Asked of an installed copy: where it is, its version, that its files other than Python came along, one search.
USED = """
import numpy as np, tfa
from importlib.resources import files
head = tfa.fit(tfa.Tokens(np.random.default_rng(0).normal(size=(12, 9, 8))), tfa.HeadSpec(words=3))
found, _ = head.search(tfa.Tokens(np.random.default_rng(0).normal(size=(12, 9, 8))), k=1)
pages = [one.name for one in (files("tfa") / "report" / "templates").iterdir()]
print(tfa.__file__, tfa.__version__, (found[:, 0] == np.arange(12)).mean(), len(pages) > 0, sep="\\n")
"""


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Built from the files a checkout has, which a clone has too."""
    pytest.importorskip("hatchling", reason="hatchling is not installed (pip install -e '.[dev]')")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder)
    return folder


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_an_installed_package_works(built, kind, tmp_path):
    (package,) = built.glob(kind)
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet")
    run(sys.executable, "-m", "pip", "install", *offline, "--target", tmp_path, package)
    told = run(sys.executable, "-c", USED, PYTHONPATH=str(tmp_path)).split("\n")
    assert Path(told[0]).is_relative_to(tmp_path)
    assert told[1:4] == [__version__, "1.0", "True"]


def test_the_container_copies_what_a_build_needs(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed (pip install -e '.[dev]')")
    lines = (ROOT / "examples/deploy/Dockerfile").read_text("utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") and "--from" not in line for name in line.split()[1:-1]]
    assert "requirements-build.txt" in copied
    for name in copied:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path / "dist", cwd=tmp_path)
    assert list((tmp_path / "dist").glob("tfa_vpr-*.whl"))


def test_a_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name.split("/")[0] for name in held} == {"tfa", f"tfa_vpr-{__version__}.dist-info"}
    package = {file.relative_to(ROOT / "src").as_posix() for file in tracked_files() if ROOT / "src" in file.parents}
    assert {Path(name).suffix for name in package} >= {".py", ".html", ".js", ".css", ".json", ".typed"}
    assert sorted(package - held) == []


def test_a_wheel_lists_its_dependencies_with_pinned_versions(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        listed = json.loads(archive.read(f"tfa_vpr-{__version__}.dist-info/sboms/tfa.cdx.json"))
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    main = listed["metadata"]["component"]
    assert (main["name"], main["version"], main["purl"]) == ("tfa-vpr", __version__, f"pkg:pypi/tfa-vpr@{__version__}")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = {canonicalize_name(name): version for name, version in pins().items()}
    base = {canonicalize_name(Requirement(one).name) for one in settings["dependencies"]}
    components = {one["name"]: one for one in listed["components"]}
    assert len(base) > 5
    for name in base:
        assert (components[name]["version"], components[name]["scope"]) == (pinned[name], "required")
        assert components[name]["purl"] == f"pkg:pypi/{name}@{pinned[name]}"
    assert components["psycopg"]["scope"] == "optional"
    assert components["psycopg-binary"]["version"] == pinned["psycopg-binary"]  # of psycopg[binary]
    assert "pytest" not in components
    assert components["uPlot"]["version"] in (ROOT / "src/tfa/evaluate/vendor/uplot/uPlot.iife.min.js").read_text()[:99]
    assert listed["dependencies"][0]["dependsOn"] == [one["bom-ref"] for one in listed["components"]]


def test_an_sdist_includes_whatever_is_tracked_but_for_what_no_user_needs():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = set(settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert {file.relative_to(ROOT).parts[0] for file in tracked_files()} - included == LEFT_OUT


def test_an_sdist_holds_what_its_tests_need(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "hatch_build.py", "LICENSE", "CITATION.cff", "SECURITY.md"} <= names
    assert "tests/conftest.py" in names
    assert not [name for name in names if name.startswith(("results/", ".venv"))]


def test_the_citation_is_of_this_version():
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.*)$", cited, re.MULTILINE) == [__version__]


def test_the_benchmark_is_a_distribution_of_the_same_version(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling is not installed (pip install -e '.[dev]')")
    folder = ROOT / "benchmarks"
    settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert (settings["version"], settings["license"]) == (__version__, "Apache-2.0")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    about = f"tfa_bench-{__version__}.dist-info"
    assert {name.split("/")[0] for name in held} == {"tfa_bench", about}
    assert f"{about}/licenses/LICENSE" in held
    package = {
        file.relative_to(folder / "src").as_posix() for file in tracked_files() if folder / "src" in file.parents
    }
    assert sorted(package - held) == []

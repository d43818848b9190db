"""constraints.txt pins every dependency of every extra, and the audit reports failures."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.dependencies.audit import Audit, pins
from tests.dependencies.hashes import HASHED, list_requirements
from tfa.version import __version__

ROOT = Path(__file__).parents[2]
_FILES = ["pyproject.toml", "benchmarks/pyproject.toml", "plugins/*/pyproject.toml"]
PROJECTS = [
    tomllib.loads(path.read_text("utf-8"))["project"] for pattern in _FILES for path in sorted(ROOT.glob(pattern))
]
INSTALLER = "pip"  # what installs by the pins is not installed by them
PINNED = {canonicalize_name(name): version for name, version in pins().items()}


def direct() -> list[Requirement]:
    lists = [[project["dependencies"], *project.get("optional-dependencies", {}).values()] for project in PROJECTS]
    needed = [Requirement(one) for extras in lists for extra in extras for one in extra]
    return [one for one in needed if one.name not in {project["name"] for project in PROJECTS}]


def reached(requirements: list[Requirement] | None = None) -> dict[str, str]:
    """Return the versions of requirements and what they need, as far as it is installed; default: all extras."""
    seen, versions, left = set[str](), dict[str, str](), requirements or direct()
    while left:
        one = left.pop()
        if str(one) in seen:
            continue
        seen.add(str(one))
        try:
            found = distribution(one.name)
        except PackageNotFoundError:  # of an extra that is not installed
            continue
        versions[canonicalize_name(one.name)] = found.version
        for needed in map(Requirement, found.requires or []):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *one.extras}):
                left.append(needed)
    versions.pop(INSTALLER, None)
    return versions


def test_distributions_have_one_version():
    assert [project["name"] for project in PROJECTS] == [
        "tfa-vpr",
        "tfa-bench",
        "tfa-lance",
        "tfa-milvus",
        "tfa-qdrant",
    ]
    assert {project["version"] for project in PROJECTS[1:]} == {__version__}


def test_every_direct_dependency_is_pinned_to_a_version_it_allows():
    assert len(direct()) > 20
    for one in direct():
        assert one.specifier.contains(PINNED[canonicalize_name(one.name)]), one


def test_everything_that_is_installed_for_the_project_is_pinned():
    assert len(reached()) > 60
    assert [name for name in reached() if name not in PINNED] == []


def test_what_is_installed_is_what_is_pinned():
    # A build for one kind of machine (2.13.0+cpu) is the same release.
    other = {name: version for name, version in reached().items() if Version(version).public != PINNED[name]}
    assert other == {}


def test_the_files_of_a_build_have_hashes_and_the_pinned_versions():
    lines = HASHED.read_text("utf-8").replace("\\\n", "").splitlines()
    hashed = {line.split("==")[0]: line.split() for line in lines if not line.startswith("#")}
    needed = reached([Requirement(one) for one in list_requirements()])
    assert {canonicalize_name(name) for name in hashed} >= needed.keys() >= {"numpy", "fastapi", "hatchling"}
    for name, (pin, *hashes) in hashed.items():
        assert pin == f"{name}=={PINNED[canonicalize_name(name)]}"
        assert hashes
        assert all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes), name


WEAK = {"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": ["CVE-1"], "description": "long"}
TOLD = {"dependencies": [
    {"name": "ml-dtypes", "version": "1.0", "vulns": [WEAK]},
    {"name": "numpy", "version": "2.0", "vulns": []},
    {"name": "rich", "skip_reason": "Dependency not found on PyPI and could not be audited: rich (3.0)"},
]}  # fmt: skip


def test_an_audit_says_what_is_weak_and_what_was_not_asked_about():
    audit = Audit.of(json.dumps(TOLD), {"ml_dtypes": "1.0", "numpy": "2.0", "rich": "3.0", "gone": "4.0"})
    assert audit == Audit(["ml_dtypes 1.0: PYSEC-1, CVE-1, fixed in 1.1"], 2, ["rich==3.0", "gone==4.0"])
    assert not audit.passed
    assert str(audit).splitlines()[0] == "4 versions are pinned; 2 were asked about, with 1 known weaknesses"
    assert "no audit of these" in str(audit)


@pytest.mark.parametrize("written", ["", "no such host", '{"dependencies": []}'])
def test_an_audit_that_asked_about_nothing_does_not_pass(written):
    audit = Audit.of(written, {"numpy": "2.0"})
    assert (audit.asked, audit.not_asked, audit.passed) == (0, ["numpy==2.0"], False)


def test_an_audit_that_finds_nothing_passes():
    assert Audit.of(json.dumps(TOLD), {"numpy": "2.0"}).passed

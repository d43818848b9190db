"""Write a software bill of materials into the wheel: `tfa_vpr-*.dist-info/sboms/tfa.cdx.json`, as in PEP 770.

    python hatch_build.py       prints it

CycloneDX 1.6, made from pyproject.toml, constraints.txt and the vendored files' `origin.json`. It has no time and no
random number, so that the same sources give the same wheel.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # printing it needs no hatchling
    BuildHookInterface = object  # type: ignore[assignment, misc]

NAME = "tfa.cdx.json"
_NOT_FOR_USERS = {"audit", "dev", "docs", "fuzz"}  # extras of developers
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(root: Path) -> dict[str, str]:
    """Return the pinned versions by canonical name."""
    lines = [line.split("#")[0].strip() for line in (root / "constraints.txt").read_text("utf-8").splitlines()]
    pairs = [line.split("==") for line in lines if line]
    return {_canonical(name): version for name, version in pairs}


def make_sbom(root: Path) -> dict[str, Any]:
    """Return the CycloneDX document of the package in `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    [version] = re.findall(r'__version__ = "(.+)"', (root / "src/tfa/version.py").read_text("utf-8"))
    pins, own = read_pins(root), _canonical(project["name"])
    extras = {name: deps for name, deps in project["optional-dependencies"].items() if name not in _NOT_FOR_USERS}
    required = _list_names(project["dependencies"], pins)
    optional = [name for deps in extras.values() for name in _list_names(deps, pins) if name not in {*required, own}]
    main = f"pkg:pypi/{own}@{version}"
    components = [_make_component(name, pins.get(name), "required") for name in required]
    components += [_make_component(name, pins.get(name), "optional") for name in sorted(set(optional))]
    components += [_make_vendored(path) for path in sorted((root / "src/tfa").rglob("vendor/*/origin.json"))]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library", "bom-ref": main, "name": project["name"], "version": version, "purl": main,
                "description": project["description"], "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": [one["bom-ref"] for one in components]}],
        # Dependencies of these are pinned in constraints.txt, but not listed here.
        "compositions": [{"aggregate": "incomplete", "dependencies": [main]}],
    }  # fmt: skip


def _list_names(requirements: list[str], pins: dict[str, str]) -> list[str]:
    """Return the names of requirements, and of the packages that their extras add by name: `psycopg[binary]`."""
    found = [one for one in map(_REQUIREMENT.match, requirements) if one is not None]
    names = [[one[1], *(f"{one[1]}-{extra}" for extra in (one[2] or "").split(","))] for one in found]
    first = [_canonical(one[0]) for one in names]
    return first + [name for one in names for name in map(_canonical, one[1:]) if name in pins]


def _make_component(name: str, version: str | None, scope: str) -> dict[str, Any]:
    """Describe a dependency; one without a pin has no version."""
    pinned = {} if version is None else {"version": version}
    purl = f"pkg:pypi/{name}" if version is None else f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, **pinned, "scope": scope, "purl": purl}


def _make_vendored(origin: Path) -> dict[str, Any]:
    """Describe files of another project that the wheel holds."""
    about = json.loads(origin.read_text("utf-8"))
    purl = f"pkg:npm/{about['name'].lower()}@{about['version']}"
    files = [
        {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for name, digest in sorted(about["sha256"].items())
    ]
    return {
        "type": "library", "bom-ref": purl, "name": about["name"], "version": about["version"], "scope": "required",
        "purl": purl, "licenses": [{"license": {"id": about["licence"]}}], "components": files,
    }  # fmt: skip


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Add the document to a wheel; hatchling calls it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = Path(tempfile.mkdtemp(prefix="tfa-sbom-"))
        (self._folder / NAME).write_text(json.dumps(make_sbom(Path(self.root)), indent=1) + "\n", encoding="utf-8")
        build_data["sbom_files"].append(str(self._folder / NAME))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    json.dump(make_sbom(Path(__file__).parent), sys.stdout, indent=1)

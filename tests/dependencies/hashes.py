"""Write requirements-build.txt: the base install and the build backend, with a hash of every file.

    python -m tests.dependencies.hashes

pip resolves them by constraints.txt for each system and Python below, and reports the files it would install.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
HASHED = ROOT / "requirements-build.txt"
# The newest tag of each system that wheels need; pip does not know the older ones that it includes.
SYSTEMS = {
    "Linux x86-64": [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "2014")],
    "Linux ARM64": [f"manylinux{tag}_aarch64" for tag in ("_2_28", "_2_27", "_2_24", "_2_17", "2014")],
    "macOS ARM64": [f"macosx_{version}_0_arm64" for version in (15, 14, 13, 12, 11)],
}
PYTHONS = ("3.11", "3.12", "3.13")
HEAD = """# Files that the wheel and the container image are built from: {systems}; Python {pythons}.
# Written by: python -m tests.dependencies.hashes
"""


def list_requirements() -> list[str]:
    """Return the base dependencies and the build backend."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return [*project["project"]["dependencies"], *project["build-system"]["requires"]]


def resolve(tags: list[str], python: str) -> dict[str, str]:
    """Return the sha256 of each file that pip would install, by `name==version`."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--target", folder, "--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
        command += [part for tag in tags for part in ("--platform", tag)]
        command += ["--constraint", str(ROOT / "constraints.txt"), *list_requirements()]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {
        f"{one['metadata']['name'].lower()}=={one['metadata']['version']}": one["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for one in report["install"]
    }


def main() -> None:
    hashes = defaultdict[str, set[str]](set)
    for name, tags in SYSTEMS.items():
        for python in PYTHONS:
            print(f"{name}, Python {python}", file=sys.stderr)
            for pin, digest in resolve(tags, python).items():
                hashes[pin].add(digest)
    lines = [HEAD.format(systems=", ".join(SYSTEMS), pythons=", ".join(PYTHONS))]
    for pin in sorted(hashes):
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin]))]) + "\n")
    HASHED.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()

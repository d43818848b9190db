"""Settings files: the defaults that every command takes from them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from tests.faults.files.targets import Layer, Target, files_below
from tfa.cli.app import app
from tfa.cli.options import Settings

TOML = """encoder = "dinov2-b14"
threads = 2
cache-limit = 4.5
quiet = true
[build]
skip-bad = true
set = ["head.words=16"]
[query]
k = 5
min-confidence = 0.3
[bench.run]
depth = 5
[loops]
fov = 90.0
gap = "30s"
[add]
session = "day"
gpx-offset = 1.5
"""


def _write_toml(value: Any) -> str:
    """Write a value of JSON as TOML, which has no null, and no numbers above 64 bits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_write_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_write_toml, value)) + "]"
    return "nan" if value is None else json.dumps(value)


def _wrap(changed: bytes, whole: bytes) -> bytes:
    try:
        tables = json.loads(changed)
        return "".join(f"{json.dumps(key)} = {_write_toml(one)}\n" for key, one in tables.items()).encode()
    except (ValueError, AttributeError):  # damaged as JSON
        return changed


VALUES = Layer(lambda data: json.dumps(tomllib.loads(data.decode())).encode(), _wrap)


def toml(name: str, folder: Path) -> Target:
    (folder / "tfa.toml").write_text(TOML)
    (folder / "guarded.toml").write_text("[query]\nk = 3\n[serve]\nport = 80\n[cache]\njson = true\n")
    group: Any = get_command(app)

    def read(folder: Path, victim: str, changed: bool) -> None:
        parsed = Settings.read(folder / victim, guards=victim == "guarded.toml")
        context = typer.Context(group, info_name="tfa")
        json.dumps(parsed.defaults(group, context), default=str)

    files = files_below(folder, "*.toml")
    return Target(name, files, read, dict.fromkeys(files, VALUES))

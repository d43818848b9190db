"""Settings files: the defaults that every command takes from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from tests.faults.files.targets import Target, files_below
from tfa.cli.app import app
from tfa.cli.options import Settings

TOML = """encoder = "dinov2-b14"
threads = 2
cache-limit = 4.5
quiet = true
[build]
words = 32
skip-bad = true
set = ["words=16"]
[query]
k = 5
min-confidence = 0.3
[bench.run]
depth = 5
"""


def toml(name: str, folder: Path) -> Target:
    (folder / "tfa.toml").write_text(TOML)
    (folder / "guarded.toml").write_text("[query]\nk = 3\n[serve]\nport = 80\nmax-batch = 2\n")
    group: Any = get_command(app)

    def read(folder: Path, victim: str, changed: bool) -> None:
        for guards in (False, True):
            parsed = Settings.read(folder / victim, guards=guards)
            context = typer.Context(group, info_name="tfa")
            json.dumps(parsed.defaults(group, context), default=str)

    return Target(name, files_below(folder, "*.toml"), read)

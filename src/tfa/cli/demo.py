"""`tfa demo`: a small rendered town, a map of it, and how well it is recognised in other light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import print_text, wants_progress


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures, the map and the report.")] = Path("demo-out"),
    references: Annotated[int, typer.Option(min=2, help="Photos of the first traverse: the map.")] = 90,
    queries: Annotated[int, typer.Option(min=1, help="Photos of the second traverse: the questions.")] = 45,
    quiet: options.Quiet = False,
) -> None:
    """Render a town, build a map of it and query it: the whole path in a few minutes."""
    options.check_writable(out)

    from tfa.demo.run import run_demo

    result = run_demo(out, references=references, queries=queries, progress=wants_progress(quiet))
    print_text(f"{result}\n")

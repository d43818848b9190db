"""`tfa demo`: photos of a small town, a map of it, and its recall in other light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import print_text, wants_progress


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures, the map and the report.")] = Path("demo-out"),
    references: Annotated[int, typer.Option(min=2, max=90, help="Photos of the first drive: the map.")] = 90,
    queries: Annotated[int, typer.Option(min=1, max=45, help="Photos of the second drive: the queries.")] = 45,
    quiet: options.Quiet = False,
) -> None:
    """Build a map of sample photos and query it: the whole path in a few minutes."""
    options.check_writable(out)

    from tfa.demo.run import run_demo

    result = run_demo(out, references=references, queries=queries, progress=wants_progress(quiet))
    print_text(f"{result}\n")

"""What the command line prints and where: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tfa.cli import streams
from tfa.core.text import make_lines_printable, make_printable

_NUMBERS = ("", "id", "score", "confidence", "inliers", "images", "parameters", "patch", "size", "metres")  # headings
PIPED_WIDTH = 160  # without a terminal rich assumes 80 columns, too few for a table with paths


class PlainConsole(Console):
    """Prints text as it is, file names too: neither markup nor the terminal's own codes are obeyed."""

    def render_str(self, text: str, **options: Any) -> Text:  # every text passes here, in a table too
        return super().render_str(make_printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        with streams.name_stream(stderr=self.stderr):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise  # the shell ends quietly; rich would end here, and close the wrong stream


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: `[x].jpg` and `:a:.png` are file names, not markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def say(text: str = "", style: str | None = None) -> None:
    """A line of the result."""
    console().print(text, style=style, soft_wrap=True)


def note(*lines: str) -> None:
    _titled("note:", "yellow", lines)


def show_error(*lines: str) -> None:
    _titled("error:", "bold red", lines)


def show_notes(notes: Iterable[str], skipped: Sequence[tuple[str, str]] = ()) -> list[dict[str, str]]:
    """Notes and skipped files in words; returns the files as JSON has them."""
    for text in notes:
        note(text)
    if skipped:
        note(f"{format_count(len(skipped), 'file')} skipped:", *(f"  {file}: {reason}" for file, reason in skipped))
    return [{"file": file, "reason": reason} for file, reason in skipped]


def _titled(title: str, style: str, lines: Iterable[str]) -> None:
    text = "\n".join(map(make_printable, lines))
    console(stderr=True).print(Text.assemble((title, style), " ", text), soft_wrap=True)


def print_json(value: Any) -> None:
    with streams.name_stream():
        typer.echo(json.dumps(value, indent=1, allow_nan=False))  # in ASCII: control characters are escaped


def print_text(text: str) -> None:
    """A page or table that ends its own lines."""
    with streams.name_stream():
        typer.echo(make_lines_printable(text), nl=False)


def delivered(value: Any, *, out: Path | None, json: bool) -> bool:
    """Write a result to `out` if given, print it as JSON if wanted; false if it is still to be shown."""
    from tfa.core.files import write_json

    if out is not None:
        write_json(out, value)
        note(f"wrote {out}")
    if json:
        print_json(value)
    return json


def open_table(*headings: str, fold: Container[str] = ()) -> Table:
    """A table without lines. Columns of numbers stand at the right; those in `fold` break where they are too long."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        justify: Any = "right" if heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in fold, overflow="fold")
    return table


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def examples(*lines: str) -> str:
    """The epilog of a command; blank lines between its lines are how typer keeps them apart."""
    shown = [f"[cyan]$ {escape(line)}[/cyan]" for line in lines]
    return "\n\n".join(["[bold]Examples[/bold]", *shown])


def wants_progress(quiet: bool) -> bool:
    """Bars and lines go to standard error, so they do no harm to JSON."""
    return not quiet

"""Print results on standard output and everything else on standard error.

A stream that is closed, full or no longer read ends the program quietly; the exit code says what happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperCommand, TyperGroup

from tfa.core.plain import to_plain
from tfa.core.text import format_count, make_lines_printable, make_printable
from tfa.types import SkippedFile

# --- streams --------------------------------------------------------------------------------------

NOT_PRINTED = 1  # exit code if the result could not be written
PIPE_CLOSED = 141  # exit code that shells report if the reader of a pipe is gone, as `head -1` is
NO_MEMORY = b"error: there is not enough memory; saved maps are unchanged. Close other programs and rerun\n"


def open_missing() -> None:
    """Put the null device where a stream was closed (`>&-`).

    Otherwise the next file that is opened, such as a map, gets its number, and output is written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


@contextlib.contextmanager
def name_stream(*, stderr: bool = False) -> Iterator[None]:
    """Name the stream in an error, which otherwise looks like an error of a file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard error" if stderr else "standard output") from error


def end_without_memory() -> NoReturn:
    """Print an error and exit without allocating memory."""
    with contextlib.suppress(OSError):
        os.write(2, NO_MEMORY)
    os._exit(NOT_PRINTED)


def discard_output() -> None:
    """Discard the buffer of standard output, so that the interpreter does not try to write it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):  # tests use streams without a number
        pass
    finally:
        os.close(null)


# --- console --------------------------------------------------------------------------------------

# Headings of columns that hold numbers.
_NUMBERS = ("", "id", "score", "confidence", "inliers", "images", "parameters", "patch", "size", "meters")
# A Python argument next to its option, as in `--skip-bad (skip_bad=True)`.
_PYTHON = re.compile(r"(?<=--)([a-z-]+) \([a-z_]+=\w+\)|[a-z_]+=\w+ \(--([a-z-]+)\)")
PIPED_WIDTH = 160  # without a terminal rich assumes 80 columns, too few for a table with paths


class PlainConsole(Console):
    """Print text literally, without markup or terminal codes."""

    def render_str(self, text: str, **options: Any) -> Text:  # also called for the cells of tables
        return super().render_str(make_printable(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        with name_stream(stderr=self.stderr):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise  # rich would exit here and close the wrong stream


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text literally: `[x].jpg` and `:a:.png` are file names, not markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def say(text: str = "", style: str | None = None) -> None:
    """Print a line of the result."""
    console().print(text, style=style, soft_wrap=True)


def note(*lines: str) -> None:
    _titled("note:", "yellow", lines)


def show_error(*lines: str) -> None:
    _titled("error:", "bold red", lines)


def show_notes(notes: Iterable[str], skipped: Sequence[tuple[str, str]] = ()) -> list[SkippedFile]:
    """Print notes and skipped files; return the files for JSON."""
    for text in notes:
        note(text)
    if skipped:
        note(
            f"{format_count(len(skipped), 'file')} skipped:",
            *(f"  {reason if reason.startswith(file) else f'{file}: {reason}'}" for file, reason in skipped),
        )
    return [SkippedFile(file=file, reason=reason) for file, reason in skipped]


def _titled(title: str, style: str, lines: Iterable[str]) -> None:
    text = _PYTHON.sub(lambda match: match[1] or f"--{match[2]}", "\n".join(map(make_printable, lines)))
    console(stderr=True).print(Text.assemble((title, style), " ", text), soft_wrap=True)


def print_json(value: Any) -> None:
    with name_stream():
        typer.echo(json.dumps(to_plain(value), indent=1, allow_nan=False))  # ASCII escapes control characters


def print_text(text: str) -> None:
    """Print a text of several lines."""
    with name_stream():
        typer.echo(make_lines_printable(text), nl=False)


def delivered(value: Any, *, out: Path | None = None, json: bool) -> bool:
    """Write a result to `out` and print it as JSON; return False if it was not printed."""
    if out is not None:
        from tfa.core.files import write_json

        write_json(out, to_plain(value))
        note(f"wrote {out}")
    if json:
        print_json(value)
    return json


def open_table(*headings: str, fold: Container[str] = ()) -> Table:
    """Make a table without lines. Numbers are aligned right; columns in `fold` wrap."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        justify: Any = "right" if heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=heading not in fold, overflow="fold")
    return table


# --- help -----------------------------------------------------------------------------------------


def examples(*lines: str) -> str:
    """Return the epilog of a command; typer needs blank lines between its lines."""
    shown = [f"[cyan]$ {escape(line)}[/cyan]" for line in lines]
    return "\n\n".join(["[bold]Examples[/bold]", *shown])


def join_lines(text: str) -> str:
    """Join the lines of each paragraph, so that a help text wraps at the terminal's width."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def format_range(low: float | None, high: float | None) -> str:
    """Write the bounds of a number, with a space before them."""
    if low is None and high is None:
        return ""
    return f" ({low}..{high})" if None not in (low, high) else f" (>={low})" if high is None else f" (<={high})"


def name_values(params: list[Any]) -> list[Any]:
    """Name values as help texts do, without the Python types that typer prints, and hide rarely used options."""
    for param in params:
        if isinstance(param, TyperArgument):
            param.display_type_rich = lambda ctx: ""  # type: ignore[method-assign]
        elif param.is_flag:
            param.metavar = param.metavar or ""
        elif param._get_number_range_help_str():
            param.metavar = (param.metavar or "N") + format_range(param.min, param.max)
            param._get_number_range_help_str = lambda: None
        param.hidden = param.hidden or param.name in ("install_completion", "show_completion")
    return params


class Command(TyperCommand):
    """A command whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return name_values(super().get_params(ctx))


class CommandGroup(TyperGroup):
    """A group of commands whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return name_values(super().get_params(ctx))

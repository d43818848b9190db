"""`tfa`: one verb a file. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import io
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tfa.cli import add_remove_refit as edit
from tfa.cli import bench, build, cache, calibrate, demo, encoders, explain, export, info, query, report, serve
from tfa.cli.console import console, examples, show_error
from tfa.errors import TfaError
from tfa.version import __version__

INTERRUPTED = 130  # what shells report for a program ended by Ctrl-C


class Shell(TyperGroup):
    """Turns whatever a verb raises into one readable block and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --debug is an option of tfa itself, but people add it at the end of the command that failed.
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _show_interruption()
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise  # not errors, or (a closed pipe) handled by typer
        except Exception as error:
            if hasattr(error, "format_message"):
                raise  # a usage error: typer prints it and exits with 2
            if ctx.params.get("debug"):
                traceback.print_exc()
            show_error(_explained(error))
            raise typer.Exit(1) from None


def _explained(error: Exception) -> str:
    if isinstance(error, TfaError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {error}\nThis is a defect of tfa; --debug shows where it happened."


def _show_interruption() -> None:
    from tfa.base.files import cache_folder

    console(stderr=True).print(
        f"\nstopped. Saved maps are as they were; photos encoded so far are kept in {cache_folder()}, "
        "so the same command goes on from there.",
        soft_wrap=True,
    )


app = typer.Typer(
    name="tfa",
    cls=Shell,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tfa {__version__}")
        raise typer.Exit


@app.callback(
    epilog=examples("tfa demo", "tfa build photos/ --out town.tfa", "tfa query town.tfa photo.jpg", "tfa build --help")
)
def tfa(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Visual place recognition without training: a folder of photos becomes a map that knows its places."""


for verb in (build, query, explain, info, report, calibrate, edit, serve, export, encoders, cache, demo, bench):
    verb.register(app)


def main() -> None:
    """The entry point of the `tfa` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without β or → shows ? rather than an error
    app(prog_name="tfa")


if __name__ == "__main__":
    main()

"""The `tfa` command: subcommands, error messages and exit codes. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import io
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from tfa.cli import build, calibrate, evaluate, export, info, loops, options, query, serve, tools
from tfa.cli.console import (
    NOT_PRINTED,
    PIPE_CLOSED,
    Command,
    CommandGroup,
    console,
    discard_output,
    end_without_memory,
    examples,
    join_lines,
    note,
    open_missing,
    show_error,
)
from tfa.cli.map import add, merge, prune_command, refit, relocate, remove, rollback, snapshot_command
from tfa.cli.options import Settings
from tfa.core.plugins import load_plugin, plugin_names, plugin_summary
from tfa.core.text import make_lines_printable, make_printable
from tfa.errors import BadPlugin, BadSpec, MissingExtra, TfaError, UnknownEncoder, from_os_error
from tfa.version import __version__

GROUP = "tfa.commands"
# Commands of this project's other distributions → how to install the distribution.
_INSTALL = {"bench": "pip install tfa-bench, or from a checkout: pip install -e ./benchmarks"}


class PluginCommands(TyperGroup):
    """A group of commands whose module is imported only when one of its commands runs."""

    is_plugin = True

    def __init__(self, name: str, *, summary: str, installed: bool) -> None:
        self.installed = installed
        self._loaded: TyperGroup | None = None
        super().__init__(name=name, help=summary, hidden=not installed, rich_help_panel="Research")

    @property
    def commands(self) -> Any:
        return self.load().commands if self.installed else {}

    @commands.setter
    def commands(self, _: Any) -> None:
        """Ignore the empty commands of the base class."""

    def load(self) -> TyperGroup:
        if self._loaded is None:
            assert self.name is not None
            if not self.installed:
                raise MissingExtra(f"tfa {self.name} is not installed; install with: {_INSTALL[self.name]}")
            app = load_plugin(GROUP, self.name)
            if not isinstance(app, typer.Typer):
                raise BadPlugin(f"{self.name!r} of {GROUP} must be a typer.Typer, got {type(app).__name__}")
            group = typer.main.get_group(app)
            group.name = self.name
            self._loaded = group
        return self._loaded


USAGE = 2  # exit code of bad values and other usage errors
INTERRUPTED = 130  # exit code that shells report for Ctrl-C
# Messages of the option parser → ours. Names of files in them stay as they are.
_REWORDED = {
    r"No such option: (.*)": r"unknown option \1",
    r"No such command '(.*?)'\.(?: Did you mean '(.*?)'.*)?": r"unknown command \1; did you mean \2?",
    r"Option '(.*)' requires .*": r"\1 needs a value",
    r"Option '(.*)' does not take a value\.": r"\1 takes no value",
    r"Got unexpected extra argument\S* \((.*)\)": r"unexpected argument: \1",
    r"Value error, (.*)": r"\1",
    r"(?:[Ff]ile|[Pp]ath|[Dd]irectory) ('.*') (.*)\.": r"\1 \2",
}


class Shell(CommandGroup):
    """Turn errors of commands into readable messages and exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        here = plugin_names(GROUP, self.commands)
        for name in dict.fromkeys([*here, *_INSTALL]):
            summary = plugin_summary(GROUP, name) if name in here else ""
            self.add_command(PluginCommands(name, summary=summary, installed=name in here))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, PluginCommands) else command, rest

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
            from tfa.core.files import cache_folder

            cached = f"Encoded photos are cached in {cache_folder()}; rerun the command to resume."
            console(stderr=True).print()
            console(stderr=True).print(f"interrupted. No saved map was changed. {cached}", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise  # not errors
        except BrokenPipeError:
            raise typer.Exit(PIPE_CLOSED) from None
        except Exception as error:
            if ctx.params.get("debug") and not hasattr(error, "format_message"):
                console(stderr=True).print(Text(_format_traceback(error)), soft_wrap=True, end="")
            _end(error, f"tfa {ctx.invoked_subcommand}", self.commands.get(ctx.invoked_subcommand))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().make_context(*args, **extra)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            _end(error, "tfa")


def _end(error: Any, where: str, command: Any = None) -> NoReturn:
    """Print an error and exit: with 2 after a bad value or another usage error, else with 1."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    if not hasattr(error, "format_message"):
        lines = _split_message(error)
        if not isinstance(error, BadSpec | UnknownEncoder):
            show_error(*lines)
            raise typer.Exit(1) from None
        lines = (_name_option(lines[0], command), *lines[1:])
    else:
        where = where if error.ctx is None else error.ctx.command_path
        lines = (_describe_usage(error),)
    show_error(*lines, f"See {where} --help.")
    raise typer.Exit(USAGE) from None


def _describe_usage(error: Any) -> str:
    """Return the message of a usage error, which begins with the option."""
    param, text = getattr(error, "param", None), error.message
    option = getattr(error, "param_hint", None)
    if option is None and param is not None:
        option = max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or param.name.upper()
    if type(error).__name__ == "MissingParameter":
        return f"missing {option}"
    choices = re.fullmatch(r"(.*) is not one of (.*)\.", text)
    if choices:
        *first, last = choices[2].replace("'", "").split(", ")
        text = f"{choices[1]} is unknown; use {', '.join(first)}{' or ' if first else ''}{last}"
    refused = re.fullmatch(r"Input should be (.*?)(?:, unable .*)?", text)
    if refused and hasattr(error.__cause__, "errors"):
        text = f"{error.__cause__.errors()[0]['input']!r} must be {refused[1]}"
    for pattern, words in _REWORDED.items():
        text = re.sub(f"^{pattern}$", words, text).removesuffix("; did you mean ?")
    if getattr(error, "possibilities", None):
        text += f"; did you mean {error.possibilities[0]}?"
    return f"{option}: {text}" if option else text


def _name_option(text: str, command: Any) -> str:
    """Write `k=0 is …`, as a Python user reads it, as `-k: 0 is …`."""
    name, _, rest = text.partition("=")
    params = {one.name: max(one.opts, key=len) for one in getattr(command, "params", ())}
    keys = {field: key for key, (_, field) in getattr(getattr(command, "callback", None), "settable", {}).items()}
    option = params.get(name) or (f"--set {keys[name]}" if name in keys else None)
    return text if option is None else f"{option}: {rest}"


def _format_traceback(error: BaseException | None) -> str:
    """Format the traceback; line breaks that come from file names are escaped."""
    text, one = traceback.format_exc(), error
    while one is not None:
        lines = one.lines if isinstance(one, TfaError) else (str(one),)
        text = text.replace(str(one) or "\0", "\n".join(map(make_printable, lines)))
        one = one.__cause__ or one.__context__
    return make_lines_printable(text)


def _split_message(error: Exception) -> tuple[str, ...]:
    """Split an error message into display lines."""
    if isinstance(error, TfaError):
        return error.lines
    cause = from_os_error(error)
    if cause is not None:
        return cause.lines
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return (f"{where}{error.strerror or error}",)
    said = f"{type(error).__name__}: {error}".splitlines()
    return *said, "This is a bug in tfa. Rerun with --debug and report the traceback."


app = typer.Typer(
    name="tfa",
    cls=Shell,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tfa {__version__}")
        raise typer.Exit


@app.callback(
    epilog="[bold]Start with[/bold] [cyan]tfa demo[/cyan], or [cyan]tfa build photos/ --out town.tfa[/cyan] and "
    "[cyan]tfa query town.tfa photo.jpg[/cyan]."
)
def tfa(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Build a map from photos, and find where other photos were taken. No training, no labels."""
    read = Settings.find()
    if read.file is not None:
        note(f"settings from {read.file}")
    read.set_environment()
    context.default_map = read.defaults(context.command, context)


# Group of `tfa --help` → its commands in order, with their examples.
COMMANDS: dict[str, dict[Callable[..., None], tuple[str, ...]]] = {
    "Map": {
        build.build: (
            "tfa build photos/ --out town.tfa",
            "tfa build photos/ --out town.tfa --positions where.csv --skip-bad",
            "tfa build north/ south/ --out town.tfa --encoder dinov2-b14 --weights vitb14.pth",
            "tfa build drive.mcap --out town.tfa --topic /camera/image/compressed --every 1m",
            "tfa build photos/ --out town.tfa --paper",
        ),
        info.info: ("tfa info town.tfa", "tfa info town.tfa --evidence", "tfa info town.tfa --checksum"),
        info.report: ("tfa report town.tfa -o report.html", "tfa report town.tfa --json > report.json"),
        calibrate.calibrate_command: (
            "tfa calibrate town.tfa robot-photos/",
            "tfa calibrate town.tfa night-walk/ --name night",
            "tfa calibrate town.tfa --drop night",
        ),
        add: ("tfa add town.tfa new.jpg", "tfa add town.tfa more-photos/ --positions where.csv"),
        remove: ("tfa remove town.tfa photos/old.jpg", "tfa remove town.tfa 17 18"),
        refit: ("tfa refit town.tfa",),
        relocate: ("tfa relocate town.tfa /old/photos /new/photos",),
        merge: ("tfa merge summer.tfa winter.tfa --out year.tfa",),
        prune_command: (
            "tfa prune town.tfa --dry-run",
            "tfa prune town.tfa --photos evening-walk/ --yes",
            "tfa prune town.tfa --unconfirmed 365 --json",
        ),
    },
    "Query": {
        query.query: (
            "tfa query town.tfa photo.jpg",
            "tfa query town.tfa photo.jpg -k 3 --montage answer.png",
            "tfa query town.tfa evening-walk/ --sure --json > answers.json",
            "tfa query town.tfa evening-walk/ --out answers.geojson --out answers.mcap",
            "tfa query town.tfa photo.jpg --calibration night",
            "tfa query town.tfa --sequence drive/ --json > path.json",
            "tfa query town.tfa drive.bag --set frames.every=2s",
            "tfa query postgres://maps@localhost/geo/town photo.jpg --region 13.3,52.4,13.5,52.6",
        ),
        info.explain_command: ("tfa explain town.tfa photo.jpg", "tfa explain town.tfa photo.jpg -o why.png --rank 2"),
        loops.loops: (
            "tfa loops drive/ --out loops.csv",
            "tfa loops drive.mcap --gap 30s --out loops.g2o --out pairs.txt --state drive.state",
        ),
        evaluate.evaluate: (
            "tfa evaluate town.tfa evening-walk/ --ground-truth evening.csv --radius 10",
            "tfa evaluate town.tfa evening-walk/ --ground-truth positives.json --html failures.html",
            "tfa evaluate town.tfa drive/ --ground-truth drive.csv --sequence",
            "tfa evaluate new.tfa evening-walk/ --ground-truth evening.csv --against before.json --html changed.html",
        ),
    },
    "Deploy": {
        serve.serve: (
            "tfa serve town.tfa",
            "tfa serve postgres://maps@localhost/geo/town",
            "TFA_READ_API_KEY=… TFA_EDIT_API_KEY=… tfa serve town.tfa --host 0.0.0.0",
            "tfa serve town.tfa --cors https://example.org --max-upload 8MB",
            "tfa serve town.tfa --cameras 8  # then: curl -F image=@0001.jpg -F camera=cam0 localhost:8000/v1/query",
        ),
        tools.speed: ("tfa speed town.tfa", "tfa speed town.tfa --photos robot-camera/ --fast --json"),
        export.export: (
            "tfa export town.tfa --format npz -o town.npz",
            "tfa export town.tfa --format faiss -o town.faiss",
            "tfa export town.tfa --format onnx --dims 512 -o place.onnx",
            "tfa export town.tfa --format hloc -o map.h5",
            "tfa export town.tfa --format hloc -o queries.h5 --queries images/query/ --root images/",
        ),
        export.pairs: (
            "tfa pairs town.tfa queries/ -o pairs.txt -k 20",
            "tfa pairs town.tfa images/query/ -o pairs.txt --root images/ --format colmap",
            "tfa pairs town.tfa images/query/ -o pairs.txt --format alicevision --views cameraInit.sfm",
        ),
        snapshot_command: (
            "tfa snapshot postgres://maps@localhost/geo/town --to lance:///backups/town",
            "tfa snapshot lance:///backups/town --to postgres://maps@localhost/geo/town",
        ),
        rollback: ("tfa rollback postgres://maps@localhost/geo/town",),
    },
    "Tools": {
        tools.demo: ("tfa demo", "tfa demo --out try --references 30 --queries 15"),
        build.frames: (
            "tfa frames drive.mcap --out frames/ --topic /camera/image/compressed --every 1m",
            "tfa frames ride.mp4 --out frames/ --every 1s --gpx ride.gpx",
            "tfa build frames/ --out drive.tfa --positions frames/positions.csv",
        ),
        build.tiles: (
            "tfa tiles ortho.tif --out tiles/ --size 100 --step 50",
            "tfa build tiles/ --out ortho.tfa --positions tiles/positions.csv",
        ),
        tools.cache: ("tfa cache", "tfa cache --prune --older-than 90 --max-size 20", "tfa cache --clear"),
        options.config: ("tfa config", "TFA_PRECISION=float32 tfa config --json"),
    },
}
VERBS = {command: shown for group in COMMANDS.values() for command, shown in group.items()}
for panel, commands in COMMANDS.items():
    for command, shown in commands.items():
        app.command(
            command.__name__.removesuffix("_command"),
            cls=Command,
            help=join_lines(command.__doc__ or ""),
            epilog=examples(*shown),
            rich_help_panel=panel,
        )(command)
app.add_typer(
    tools.encoders, name="encoders", epilog=examples("tfa encoders", "tfa encoders --json"), rich_help_panel="Tools"
)
app.add_typer(
    tools.weights, name="weights", epilog=examples("tfa weights get dinov2-s14-focus"), rich_help_panel="Tools"
)


def main() -> None:
    """Run the `tfa` command."""
    open_missing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without β or → shows ? rather than an error
    code: Any = NOT_PRINTED
    try:
        app(prog_name="tfa")
    except SystemExit as end:
        code = end.code
    except OSError:  # not even an error, or the help, could be printed
        pass
    except (MemoryError, ImportError, RuntimeError, SystemError) as error:
        # Raised before a command runs, or while its error is shown.
        if not isinstance(error, MemoryError) and from_os_error(error) is None:
            raise
        end_without_memory()
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            discard_output()
            code = PIPE_CLOSED if isinstance(error, BrokenPipeError) else code or NOT_PRINTED
    sys.exit(code)

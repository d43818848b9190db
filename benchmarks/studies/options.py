"""Options and output that study scripts share."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tfa.cli.console import console, open_table, show_error
from tfa.core.files import BadFile, require_format
from tfa.core.progress import Progress, as_progress
from tfa.errors import TfaError
from tfa.types import EncoderOptions
from tfa_bench.cli.run import load_all, loaded_encoder

if TYPE_CHECKING:
    from tfa.encoders import Encoder
    from tfa_bench.datasets.load import Dataset
    from tfa_bench.heads.contract import HeadCard

_ENCODER = "dinov2-s14-focus"


def make_parser(
    description: str, datasets: str | None = None, *, stored: bool = False, folders: Mapping[str, str] | None = None
) -> ArgumentParser:
    """Make a parser with the output options.

    With `datasets`, a remark on them, it also accepts datasets and an encoder; with `stored`, a file instead; with
    `folders`, the help of each option, one of these folders instead.
    """
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    if datasets is not None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--dataset",
            action="append",
            metavar="NAME=PATH",
            help=f"dataset and its folder, as for tfa bench run; repeatable. {datasets}",
        )
        if stored:
            source.add_argument(
                "--show", type=Path, metavar="FILE.json", help="print the tables of a stored result as Markdown"
            )
        for name, remark in (folders or {}).items():
            source.add_argument(name, type=Path, metavar="FOLDER", help=remark)
        parser.add_argument("--encoder", default=_ENCODER, metavar="NAME", help="[default: %(default)s]")
        parser.add_argument("--weights", type=Path, metavar="FILE", help="encoder weights from a file")
        parser.add_argument("--device", default="cpu", help="where the encoder and fits compute [default: %(default)s]")
        parser.add_argument("--threads", type=at_least(1), metavar="N", help="encoder threads")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the result as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="draw no progress bars")
    return parser


def at_least(low: int) -> Callable[[str], int]:
    """Return an argument type: integers from `low` on."""

    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise ArgumentTypeError(f"{text!r} is not an integer from {low}")
        return int(text)

    return whole


def run_script(parser: ArgumentParser, study: Callable[[Namespace], object], argv: Sequence[str] | None = None) -> int:
    """Run a study and return its exit code; an error is one readable block."""
    arguments = parser.parse_args(argv)
    try:
        result = study(arguments)
    except TfaError as error:
        show_error(*error.lines)
        return 1
    except typer.BadParameter as error:
        show_error(error.format_message())
        return 2
    return result if isinstance(result, int) else 0


def load_datasets(arguments: Namespace, cards: Sequence[HeadCard] = ()) -> list[Dataset]:
    """Load the datasets; invalid options fail before an encoder is loaded."""
    return load_all(arguments.dataset, cards=cards, out=arguments.out)


def encoder_options(arguments: Namespace) -> EncoderOptions:
    return EncoderOptions(weights=arguments.weights, device=arguments.device, threads=arguments.threads)


def open_encoder(arguments: Namespace) -> Encoder:
    return loaded_encoder(arguments.encoder, encoder_options(arguments))


def open_progress(arguments: Namespace) -> Progress:
    return as_progress(not arguments.quiet)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> None:
    """Print rows with the first `left` columns left-aligned."""
    table = open_table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def format_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Format rows as a Markdown table, the first `left` columns aligned to the left."""
    ruler = ["---" if number < left else "--:" for number in range(len(columns))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (columns, ruler, *rows))


def read_study(file: Path) -> Any:
    """Read the JSON that a study wrote with `--out`; a file that is not JSON raises BadFile."""
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(f"{file} cannot be read: {error}; use a file that the study wrote with --out") from None


def read_result(file: Path, form: str, version: int, script: str) -> dict[str, Any]:
    """Read the JSON that a script wrote with `--out`."""
    return require_format(
        file, form, version, BadFile, f"; write it with python benchmarks/studies/{script} --out {file}"
    )

"""`tfa bench table`, `tfa bench results`: recorded results in the paper's layouts, its figures beside them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import note, print_text

if TYPE_CHECKING:
    from tfa.bench.tables.table import Table


class Name(StrEnum):
    """The layouts of tfa.bench.tables.table_specs, and all of them."""

    product = "product"
    overview = "overview"
    primary = "primary"
    aerial = "aerial"
    native = "native"
    spectral = "spectral"
    budgets = "budgets"
    ablation = "ablation"
    heads = "heads"
    all = "all"


class Format(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


def table(
    name: Annotated[
        Name,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="primary (ground datasets), aerial, native (systems under their own encoders), spectral (controls), "
            "budgets (calibration queries), ablation, heads (every head recorded), or all.",
        ),
    ],
    records: Annotated[
        Path,
        typer.Option(metavar="RESULTS", help="A folder of records, as written by [bold]tfa bench run[/bold]."),
    ] = Path("results"),
    encoder: Annotated[str | None, typer.Option(metavar="ID", help="Only records under this encoder.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write NAME.md, NAME.csv and NAME.tex there.")
    ] = None,
    format: Annotated[Format, typer.Option(help="What is printed.")] = Format.markdown,
    no_paper: Annotated[bool, typer.Option("--no-paper", help="Leave the paper's figures out.")] = False,
    both: Annotated[
        bool,
        typer.Option("--both", help="spectral: controls under both assignments, not only the one TFA-FullQ chose."),
    ] = False,
) -> None:
    """Print recorded results in a layout of the paper, its own figures beside them. No model is loaded."""
    from tfa.bench.tables.render import FORMATS, write_table

    if out is not None:
        options.check_writable(out / "table.md")
    _, render = FORMATS[format.value]
    for i, made in enumerate(_tables(name, records, encoder, paper=not no_paper, both=both)):
        print_text(("\n" if i else "") + render(made))
        if out is not None:
            for path in write_table(made, out):
                note(f"wrote {path}")


def _tables(name: Name, records: Path, encoder: str | None, *, paper: bool, both: bool) -> list[Table]:
    """The table requested; of `all`, those the records have something for."""
    from tfa.bench.tables.table import NoTable, read_cells
    from tfa.bench.tables.table_specs import LAYOUTS, layout

    cells = read_cells(records, encoder=encoder)
    if name is not Name.all:
        return [layout(name.value, cells, paper=paper, both=both)]
    made = []
    for one in LAYOUTS:
        try:
            made.append(layout(one, cells, paper=paper, both=both))
        except NoTable as error:
            note(*error.lines)
    if not made:
        raise NoTable(f"the records of {records} fill no table")
    return made


def results(
    records: Annotated[
        Path,
        typer.Option(metavar="RESULTS", help="A folder of records, as written by [bold]tfa bench run[/bold]."),
    ] = Path("results"),
    encoder: Annotated[
        str, typer.Option(metavar="ID", help="The encoder whose records are shown.")
    ] = "dinov2-s14-focus@322",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write the page there rather than print it.")
    ] = None,
    command: Annotated[
        str, typer.Option(help="How the records were made, for the page to say.")
    ] = "make results DATA=data",
) -> None:
    """Write every table of a folder of records as one Markdown page, and say where TFA is below a peer."""
    from tfa.bench.tables.page import results_page
    from tfa.core.files import write_text

    if out is not None:
        options.check_writable(out)
    page = results_page(records, encoder=encoder, command=command)
    if out is None:
        print_text(page)
        return
    write_text(out, page)
    note(f"wrote {out}")

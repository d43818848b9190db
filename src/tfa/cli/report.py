"""`tfa report`: how good a map is, in one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import counted, note, print_json, say


def report(
    map: options.MapPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", dir_okay=False, help="Where to write the page."),
    ] = None,
    json: options.AsJson = False,
) -> None:
    """Report on a map: decisions and their evidence, near duplicates, hubs, images that nothing resembles, advice.

    The page is one file that needs no other. Without [bold]--out[/bold] a summary is printed.
    """
    if out is not None:
        options.check_writable(out)

    from tfa.maps import PlaceMap
    from tfa.report.collect import report_of
    from tfa.report.page import write_report

    facts = report_of(PlaceMap.load(map))
    if json:
        print_json(facts)
    else:
        say(f"{map}", style="bold")
        repeated = sum(len(group["images"]) - 1 for group in facts["duplicates"])
        say(f"  {counted(facts['map']['images'], 'image')}; {repeated:,} near duplicates, {len(facts['hubs']):,} hubs, "
            f"{len(facts['lonely']):,} that nothing else resembles")  # fmt: skip
        for sentence in facts["advice"]:
            say(f"  {sentence}")
    if out is not None:
        write_report(out, facts)
        note(f"report: {out}")

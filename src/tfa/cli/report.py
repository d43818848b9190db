"""`tfa report`: how good a map is, in one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import format_count, note, print_json, say
from tfa.cli.show_map import show_decisions
from tfa.types import EncoderOptions


@options.with_encoder
def report(
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PHOTO|FOLDER",
            exists=True,
            help="Photos like those the map will be asked about, without labels: says how many will be recognised, and "
            "whether they are unlike those the map is made for. May be given several times.",
        ),
    ] = None,
    aged: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0, help="Photos that no sure answer of the service named in so many days."),
    ] = 90,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", dir_okay=False, help="Where to write the page."),
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Report on a map: decisions and their evidence, near duplicates, hubs, images that nothing resembles, what
    aged, advice.

    The page is one file that needs no other. Without [bold]--out[/bold] a summary is printed.
    """
    if out is not None:
        options.check_writable(out)

    from tfa.cli.query import expanded
    from tfa.report.collect import collect_report
    from tfa.report.page import write_report

    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json)
    answers = place_map.query_many(expanded(photos), k=1, progress=progress) if photos else None
    facts = collect_report(place_map.sample(), answers, aged_days=aged)
    if out is not None:  # before anything is printed: whoever reads that may leave
        write_report(out, facts)
        note(f"report: {out}")
    if json:
        print_json(facts)
    else:
        say(f"{map}", style="bold")
        say(f"  {facts['headline']}")
        say(f"  {facts['map']['answers']['in_words']}")
        show_decisions(facts["evidence"]["decided"])
        repeated = sum(len(group["images"]) - 1 for group in facts["duplicates"])
        images = format_count(facts["map"]["images"], "image")
        say(f"  {images}; {repeated:,} near duplicates, {len(facts['hubs']):,} hubs, "
            f"{len(facts['lonely']):,} that nothing else resembles")  # fmt: skip
        for one in facts["recall"]:
            say(f"  like {one['photos_like']}: {one['in_words']}")
        if facts["ageing"] is not None:
            say(f"  {facts['ageing']['in_words']}")
        for sentence in facts["advice"]:
            say(f"  {sentence}")

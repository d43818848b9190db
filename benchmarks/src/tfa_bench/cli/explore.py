"""`tfa bench explore`: the failures of recorded heads on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import counted, note, say, wants_progress


def explore(
    records: Annotated[
        list[Path],
        typer.Option(
            metavar="RECORD|FOLDER",
            help="Records of one dataset, as written by [bold]tfa bench run[/bold]: files or folders; may be repeated.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", dir_okay=False, help="Where the page is written.")],
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this head; may be repeated. The first one is shown first."),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The dataset's folder, for its photos and the positions it has."),
    ] = None,
    split: Annotated[int, typer.Option(min=0, help="Of heads with several splits: whose answers are shown.")] = 0,
    quiet: options.Quiet = False,
) -> None:
    """Write the failure explorer of recorded heads: confidently wrong queries first, two heads side by side.

    No model is loaded, and photos are read only to be shown.
    """
    options.check_writable(out)

    from tfa.evaluate.explorer import describe_judgement, write_explorer
    from tfa_bench.judge_records import judge_records
    from tfa_bench.metrics.summary import table_of_scores

    judged = judge_records(records, heads=head or (), photos=photos, split=split)
    for text in judged.notes:
        note(text)
    facts = [*describe_judgement(judged.judgement), *judged.notes]
    names = [run.name for run in judged.judgement.runs]
    table = table_of_scores(judged.scored, names)
    progress = wants_progress(quiet)
    write_explorer(out, judged.judgement, table, facts, progress=progress)
    queries = max(len(run.evaluated) for run in judged.judgement.runs)
    say(f"{out}: {counted(len(names), 'head')} on {queries:,} queries of {judged.truth.title}")

"""`tfa evaluate`: measure the recall of a map with labeled photos, and show its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, delivered, format_count, note, open_table, say, show_notes
from tfa.types import EncoderOptions, StreamOptions

if TYPE_CHECKING:
    from tfa.evaluate.judgement import EvaluatedHead, Judgement
    from tfa.evaluate.map_evaluation import MapEvaluation

_FOLDED = ("query", "answer", "a positive")


@options.with_encoder
def evaluate(
    map: options.MapPath,
    queries: Annotated[
        list[Path], typer.Argument(metavar="QUERIES", exists=True, help="Labeled photos, or folders of them.")
    ],
    ground_truth: Annotated[
        Path,
        options.file_option(
            metavar="positions.csv|positives.json",
            help="Positions of the queries (CSV), or the positives of each query (JSON).",
        ),
    ],
    radius: Annotated[
        float | None,
        typer.Option(metavar="M", help="With positions: meters within which an answer is right. \\[default: 25]"),
    ] = None,
    utm: Annotated[
        str | None, typer.Option(metavar="ZONE", help="UTM zone of x and y, such as 33N, if map and queries differ.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|none", help="Calibration to evaluate, or none; repeat for more. \\[default: all and none]"
        ),
    ] = None,
    sequence: Annotated[
        bool, options.stream_option("--sequence", help="Track the queries as frames of one drive, in name order.")
    ] = False,
    online: Annotated[
        bool | None,
        options.stream_option("--online/--no-online", help="Adapt from query to query. \\[default: with --sequence]"),
    ] = None,
    lag: options.Lag = 0,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query.")] = 20,
    skip_unanswerable: Annotated[
        bool, typer.Option("--skip-unanswerable", help="Leave out queries whose place is not in the map.")
    ] = False,
    worst: Annotated[int, typer.Option(min=0, help="Number of confident mistakes to list.")] = 10,
    html: Annotated[
        Path | None, options.file_option(metavar="FILE.html", help="Write the failure explorer as one page.")
    ] = None,
    against: Annotated[
        Path | None,
        options.file_option(
            metavar="FILE.json", exists=True, help="Compare with an earlier evaluation that --out wrote."
        ),
    ] = None,
    out: options.JsonFile = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Measure the recall of a map with labeled photos.

    Reports recall, precision, confident mistakes, and whether the expected recall holds. Queries are independent
    unless --online or --sequence is set. Unreadable and unlabeled queries are left out and reported.
    """
    from tfa.cli.query import expand_folders
    from tfa.evaluate import map_evaluation
    from tfa.evaluate.ground_truth import check_ground_truth, read_ground_truth
    from tfa.evaluate.map_evaluation import choose_heads, evaluate_map

    check_ground_truth(ground_truth, radius)
    for file in (html, out):
        if file is not None:
            options.check_writable(file)
    if sequence and not (len(queries) == 1 and queries[0].is_dir()):
        raise typer.BadParameter("--sequence needs one folder with the frames of a drive")
    if lag and not sequence:
        raise typer.BadParameter("--lag is for a drive; pass --sequence")
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    adapts = sequence and not place_map.state.is_published if online is None else online
    stream = StreamOptions(online=adapts, sequence=sequence, lag=lag)
    if stream != StreamOptions():
        place_map.follow(**vars(stream))  # fails before photos are read if the map cannot follow a camera
    choose_heads(place_map, calibration or ())
    photos = expand_folders(queries)
    root = queries[0] if len(queries) == 1 and queries[0].is_dir() else None
    known = read_ground_truth(ground_truth, photos, root, place_map.images, radius, utm)
    evaluation = evaluate_map(
        place_map, photos, replace(known, skip_unanswerable=skip_unanswerable), heads=calibration or (), k=k,
        lines=html is not None, stream=stream, progress=progress,
    )  # fmt: skip
    judgement = map_evaluation.compare_with_file(evaluation, against) if against is not None else evaluation.judgement
    show_notes(evaluation.truth.notes, evaluation.unreadable)
    bare = evaluation.without_truth
    if bare:
        note(f"{format_count(len(bare), 'photo')} without ground truth left out (first: {bare[0]})")
    if evaluation.skipped_unanswerable:
        note(f"{format_count(evaluation.skipped_unanswerable, 'photo')} whose place is not in the map left out")
    if html is not None:  # write files before printing: the reader may close the pipe
        write_page(html, evaluation, judgement, progress=progress)
        note(f"wrote {html}")
    earlier = judgement.runs[len(evaluation.judgement.runs) :]
    if not delivered(map_evaluation.make_result(evaluation, worst, earlier), out=out, json=json):
        show_evaluation(evaluation, judgement, worst)


def show_evaluation(evaluation: MapEvaluation, judgement: Judgement, worst: int) -> None:
    """Print one row per head, then the worst mistakes of the default head."""
    from tfa.evaluate.explorer import describe_judgement, distance_row, score_row
    from tfa.evaluate.judgement import compare_runs, score_run

    say(judgement.title, style="bold")
    for fact in describe_judgement(judgement):
        say(fact)
    heads = [score_run(judgement, run, evaluation.active) for run in judgement.runs]
    _show_rows([score_row(head) for head in heads])
    say("Percent. * = default. Expected recall is estimated without labels (90 % interval).", style="dim")
    distances = [(head.name, head.metres) for head in heads if head.metres is not None]
    if distances:
        _show_rows([distance_row(name, metres) for name, metres in distances])
        if any(metres.placed for _, metres in distances):
            say(
                "Position error in meters. place: fused estimate; within radius: ground truth inside the reported "
                "radius; agreed: estimates with ≥ 90 % agreement.",
                style="dim",
            )
        else:
            say("Position error of the best hits in meters; nothing was reranked, so there are no estimates.", "dim")
    chosen = shown_run(evaluation, judgement)
    for other in judgement.runs[len(evaluation.judgement.runs) :]:
        change = compare_runs(judgement.runs[chosen], other)
        difference = change.difference
        mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
        say(f"{change.head} against {change.against}: R@1 {mean:+.1f} [{low:+.1f}, {high:+.1f}]; "
            f"{change.won:,} queries won, {change.lost:,} lost")  # fmt: skip
    _show_mistakes(judgement, heads[chosen], worst)


def _show_rows(rows: Sequence[Mapping[str, str]]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = open_table()
    for column in columns:
        table.add_column(column, justify="left" if column in ("head", "expected recall") else "right", overflow="fold")
    for row in rows:
        table.add_row(*(row.get(column, "") for column in columns))
    console().print(table)


def _show_mistakes(judgement: Judgement, head: EvaluatedHead, worst: int) -> None:
    from tfa.evaluate.explorer import short_names

    lists = [list(judgement.images), [query.query for query in judgement.queries]]
    short = {path: name for paths in lists for path, name in zip(paths, short_names(paths), strict=True)}
    mistakes = head.mistakes[:worst]
    if not mistakes:
        return
    say()
    say(f"Most confident mistakes of {head.title} ({len(mistakes):,} of {len(head.mistakes):,})", style="bold")
    table = open_table("query", "answer", "confidence", "inliers", "meters", "a positive", fold=_FOLDED)
    for mistake in mistakes:
        table.add_row(
            short[mistake.query],
            short[mistake.image],
            f"{mistake.confidence or 0:.2f}" + (" sure" if mistake.sure else ""),
            "–" if mistake.inliers is None else str(mistake.inliers),
            "–" if mistake.distance is None else f"{mistake.distance:,.1f}",
            short.get(mistake.true_image or "", "not in the map"),
        )
    console().print(table)
    if head.hubs:
        hub = head.hubs[0]
        say(f"{format_count(len(head.hubs), 'hub')}: {short[hub.image]} is the wrong answer to {hub.wrong} queries")


def shown_run(evaluation: MapEvaluation, judgement: Judgement) -> int:
    """Return the index of the default head if it was evaluated, else of the first."""
    names: Sequence[str] = [run.name for run in judgement.runs]
    return names.index(evaluation.active) if evaluation.active in names else 0


def write_page(path: Path, evaluation: MapEvaluation, judgement: Judgement, *, progress: bool) -> None:
    from tfa.evaluate.explorer import describe_judgement, score_table, write_explorer
    from tfa.evaluate.judgement import score_run

    table = score_table([score_run(judgement, run) for run in judgement.runs])
    facts = [*describe_judgement(judgement), *evaluation.truth.notes]
    write_explorer(path, judgement, table, facts, shown=shown_run(evaluation, judgement), progress=progress)

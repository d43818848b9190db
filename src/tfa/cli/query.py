"""`tfa query`: where were these photos taken?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from tfa.cli import options
from tfa.cli.console import (
    console,
    counted,
    examples,
    note,
    print_json,
    printable,
    say,
    show_error,
    wants_progress,
)
from tfa.config import VerifySpec

CANDIDATES_HELP = VerifySpec.__dataclass_fields__["candidates"].metadata["help"].capitalize()
ONE_BY_ONE = 3  # up to so many queries get a table of their own
MONTAGE_ROWS = 60  # a taller picture is no longer a picture


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "tfa query town.tfa photo.jpg",
            "tfa query town.tfa photo.jpg -k 3 --montage answer.png",
            "tfa query town.tfa evening-walk/ --min-confidence 0.5 --json > answers.json",
            "tfa query town.tfa photo.jpg --calibration night",
            "tfa query town.tfa photo.jpg --verify --candidates 50",
            "tfa query town.tfa --sequence drive/ --json > path.json",
        )
    )(query)


def query(
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None, typer.Argument(metavar="PHOTO|FOLDER", help="Photos, or folders searched for photos.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits shown for each photo.")] = 5,
    json: options.AsJson = False,
    montage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            dir_okay=False,
            callback=options.picture,
            help="Write a picture of queries and hits, with scores and positions.",
        ),
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            metavar="P",
            callback=options.share,
            help="Answer 'no place' below this confidence, a number between 0 and 1: the share of the "
            "map's own photos that, hidden and asked for, were recognised less clearly.",
        ),
    ] = 0.0,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|none",
            help="Ask with this calibration of the map; the newest if not given, none asks without. "
            "See [bold]tfa calibrate[/bold].",
        ),
    ] = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Order the best images by how many patches match in one arrangement. "
            "As [bold]tfa info[/bold] says if not given.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help=f"{CANDIDATES_HELP}; {VerifySpec().candidates} if not given."),
    ] = None,
    sequence: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="FOLDER",
            help="Consecutive frames of one drive, in the order of their names: each is answered in the light of "
            "those before it. The map's photos must be in driving order, or have positions.",
        ),
    ] = None,
    weights: options.Weights = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    fast: options.Fast = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the places of a map that photos show.

    A photo that cannot be read is reported and the others are answered; the exit code is then 1.
    """
    check_asked(photos, sequence, verify, candidates)
    if montage is not None:
        options.check_writable(montage)

    from tfa.maps import PlaceMap

    place_map = PlaceMap.load(map)
    progress = wants_progress(quiet=quiet, json=json)
    place_map.use_encoder(weights=weights, device=device, threads=threads, fast=fast, progress=progress)
    asked = expanded([sequence] if sequence else photos or [])
    common: dict[str, Any] = {"min_confidence": min_confidence, "calibration": calibration, "progress": progress}
    if sequence is not None:
        from tfa.maps.following import query_sequence

        answers: Sequence[Any] = query_sequence(place_map, asked, k=k, **common)
    else:
        answers = place_map.query_many(asked, k=k, verify=verify, candidates=candidates, **common)
    if json:
        print_json([_entry(answer) for answer in answers])
    elif len(answers) <= ONE_BY_ONE:
        for answer in answers:
            _show_one(answer, min_confidence)
    else:
        _show_many(answers, k, min_confidence)
    if montage is not None:
        write_montage(montage, answers, min_confidence)

    failed = [answer.error for answer in answers if answer.error is not None]
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(1)


def check_asked(
    photos: Sequence[Path] | None, sequence: Path | None, verify: bool | None, candidates: int | None
) -> None:
    """Refuse what cannot be asked together."""
    if (sequence is None) == (not photos):
        raise typer.BadParameter("give photos or folders to ask for one by one, or --sequence FOLDER, not both")
    if sequence is not None and (verify or candidates is not None):
        raise typer.BadParameter(
            "a sequence is filtered by the scores of the head; leave out --verify and --candidates"
        )


def expanded(photos: Sequence[Path]) -> list[Path]:
    """Folders replaced by the photos in them; a missing file stays, to be reported with its answer."""
    from tfa.images import find_images

    return [photo for given in photos for photo in (find_images(given) if given.is_dir() else [given])]


def _entry(answer: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"query": str(answer.query)}
    if answer.error is not None:
        entry["error"] = answer.error
    if hasattr(answer, "lost"):
        entry["lost"] = answer.lost
    return {**entry, "hits": [hit.to_dict() for hit in answer.hits]}


def _no_place(answer: Any, min_confidence: float) -> str:
    if answer.error is not None:
        return "not readable"
    if getattr(answer, "lost", 0.0) > answer.confidence:
        return f"lost (probability {answer.lost:.2f})"
    return f"no place (confidence {answer.confidence:.2f} below {min_confidence:.2f})"


def _show_one(answer: Any, min_confidence: float) -> None:
    say(str(answer.query), style="bold")
    if not answer.hits:
        say(f"  {_no_place(answer, min_confidence)}", style="yellow")
        return
    verified = _verified([answer])
    table = _table("", "image", *_columns(verified))
    for rank, hit in enumerate(answer.hits, 1):
        table.add_row(str(rank), *_cells(hit, verified))
    console().print(table)


def _show_many(answers: Sequence[Any], k: int, min_confidence: float) -> None:
    verified = _verified(answers)
    table = _table("query", "best image", *_columns(verified))
    for answer in answers:
        query = printable(str(answer.query))
        if answer.hits:
            table.add_row(query, *_cells(answer.hits[0], verified))
        else:
            table.add_row(query, _no_place(answer, min_confidence), style="yellow")
    console().print(table)
    answered = sum(bool(answer.hits) for answer in answers)
    say(f"{answered:,} of {counted(len(answers), 'photo')} answered")
    if k > 1 and answered:
        note(f"the best hit of each photo is shown; --json prints all {k}")


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        numeric = column in ("", "id", "score", "confidence", "matches")
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return table


def _verified(answers: Sequence[Any]) -> bool:
    return any(hit.matches is not None for answer in answers for hit in answer.hits)


def _columns(verified: bool) -> tuple[str, ...]:
    return ("id", "score", "confidence", *(["matches"] if verified else []), "position")


def _cells(hit: Any, verified: bool) -> tuple[str, ...]:
    position = "" if hit.position is None else str(hit.position)
    matches = ["–" if hit.matches is None else str(hit.matches)] if verified else []
    confidence = f"{hit.confidence:.2f}" + (" sure" if hit.sure else "")
    return printable(hit.image), str(hit.id), f"{hit.score:.4f}", confidence, *matches, position


def write_montage(path: Path, answers: Sequence[Any], min_confidence: float) -> None:
    from tfa.montage import MontageRow, MontageTile, draw_montage, matches_line

    rows = []
    for answer in answers[:MONTAGE_ROWS]:
        file = Path(answer.query)
        title = str(file) if answer.hits else f"{file}: {_no_place(answer, min_confidence)}"
        tiles = []
        for hit in answer.hits:
            where = [] if hit.position is None else [str(hit.position)]
            numbers = f"score {hit.score:.4f}, confidence {hit.confidence:.2f}"
            lines = [Path(hit.image).name, numbers, *matches_line(hit.matches), *where]
            tiles.append(MontageTile(Path(hit.image), lines))
        rows.append(MontageRow(file, title, tiles))
    draw_montage(rows, path)
    left_out = len(answers) - len(rows)
    note(f"montage: {path}" + (f" (without the last {counted(left_out, 'photo')})" if left_out else ""))

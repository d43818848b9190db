"""`tfa query`: where were these photos taken?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.base.config import EncoderOptions, VerifySpec
from tfa.cli import options
from tfa.cli.console import print_json
from tfa.cli.show_answers import end_with_errors, entry, show, write_montage

CANDIDATES_HELP = VerifySpec.__dataclass_fields__["candidates"].metadata["help"].capitalize()


@options.with_encoder
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
            help="Answer 'no place' below this confidence, a number between 0 and 1. For verified hits it comes from "
            "a fit on labelled benchmarks, 0.9 being sure; for others it is the share of the map's own photos that "
            "stand out less clearly.",
        ),
    ] = 0.0,
    calibration: options.Calibration = None,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Order the best images by how many patches match in one spatial arrangement. "
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
    self_calibrate: Annotated[
        bool | None,
        typer.Option(
            "--self-calibrate/--no-self-calibrate",
            help="With --sequence: subtract every image's mean score on the frames so far. On if not given.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Search by this engine: exact, bounded, or an installed one."),
    ] = None,
    checksum: options.Checksum = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Find the places of a map that photos show.

    A photo that cannot be read is reported and the others are answered; the exit code is then 1.
    """
    check_combination(photos, sequence, verify, candidates, self_calibrate)
    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json, checksum=checksum)
    place_map.use_engine(engine)
    queries = expanded([sequence] if sequence else photos or [])
    common: dict[str, Any] = {"min_confidence": min_confidence, "calibration": calibration, "progress": progress}
    if sequence is not None:
        from tfa.maps.sequence import query_sequence

        answers: Sequence[Any] = query_sequence(
            place_map, queries, k=k, self_calibrate=self_calibrate is not False, **common
        )
    else:
        answers = place_map.query_many(queries, k=k, verify=verify, candidates=candidates, **common)
    if json:
        print_json([entry(answer) for answer in answers])
    else:
        show(answers, k, min_confidence)
    if montage is not None:
        write_montage(montage, answers, min_confidence)
    end_with_errors(answers)


def check_combination(
    photos: Sequence[Path] | None,
    sequence: Path | None,
    verify: bool | None,
    candidates: int | None,
    self_calibrate: bool | None,
) -> None:
    """Refuse options that do not go together."""
    if (sequence is None) == (not photos):
        raise typer.BadParameter("give photos or folders to query one by one, or --sequence FOLDER, not both")
    if sequence is not None and (verify or candidates is not None):
        raise typer.BadParameter(
            "a sequence is filtered by the scores of the head; leave out --verify and --candidates"
        )
    if sequence is None and self_calibrate is not None:
        given = "--self-calibrate" if self_calibrate else "--no-self-calibrate"
        raise typer.BadParameter(f"{given} is for --sequence FOLDER; single photos teach the map nothing")


def expanded(photos: Sequence[Path]) -> list[Path]:
    """Folders replaced by the photos in them; a missing file stays, to be reported with its answer."""
    from tfa.photos.images import find_images

    return [photo for given in photos for photo in (find_images(given) if given.is_dir() else [given])]

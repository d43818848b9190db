"""`tfa query`: where were these photos taken?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options, recordings
from tfa.cli.answer_files import AnswerFiles, answer_files
from tfa.cli.console import print_json, show_notes
from tfa.cli.show_answers import end_with_errors, show_answers, write_montage
from tfa.core.text import CONFIDENCE_RULE, SURE_RULE
from tfa.types import AUTO, Candidates, EncoderOptions, QueryOptions

if TYPE_CHECKING:
    pass


@options.with_encoder
def query(
    context: typer.Context,
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PHOTO|FOLDER", help="Photos, or folders searched for photos; or bags and videos."),
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
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            callback=answer_files,
            help="Write the answers there: .mcap (a recording of ROS 2 messages; needs pip install 'tfa-vpr\\[bags]'), "
            ".geojson, .gpx (sure ones alone) or .csv. May be given several times.",
        ),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images/--no-images", help="With --out FILE.mcap: copy the photos into it, or not.")
    ] = True,
    utm: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            help="With --out: x and y of the map are metres in this UTM zone, such as 33N (N or S: the hemisphere); "
            "answers are then written in degrees, too. Needs pip install 'tfa-vpr\\[geo]'.",
        ),
    ] = None,
    min_confidence: Annotated[
        float,
        typer.Option(
            metavar="P",
            callback=options.share,
            help=f"Answer 'no place' below this confidence, a number between 0 and 1. {CONFIDENCE_RULE}",
        ),
    ] = 0.0,
    sure: Annotated[
        bool, typer.Option("--sure", help=f"Give only answers that are sure; others are 'not sure'. {SURE_RULE}")
    ] = False,
    calibration: options.Calibration = None,
    rerank: Annotated[
        bool | None,
        typer.Option(
            "--rerank/--no-rerank",
            help="Order the best images by how many patches match in one spatial arrangement. "
            "As [bold]tfa info[/bold] says if not given.",
        ),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Images of the head's ranking that are verified. auto: as many as pay for each photo, 10 to 100; on "
            "average 10 to 30, each as much work. As the map was built if not given, which is auto.",
        ),
    ] = None,
    sequence: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            metavar="FOLDER|RECORDING",
            help="Consecutive frames of one drive, in the order of their names, or a bag or a video: a filter follows "
            "the camera through the map. The map's photos must be in driving order, or have positions.",
        ),
    ] = None,
    no_online: Annotated[
        bool,
        typer.Option(
            "--no-online",
            help="Answer each photo by the map alone. Otherwise several photos, in the order of their names, adapt the "
            "answers to those after them, without labels.",
        ),
    ] = False,
    topic: recordings.TopicOption = None,
    position_topic: recordings.PositionTopic = None,
    every: recordings.EveryOption = None,
    frames: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Where the frames of a recording are kept as photos. If not given, they are kept until "
            "the answers are printed.",
        ),
    ] = None,
    session: options.Sessions = None,
    region: options.RegionOption = None,
    checksum: options.Checksum = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Find the places of a map that photos show. Several photos are taken to be of one camera, in this order;
    of a map in a store, and with a session or a region, each is answered by the map alone.

    A photo that cannot be read is reported and the others are answered; the exit code is then 1.
    """
    wanted = parse_candidates(candidates)
    check_combination(photos, sequence, bool(session) or region is not None)
    if sure and (rerank is False or min_confidence):
        other = (
            "--min-confidence: sure answers have 0.9 and more" if min_confidence else "--no-rerank: others are not sure"
        )
        raise typer.BadParameter(f"leave out --sure, or {other}")
    where = options.where_of(session, region)
    files = AnswerFiles(out or [], images, utm)
    files.check_options()
    chosen = recordings.FrameOptions(topic, position_topic, every, frames)
    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json, checksum=checksum)
    files.check_positions(place_map)
    given = [sequence] if sequence else photos or []
    if recordings.are_recordings(given, chosen):
        asked = recordings.frames_to_ask(given, chosen, context, progress=progress)
    else:
        asked = recordings.Queries(expanded(given))
    queries = asked.photos
    common: dict[str, Any] = {"min_confidence": min_confidence, "sure": sure, "calibration": calibration}
    common |= {"k": k, "rerank": rerank, "candidates": wanted}
    least = QueryOptions(min_confidence=min_confidence, sure=sure)
    started = time.perf_counter()
    alone = no_online or map.in_store or bool(where) or len(queries) < 2
    if sequence is None and alone:
        answers = place_map.query_many(queries, progress=progress, **common, **where)
    else:
        from tfa.maps.sequence import query_sequence

        answers = query_sequence(
            place_map, queries, progress, online=not no_online, sequence=sequence is not None, **common
        )
    answers = asked.name_frames(answers)
    files.write(answers.answers, place_map, calibration, time.perf_counter() - started)
    if montage is not None:  # before anything is printed: whoever reads that may leave
        write_montage(montage, answers.answers, least)
    if json:
        # A frame that is not kept is named by its recording.
        shown = [replace(answer, query=answer.name, frame=None) for answer in answers]
        print_json(replace(answers, answers=shown).to_dict())
    else:
        show_answers(answers, k, least)
    show_notes(asked.notes)
    end_with_errors(answers.answers, [reason for _, reason in asked.skipped])


def parse_candidates(text: str | None) -> Candidates | None:
    if text is None:
        return None
    if text == AUTO:
        return AUTO
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} is not allowed; give auto, or a number from 1 on", param_hint="--candidates"
        )
    return int(text)


def check_combination(photos: Sequence[Path] | None, sequence: Path | None, filtered: bool) -> None:
    """Refuse options that do not go together."""
    from tfa.photos.recordings.recording import is_recording

    if sequence is not None and not sequence.is_dir() and not is_recording(sequence):
        raise typer.BadParameter(
            f"{sequence} is a file; give a folder of frames, a bag or a video", param_hint="--sequence"
        )
    if sequence is not None and filtered:
        raise typer.BadParameter("a sequence is followed through the whole map; leave out --session and --region")
    if (sequence is None) == (not photos):
        raise typer.BadParameter("give photos or folders to query, or --sequence FOLDER, not both")


def expanded(photos: Sequence[Path]) -> list[Path]:
    """Folders replaced by the photos in them; a missing file stays, to be reported with its answer."""
    from tfa.photos.images import find_images

    return [photo for given in photos for photo in (find_images(given) if given.is_dir() else [given])]

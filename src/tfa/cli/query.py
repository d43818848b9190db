"""`tfa query`: find where photos were taken; print the answers and write them to files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.build import (
    EveryOption,
    FrameOptions,
    PositionTopic,
    Queries,
    TopicOption,
    are_recordings,
    frames_to_ask,
)
from tfa.cli.console import console, format_count, note, open_table, print_json, say, show_error, show_notes
from tfa.cli.options import check_writable
from tfa.core.config import AUTO, ONLY_SURE, Candidates, EncoderOptions, MinConfidence
from tfa.core.text import CONFIDENCE_RULE, LATER_HITS, SURE_RULE, describe_order
from tfa.errors import BadSpec

if TYPE_CHECKING:
    from tfa.maps import PlaceMap
    from tfa.maps.expected_recall import AnswerList


# --- answer files ---------------------------------------------------------------------------------


def answer_files(paths: list[Path] | None) -> list[Path] | None:
    """Files that can be written, whose endings say in which formats."""
    if paths:
        from tfa.exports.answers import format_of

        for path in paths:
            try:
                wanted = format_of(path)
            except BadSpec as error:
                raise typer.BadParameter(str(error)) from None
            wanted.check()
            check_writable(path)
    return paths


@dataclass(frozen=True)
class AnswerFiles:
    """What --out, --images and --utm ask for."""

    paths: Sequence[Path]
    images: bool
    utm: str | None

    def check_options(self) -> None:
        """Refuse options about files that are not written."""
        if self.utm is not None:
            from tfa.photos.positions import utm_code

            utm_code(self.utm)
            if not self.paths:
                raise typer.BadParameter("--utm is about files of answers; give one with --out FILE")
        if not self.images and not any(path.suffix.lower() == ".mcap" for path in self.paths):
            raise typer.BadParameter("--no-images is about a recording; give one with --out FILE.mcap")

    def check_positions(self, place_map: PlaceMap) -> None:
        """Refuse a file that cannot hold the map's positions."""
        if self.paths:
            from tfa.exports.answers import check_positions
            from tfa.photos.positions import to_degrees

            positions = [image.position for image in place_map.state.images]
            if self.utm is not None:
                positions = to_degrees(positions, self.utm)  # now, rather than after the work
            for path in self.paths:
                check_positions(path, positions, self.utm)

    def write(self, answers: Sequence[Any], place_map: PlaceMap, calibration: str | None, seconds: float) -> None:
        """All files, each whole or not at all."""
        if not self.paths:
            return
        from tfa.exports.answers import ExportContext, format_of, write_answers
        from tfa.exports.answers.record import times_of
        from tfa.maps.state import DATABASE

        used = place_map.state.chosen(calibration).name
        context = ExportContext(
            times=times_of(answers),
            images=self.images,
            utm=self.utm,
            map_name=place_map.called,
            calibration="" if used == DATABASE else used,
            milliseconds=1000 * seconds / max(len(answers), 1),
        )
        counts = [write_answers(path, answers, context) for path in self.paths]
        for path, count in zip(self.paths, counts, strict=True):  # all are there before anything is printed
            note(f"wrote {path} ({format_of(path).holds}: {count:,} of {format_count(len(answers), 'photo')})")


# --- show answers ---------------------------------------------------------------------------------

_FOLDED = ("query", "image", "best image", "position", "place")  # columns of any length
ONE_BY_ONE = 3  # up to so many queries get a table of their own
NEVER_SURE = (
    "no answer was verified, so none is sure; --rerank verifies them, if the map was built with patches to do so"
)
MONTAGE_ROWS = 60  # a taller picture is no longer a picture


def end_with_errors(answers: Sequence[Any], unread: Sequence[str] = ()) -> None:
    """The exit code is 1 if a photo could not be read; `unread` says why frames of a recording could not."""
    failed = [*unread, *(answer.error for answer in answers if answer.error is not None)]
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(1)


def show_answers(answers: AnswerList[Any], k: int, least: MinConfidence) -> None:
    """A table each, or one for all with what they say together; how rows are ordered; what else is to be known."""
    if len(answers) > ONE_BY_ONE:
        show_many(answers, k, least)
        show_together(answers)
    else:
        for answer in answers:
            show_one(answer, least)
    show_order(answers)
    if least == ONLY_SURE and not any(answer.reranked for answer in answers):
        note(NEVER_SURE)
    most = max((getattr(answer, "adaptation_photos", 0) for answer in answers), default=0)
    if most:
        note(
            "each photo is answered in the light of those before it, the last adapted by "
            f"{format_count(most, 'photo')}; --no-online answers each by the map alone"
        )


def show_order(answers: Sequence[Any]) -> None:
    """The footer of the tables."""
    answered = [answer for answer in answers if answer.hits]
    if answered:
        drive = any(getattr(answer, "lost", None) is not None for answer in answered)
        rule = describe_order(verified=any(answer.reranked for answer in answered), sequence=drive)
        say(f"{rule} {LATER_HITS}", style="dim")


def show_together(answers: AnswerList[Any]) -> None:
    """How many photos like these will be recognised, and whether they are unlike those the map is made for."""
    from tfa.maps.expected_recall import format_expected_recall

    expected = answers.expected_recall
    if expected is not None:
        say(format_expected_recall(expected))
    if answers.notice is not None:
        say(answers.notice, style="yellow")


def entry(answer: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"query": answer.name}
    if answer.time_ns is not None:
        entry["time_ns"] = answer.time_ns
    if answer.error is not None:
        entry["error"] = answer.error
    if getattr(answer, "lost", None) is not None:
        entry["lost"] = answer.lost
    if hasattr(answer, "adaptation_photos"):
        entry["adaptation_photos"] = answer.adaptation_photos
    entry |= {"confidence": answer.confidence, "sure": answer.sure, "reranked": answer.reranked}
    entry |= {"place": None if answer.place is None else answer.place.to_dict(), "place_missing": answer.place_missing}
    return {**entry, "hits": [hit.to_dict() for hit in answer.hits]}


def _no_place(answer: Any, least: MinConfidence) -> str:
    if answer.error is not None:
        return "not readable"
    if (getattr(answer, "lost", None) or 0.0) > answer.confidence:
        return f"lost (probability {answer.lost:.2f})"
    if least == ONLY_SURE:
        return f"not sure (confidence {answer.confidence:.2f})"
    return f"no place (confidence {answer.confidence:.2f} below {least:.2f})"


def show_one(answer: Any, least: MinConfidence) -> None:
    say(answer.name, style="bold")
    if not answer.hits:
        say(f"  {_no_place(answer, least)}", style="yellow")
        return
    columns = _columns([answer])
    table = open_table("", "image", *columns, fold=_FOLDED)
    for rank, hit in enumerate(answer.hits, 1):
        table.add_row(str(rank), *_cells(hit, columns))
    console().print(table)
    if answer.place is not None:
        share = f"{100 * answer.place.share:.0f} % of what speaks for the verified images"
        say(f"  place: {answer.place} ({share}; {format_count(answer.place.images, 'image')})")
    elif any(hit.position is not None for hit in answer.hits):
        say(f"  no place: {answer.place_missing}", style="yellow")


def show_many(answers: Sequence[Any], k: int, least: MinConfidence) -> None:
    columns, placed = _columns(answers), any(answer.place is not None for answer in answers)
    table = open_table("query", "best image", *columns, *(["place"] if placed else []), fold=_FOLDED)
    for answer in answers:
        query = answer.name
        if answer.hits:
            table.add_row(query, *_cells(answer.hits[0], columns), *([str(answer.place or "–")] if placed else []))
        else:
            table.add_row(query, _no_place(answer, least), style="yellow")
    console().print(table)
    answered = sum(bool(answer.hits) for answer in answers)
    say(f"{answered:,} of {format_count(len(answers), 'photo')} answered")
    if k > 1 and answered:
        note(f"the best hit of each photo is shown; --json prints all {k}")


def _columns(answers: Sequence[Any]) -> tuple[str, ...]:
    verified = any(hit.inliers is not None for answer in answers for hit in answer.hits)
    return ("id", "score", "confidence", *(["inliers"] if verified else []), "position")


def _cells(hit: Any, columns: Sequence[str]) -> tuple[str, ...]:
    position = "" if hit.position is None else str(hit.position)
    inliers = ["–" if hit.inliers is None else str(hit.inliers)] if "inliers" in columns else []
    confidence = f"{hit.confidence:.2f}" + (" sure" if hit.sure else "")
    return hit.image, str(hit.id), f"{hit.score:.4f}", confidence, *inliers, position


def write_montage(path: Path, answers: Sequence[Any], least: MinConfidence) -> None:
    from tfa.explain.draw_montage import MontageRow, MontageTile, draw_montage, format_matches

    rows = []
    for answer in answers[:MONTAGE_ROWS]:
        file = Path(answer.query)
        title = answer.name if answer.hits else f"{answer.name}: {_no_place(answer, least)}"
        tiles = []
        for hit in answer.hits:
            where = [] if hit.position is None else [str(hit.position)]
            numbers = f"score {hit.score:.4f}, confidence {hit.confidence:.2f}"
            lines = [Path(hit.image).name, numbers, *format_matches(hit.inliers), *where]
            tiles.append(MontageTile(Path(hit.image), lines))
        rows.append(MontageRow(file, title, tiles))
    draw_montage(rows, path)
    left_out = len(answers) - len(rows)
    note(f"montage: {path}" + (f" (without the last {format_count(left_out, 'photo')})" if left_out else ""))


# --- query ----------------------------------------------------------------------------------------


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
    topic: TopicOption = None,
    position_topic: PositionTopic = None,
    every: EveryOption = None,
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
    least: MinConfidence = ONLY_SURE if sure else min_confidence
    if sure and (rerank is False or min_confidence):
        other = (
            "--min-confidence: sure answers have 0.9 and more" if min_confidence else "--no-rerank: others are not sure"
        )
        raise typer.BadParameter(f"leave out --sure, or {other}")
    where = options.where_of(session, region)
    files = AnswerFiles(out or [], images, utm)
    files.check_options()
    chosen = FrameOptions(topic, position_topic, every, frames)
    place_map, progress = options.open_map(map, encoding, quiet=quiet, json=json, checksum=checksum)
    files.check_positions(place_map)
    given = [sequence] if sequence else photos or []
    if are_recordings(given, chosen):
        asked = frames_to_ask(given, chosen, context, progress=progress)
    else:
        asked = Queries(expanded(given))
    queries = asked.photos
    common: dict[str, Any] = {"min_confidence": least, "calibration": calibration, "progress": progress}
    common |= {"k": k, "rerank": rerank, "candidates": wanted}
    answers: AnswerList[Any]
    started = time.perf_counter()
    alone = no_online or map.in_store or where is not None or len(queries) < 2
    if sequence is None and alone:
        answers = place_map.query_many(queries, **common, where=where)
    else:
        from tfa.maps.sequence import query_sequence

        answers = query_sequence(place_map, queries, online=not no_online, sequence=sequence is not None, **common)
    asked.name_frames(answers)
    files.write(answers, place_map, calibration, time.perf_counter() - started)
    if montage is not None:  # before anything is printed: whoever reads that may leave
        write_montage(montage, answers, least)
    if json:
        print_json(
            {
                "answers": [entry(answer) for answer in answers],
                "expected_recall": None if answers.expected_recall is None else answers.expected_recall.to_dict(),
                "notice": answers.notice,
            }
        )
    else:
        show_answers(answers, k, least)
    show_notes(asked.notes)
    end_with_errors(answers, [reason for _, reason in asked.skipped])


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

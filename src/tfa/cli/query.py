"""`tfa query`: find where photos were taken; print the answers and write them to files."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.build import FrameOptions, Queries, are_recordings, extract_queries
from tfa.cli.console import console, format_count, note, open_table, print_json, say, show_error, show_notes
from tfa.cli.options import Part, check_writable, takes
from tfa.core.plain import Options, opt
from tfa.errors import BadSpec
from tfa.types import (
    NOT_RECOGNIZED,
    PROBABLE,
    RECOGNIZED,
    VERDICTS,
    WITHHELD,
    Answer,
    Answers,
    EncoderOptions,
    Hit,
    QueryOptions,
)

if TYPE_CHECKING:
    from tfa.maps import PlaceMap


def check_answer_files(paths: list[Path] | None) -> list[Path] | None:
    """Reject files that cannot be written or have an unknown format."""
    if paths:
        from tfa.exports.answers import format_of

        for path in paths:
            try:
                chosen = format_of(path)
            except BadSpec as error:
                raise typer.BadParameter(str(error)) from None
            chosen.check()
            check_writable(path)
    return paths


class FileOptions(Options):
    """Contents of answer files."""

    images: bool = opt(True, "Copy the photos into a recording (.mcap).")
    utm: str | None = opt(None, "UTM zone of x and y, such as 33N; answers also get degrees.")


@dataclass(frozen=True)
class AnswerFiles:
    """The files of --out."""

    paths: Sequence[Path]
    options: FileOptions

    def check_options(self) -> None:
        """Reject options for files that are not written."""
        if self.options.utm is not None:
            from tfa.photos.positions import utm_code

            utm_code(self.options.utm)
            if not self.paths:
                raise typer.BadParameter("out.utm is for answer files; pass --out FILE")
        if not self.options.images and not any(path.suffix.lower() == ".mcap" for path in self.paths):
            raise typer.BadParameter("out.images=no is for recordings; pass --out FILE.mcap")

    def check_positions(self, place_map: PlaceMap, *, in_store: bool) -> None:
        """Reject a file that cannot hold the map's positions."""
        if self.paths:
            from tfa.exports.answers import check_positions
            from tfa.photos.positions import to_degrees

            positions = list_store_positions(place_map) if in_store else [one.position for one in place_map.images]
            if self.options.utm is not None:
                positions = to_degrees(positions, self.options.utm)  # fail before the work
            for path in self.paths:
                check_positions(path, positions, self.options.utm)

    def write(self, answers: Sequence[Answer], place_map: PlaceMap, calibration: str | None, seconds: float) -> None:
        """Write all files, each atomically."""
        if not self.paths:
            return
        from tfa.exports.answers import ExportContext, format_of, write_answers
        from tfa.exports.answers.record import times_of
        from tfa.maps.state import DATABASE

        used = place_map.state.chosen(calibration).name
        context = ExportContext(
            times=times_of(answers), images=self.options.images, utm=self.options.utm, map_name=place_map.called,
            calibration="" if used == DATABASE else used, milliseconds=1000 * seconds / max(len(answers), 1),
        )  # fmt: skip
        counts = [write_answers(path, answers, context) for path in self.paths]
        for path, count in zip(self.paths, counts, strict=True):  # after all files are written
            note(f"wrote {path} ({format_of(path).holds}: {count:,} of {format_count(len(answers), 'photo')})")


def list_store_positions(place_map: Any) -> list[Any]:
    """Return the positions of a store map's sample, or any position if the sample has none."""
    if not place_map.info().positions:
        return []
    positions = [image.position for image in place_map.state.images if image.position is not None]
    rest = (record.position for record in place_map.records() if record.position is not None)
    return positions or [next(rest)]


_FOLDED = ("query", "image", "best image", "position", "estimate")  # columns that wrap
_STYLES = {RECOGNIZED: "green", PROBABLE: "yellow", NOT_RECOGNIZED: "yellow"}
ONE_BY_ONE = 3  # show one table per query up to this number of queries
NEVER_SURE = "no answer was reranked, so none is sure; use --rerank if the map stores patches"
MONTAGE_ROWS = 60  # maximum queries in a montage


def end_with_errors(answers: Sequence[Answer], unread: Sequence[str] = ()) -> None:
    """Print errors and exit with 1 if photos, or frames listed in `unread`, could not be read."""
    failed = [*unread, *(answer.error for answer in answers if answer.error is not None)]
    for error in failed:
        show_error(error)
    if failed:
        raise typer.Exit(1)


def show_answers(answers: Answers, chosen: QueryOptions) -> None:
    """Print one table per photo, or one for all photos with the expected recall; then notes."""
    if len(answers) > ONE_BY_ONE:
        show_many(answers)
        if answers.expected_recall is not None:
            say(str(answers.expected_recall))
        if answers.notice is not None:
            say(answers.notice, style="yellow")
    else:
        for answer in answers:
            show_one(answer)
    if chosen.sure and not any(answer.reranked for answer in answers):
        note(NEVER_SURE)


def describe_verdict(answer: Answer) -> str:
    """Write verdict, reason and confidence of an answer in one line."""
    return f"{answer.verdict}: {answer.reason} (confidence {answer.confidence:.2f})"


def show_one(answer: Answer) -> None:
    say(make_relative(answer.name), style="bold")
    say(f"  {describe_verdict(answer)}", style=_STYLES[answer.verdict])
    if not answer.hits:
        if answer.verdict != NOT_RECOGNIZED:
            say(f"  hits are withheld: {WITHHELD}")
        return
    columns = _columns([answer])
    table = open_table("", "image", *columns, fold=_FOLDED)
    for rank, hit in enumerate(answer.hits, 1):
        table.add_row(str(rank), *_cells(hit, columns))
    console().print(table)
    if answer.place is not None:
        agreement = f"{100 * answer.place.share:.0f} % agreement"
        say(f"  position: {answer.place} ({format_count(answer.place.images, 'image')}, {agreement})")
    elif any(hit.position is not None for hit in answer.hits):
        say(f"  no position estimate: {answer.place_missing}", style="yellow")


def show_many(answers: Answers) -> None:
    """Print verdict and best hit of each photo; then count verdicts, and the reasons of photos without a place."""
    columns, placed = _columns(answers), any(answer.place is not None for answer in answers)
    table = open_table("query", "verdict", "best image", *columns, *(["estimate"] if placed else []), fold=_FOLDED)
    for answer in answers:
        query = make_relative(answer.name)
        if answer.hits:
            cells = [*_cells(answer.hits[0], columns), *([str(answer.place or "–")] if placed else [])]
        else:
            cells = ["–", f"{answer.confidence:.2f}"]
        table.add_row(query, answer.verdict, *cells, style=None if answer.hits else "yellow")
    console().print(table)
    verdicts = Counter(answer.verdict for answer in answers)
    counts = [f"{verdicts[one]:,} {one}" for one in VERDICTS if verdicts[one]]
    say(f"{format_count(len(answers), 'photo')}: {', '.join(counts)}")
    refused = [answer.reason for answer in answers if answer.verdict == NOT_RECOGNIZED]
    # Without the number of frames since the camera was lost, equal reasons count as one.
    for reason, count in Counter(re.sub(r" for \d+ frames?$", "", one) for one in refused).most_common():
        say(f"  not recognized because {reason}: {count:,}", style="yellow")


def _columns(answers: Iterable[Answer]) -> tuple[str, ...]:
    reranked = any(hit.inliers is not None for answer in answers for hit in answer.hits)
    return ("confidence", *(["inliers"] if reranked else []), "position")


def _cells(hit: Hit, columns: Sequence[str]) -> tuple[str, ...]:
    position = "" if hit.position is None else str(hit.position)
    inliers = ["–" if hit.inliers is None else str(hit.inliers)] if "inliers" in columns else []
    return make_relative(hit.image), f"{hit.confidence:.2f}", *inliers, position


def make_relative(path: str) -> str:
    """Return a path relative to the working directory if that is shorter."""
    return min(path, os.path.relpath(path), key=len) if os.path.isabs(path) else path


def write_montage(path: Path, answers: Sequence[Answer]) -> None:
    from tfa.explain.draw_montage import MontageRow, draw_montage, make_tile

    rows = []
    for answer in answers[:MONTAGE_ROWS]:
        tiles = [make_tile(hit, "good" if hit.sure else "none") for hit in answer.hits]
        rows.append(MontageRow(Path(answer.query), f"{answer.name} · {describe_verdict(answer)}", tiles))
    draw_montage(rows, path)
    left_out = len(answers) - len(rows)
    note(f"wrote {path}" + (f" (without the last {format_count(left_out, 'photo')})" if left_out else ""))


_TYPED = tuple(field.name for field in fields(QueryOptions) if field.name != "candidates")  # which --set sets


@takes(
    chosen=Part(QueryOptions, _TYPED, ""),
    encoding=Part(EncoderOptions, ("precision",), "encoder"),
    recorded=Part(FrameOptions, (), "frames"),
    written=Part(FileOptions, (), "out"),
)
def query(
    context: typer.Context,
    map: options.MapPath,
    photos: Annotated[
        list[Path] | None, typer.Argument(metavar="PHOTO|FOLDER", help="Photos, folders of photos, bags or videos.")
    ] = None,
    *,
    chosen: QueryOptions,
    sequence: Annotated[
        Path | None,
        options.stream_option(
            exists=True,
            metavar="FOLDER|RECORDING",
            help="Track the camera through the frames of one drive, in name order.",
        ),
    ] = None,
    online: Annotated[
        bool | None,
        options.stream_option(
            "--online/--no-online",
            help="Adapt to the camera while querying several photos. \\[default: on; off for maps built with --paper]",
        ),
    ] = None,
    lag: options.Lag = 0,
    montage: Annotated[
        Path | None,
        options.output_option(
            metavar="FILE.png",
            dir_okay=False,
            callback=options.check_picture,
            help="Draw queries and hits as an image.",
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        options.out_option(
            metavar="FILE",
            callback=check_answer_files,
            rich_help_panel=options.OUTPUT,
            help="Write answers to .mcap, .geojson, .gpx (sure answers only) or .csv; repeatable.",
        ),
    ] = None,
    recorded: FrameOptions,
    written: FileOptions,
    encoding: EncoderOptions,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find where photos were taken.

    Several photos are treated as one camera stream, in this order. With --no-online, --session, --region or a map in
    a store, each photo is queried independently. Photos that cannot be read are reported, and the exit code is 1.
    """
    filtered = bool(chosen.sessions) or chosen.region is not None
    check_combination(photos, sequence, filtered)
    if lag and sequence is None:
        raise typer.BadParameter("--lag is for a drive; pass --sequence FOLDER")
    if chosen.sure and chosen.min_confidence:
        raise typer.BadParameter("--sure already sets a limit; remove --min-confidence or --sure")
    if chosen.sure and chosen.rerank is False:
        raise typer.BadParameter("--sure needs reranking; remove --no-rerank or --sure")
    files = AnswerFiles(out or [], written)
    files.check_options()
    place_map, progress = options.open_map(map, encoding, quiet=quiet)
    place_map.check(chosen)
    online = not place_map.state.is_published if online is None else online
    files.check_positions(place_map, in_store=map.in_store)
    sources = [sequence] if sequence else photos or []
    if are_recordings(sources, recorded):
        queries = extract_queries(sources, recorded, context, progress=progress)
    else:
        queries = Queries(expand_folders(sources))
    started = time.perf_counter()
    scored_on = "cpu"  # adaptation is sequential and has small products
    if sequence is None and (not online or map.in_store or filtered or len(queries.photos) < 2):
        on_device = None if map.in_store else place_map.searchable(chosen.calibration).on_device
        scored_on = "the store" if map.in_store else on_device.backend.device if on_device else "cpu"
        answers = place_map.query_many(queries.photos, progress=progress, **vars(chosen))
    else:
        from tfa.maps.tracker import query_sequence

        followed = {**vars(chosen), "online": online, "sequence": sequence is not None, "lag": lag}
        answers = query_sequence(place_map, queries.photos, progress, **followed)
    answers = replace(answers, answers=[queries.name_frame(answer) for answer in answers])
    files.write(answers.answers, place_map, chosen.calibration, time.perf_counter() - started)
    if montage is not None:  # write files before printing: the reader may close the pipe
        write_montage(montage, answers.answers)
    if json:
        # A frame that is not stored is named by its recording.
        named = [replace(answer, query=answer.name, frame=None) for answer in answers]
        print_json(replace(answers, answers=named).to_dict())
    else:
        show_answers(answers, chosen)
    show_notes([*queries.notes, *place_map.note_devices("scores", scored_on)])
    end_with_errors(answers.answers, [reason for _, reason in queries.skipped])


def check_combination(photos: Sequence[Path] | None, sequence: Path | None, filtered: bool) -> None:
    """Reject options that exclude each other."""
    from tfa.photos.recordings.recording import is_recording

    if sequence is not None and not sequence.is_dir() and not is_recording(sequence):
        raise typer.BadParameter(f"{sequence} is not a folder of frames, a bag or a video", param_hint="--sequence")
    if sequence is not None and filtered:
        raise typer.BadParameter("--sequence tracks through the whole map; remove --session and --region")
    if sequence is None and not photos:
        raise typer.BadParameter("no photos given: pass photos or folders, or --sequence FOLDER")
    if sequence is not None and photos:
        raise typer.BadParameter("pass photos or --sequence FOLDER, not both")


def expand_folders(photos: Sequence[Path]) -> list[Path]:
    """Replace folders by the photos in them. Missing files stay and are reported with their answers."""
    from tfa.photos.images import find_images

    return [photo for path in photos for photo in (find_images(path) if path.is_dir() else [path])]

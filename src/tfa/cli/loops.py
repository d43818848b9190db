"""`tfa loops`: find where a drive returns to an earlier place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.build import FrameOptions, Queries, are_recordings, extract_queries
from tfa.cli.console import delivered, format_count, note, say, show_notes
from tfa.cli.options import ENCODING, Part, PositionOptions, check_writable, takes
from tfa.errors import BadSpec
from tfa.types import Answer, EncoderOptions, LoopOptions, LoopPair, LoopsResult, SkippedFile

_SAVE_EVERY = 256  # frames
_SHOWN = 20  # stretches to print
_SAME_STRETCH = 10  # frames between pairs of one stretch


@takes(
    chosen=LoopOptions,
    positions=Part(PositionOptions, ("positions", "gpx"), {"gpx_offset": "gpx.offset", "gpx_gap": "gpx.gap"}),
    recorded=Part(FrameOptions, ("topic", "every"), "frames"),
    encoding=Part(EncoderOptions, ENCODING, "encoder"),
)
def loops(
    context: typer.Context,
    drive: Annotated[
        Path, typer.Argument(metavar="DRIVE", exists=True, help="Folder of frames in name order, a bag or a video.")
    ],
    *,
    chosen: LoopOptions,
    out: Annotated[
        list[Path] | None,
        options.out_option(metavar="FILE", help="Write loops to .csv, .json, .g2o, .mcap or pairs .txt; repeatable."),
    ] = None,
    html: Annotated[
        Path | None,
        options.file_option(metavar="FILE.html", help="Draw the path before and after its loops as a page."),
    ] = None,
    state: Annotated[
        Path | None, options.file_option(metavar="FILE", help="Keep the state here; an interrupted run resumes.")
    ] = None,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    positions: PositionOptions,
    recorded: FrameOptions,
    encoding: EncoderOptions,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find loop closures: frames that show an earlier place of the same drive.

    No map is needed. Frames that cannot be read are left out and reported.
    """
    from tfa.encoders import load_encoder
    from tfa.exports.answers.formats import LOOP_FORMATS, times_of
    from tfa.maps.loop_closer import LoopCloser
    from tfa.photos.find_positions import find_positions
    from tfa.photos.images import find_images
    from tfa.pipeline import encode
    from tfa.report.page import write_loops_page

    for file in [*(out or []), *(one for one in (html, state) if one is not None)]:
        if file not in (html, state) and file.suffix.lower() not in LOOP_FORMATS:
            raise BadSpec(f"{file} must end in one of {' '.join(LOOP_FORMATS)}")
        check_writable(file)
    sources, queries = positions.read(), Queries()
    if are_recordings([drive], recorded):
        if chosen.gap.endswith("m"):
            raise BadSpec(f"gap={chosen.gap!r} needs positions; first run: tfa frames {drive} --out FOLDER")
        queries = extract_queries([drive], recorded, context, progress=not quiet)
    else:
        queries.photos = find_images(drive)
    places, notes = find_positions(queries.photos, drive if drive.is_dir() else None, sources)
    loading = {name: getattr(encoding, name) for name in ENCODING}
    opened = load_encoder(encoder, **loading)
    closer = LoopCloser(opened, **vars(chosen), length=len(queries.photos))  # rejects a bad gap before the work
    if state is not None and state.exists():
        closer = LoopCloser.load(state, opened)
        if closer.options != chosen:
            raise BadSpec(f"{state} was written with other options; repeat them, or choose another --state")
    recorded_at = [queries.frames.get(str(photo), (None, None)) for photo in queries.photos]
    answers = [Answer(query=str(one), time_ns=at[0]) for one, at in zip(queries.photos, recorded_at, strict=True)]
    recorded_times = any(file.suffix.lower() == ".mcap" for file in out or [])
    times = times_of(answers) if closer.needs_time or recorded_times else [None] * len(answers)
    seconds = [None if time is None else time / 1e9 for time in times]
    frames = dict(zip(queries.photos, zip(seconds, places, strict=True), strict=True))
    for frame in frames.values():
        closer.check(*frame)  # before the work
    encoded = encode(queries.photos, opened, skip_bad=True, batch_size=encoding.batch_size, progress=not quiet)
    # Frames that are not stored are named by their recording.
    names = {str(photo): at[1] or str(photo) for photo, at in zip(queries.photos, recorded_at, strict=True)}
    encoded.tokens.names = [names[str(path)] for path in encoded.paths]
    if closer.names != encoded.tokens.names[: closer.frames]:
        raise BadSpec(f"{state} belongs to other frames; delete it, or choose another --state")
    for row in range(closer.frames, len(encoded.paths)):
        closer.step(encoded.tokens.select([row]), *frames[encoded.paths[row]])
        if state is not None and (closer.frames % _SAVE_EVERY == 0 or closer.frames == len(encoded.paths)):
            closer.save(state)
    if closer.backward_steps:
        notes.append(f"the clock jumped back {format_count(closer.backward_steps, 'time')}, which counts as no time")
    result = LoopsResult(
        frames=closer.frames, keyframes=len(closer), sessions=closer.session + 1, loops=closer.loops, notes=notes,
        skipped=[SkippedFile(file=str(file), reason=why) for file, why in [*queries.skipped, *encoded.skipped]],
    )  # fmt: skip
    stamps = dict(zip(queries.photos, times, strict=True))
    for path in out or []:
        LOOP_FORMATS[path.suffix.lower()](path, result, closer.names, [stamps[photo] for photo in encoded.paths])
        note(f"wrote {path} ({format_count(len(result.pairs), 'pair')})")
    if html is not None:
        write_loops_page(html, result, closer.names, [frames[path][1] for path in encoded.paths])
        note(f"wrote {html}")
    if delivered(result, json=json):
        return
    stretches = _group(result.pairs)
    for pairs in stretches[:_SHOWN]:
        ends = dict.fromkeys([pairs[0], pairs[-1]])
        later, earlier = (" to ".join(closer.names[node] for node in nodes) for nodes in zip(*ends, strict=True))
        say(f"  {later} shows {earlier} ({format_count(len(pairs), 'frame')})")
    if len(stretches) > _SHOWN:
        say(f"  and {len(stretches) - _SHOWN:,} more")
    say(f"{format_count(len(result.pairs), 'frame')} of {result.frames:,} show an earlier place")
    show_notes([*queries.notes, *notes], [(one.file, one.reason) for one in result.skipped])


def _group(pairs: Sequence[LoopPair]) -> list[list[tuple[int, int]]]:
    """Group pairs of nodes by the stretches of a drive that show an earlier stretch."""
    stretches: list[list[tuple[int, int]]] = []
    for pair in pairs:
        here = (pair.query, pair.match)
        if stretches and all(abs(a - b) <= _SAME_STRETCH for a, b in zip(here, stretches[-1][-1], strict=True)):
            stretches[-1].append(here)
        else:
            stretches.append([here])
    return stretches

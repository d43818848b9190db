"""`tfa frames`: a bag or a video becomes photos that a map can be built from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tfa.cli import options, recordings
from tfa.cli.console import format_count, print_json, say, show_notes, wants_progress
from tfa.core.text import format_command


def frames(
    files: Annotated[
        list[Path], typer.Argument(metavar="RECORDING", exists=True, help="ROS 1 or ROS 2 bags, MCAP files, or videos.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where photos and positions.csv go; new or empty.")],
    topic: recordings.TopicOption = None,
    position_topic: recordings.PositionTopic = None,
    every: recordings.EveryOption = None,
    gpx: options.Gpx = None,
    gpx_offset: options.GpxOffset = None,
    gpx_gap: options.GpxGap = None,
    skip_bad: options.SkipBad = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder of other frames.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write frames of bags or videos as photos, with the positions that the recording says.

    Compressed images are written as they were recorded, byte for byte; raw ones as PNG, those of videos as JPEG. Needs
    pip install 'tfa-vpr\\[bags]', for videos 'tfa-vpr\\[video]'.
    """
    from tfa.photos.recordings.frames import extract_frames

    options.check_writable(out)
    chosen = recordings.FrameOptions(topic, position_topic, every)
    sources = options.read_position_sources(None, gpx, gpx_offset, gpx_gap, None)
    progress = wants_progress(quiet)
    found = extract_frames(files, out, chosen.spec(sources), skip_bad=skip_bad, overwrite=force, progress=progress)
    skipped = show_notes(found.notes, found.skipped)
    if json:
        where = None if found.positions is None else str(found.positions)
        facts = {"out": str(out), "frames": len(found.photos), "seen": found.seen, "positions": where}
        print_json({**facts, "skipped": skipped, "notes": found.notes})
        return
    say(f"wrote {format_count(len(found.photos), 'photo')} to {out}", style="bold green")
    placed = [] if found.positions is None else ["--positions", str(found.positions)]
    say("map them: " + format_command("tfa", "build", out, "--out", f"{out.name}.tfa", *placed))

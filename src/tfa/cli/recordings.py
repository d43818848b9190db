"""Bags and videos on the command line: their options, and their frames as photos."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.errors import BadSpec
from tfa.search.store import is_url
from tfa.types import Answers

if TYPE_CHECKING:
    from tfa.photos.find_positions import PositionSources
    from tfa.photos.recordings.frames import ExtractedFrames, FrameSpec

TopicOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of a bag: the topic of its images. If not given, the only one there is."),
]
PositionTopic = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|none",
        help="Of a bag: the topic that says where it was (NavSatFix, Odometry, PoseStamped), or none. If not given, "
        "the only one there is.",
    ),
]
EveryOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|Ns|Nm|new",
        help="Of a recording, keep one frame in N, one in N seconds, one in N metres, or those that look new: unlike "
        "the last one kept. 1s if not given.",
    ),
]
Frames = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", file_okay=False, help="Where the frames of a recording are kept as photos."),
]


@dataclass(frozen=True)
class FrameOptions:
    """Which frames of a recording are taken, and where they are kept."""

    topic: str | None = None
    position_topic: str | None = None
    every: str | None = None
    frames: Path | None = None

    @property
    def flags(self) -> list[str]:
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) is not None]

    def spec(self, gpx: PositionSources | None = None) -> FrameSpec:
        from tfa.photos.recordings.frames import DEFAULT_INTERVAL, FrameSpec

        every = DEFAULT_INTERVAL if self.every is None else self.every
        return FrameSpec(topic=self.topic, position_topic=self.position_topic, every=every, gpx=gpx)


def are_recordings(paths: Sequence[str | Path], options: FrameOptions) -> bool:
    """Are these recordings? Photos among them are refused, and so are options that only recordings have."""
    from tfa.photos.recordings.recording import is_recording

    kinds = [not is_url(one) and is_recording(Path(one)) for one in paths]
    if not any(kinds):
        if options.flags:
            raise BadSpec(f"{options.flags[0]} is about a bag or a video, and none was given; leave it out")
        return False
    if not all(kinds):
        recording, other = paths[kinds.index(True)], paths[kinds.index(False)]
        raise BadSpec(
            f"{recording} is a recording and {other} is none; give recordings alone, or make photos of them first: "
            f"tfa frames {recording} --out FOLDER"
        )
    return True


def frames_for_map(
    recordings: Sequence[Path], out: Path, options: FrameOptions, sources: PositionSources, **how: Any
) -> tuple[ExtractedFrames, PositionSources]:
    """The frames of a map that is written to `out`, kept beside it, and where they were taken."""
    from tfa.photos.recordings.frames import extract_frames

    if sources.csv is not None:
        raise BadSpec(
            "--positions lists files, and frames of a recording have no names yet; give --position-topic or --gpx, or "
            "make photos first with: tfa frames"
        )
    folder = options.frames or out.with_name(f"{out.stem}-frames")
    found = extract_frames(recordings, folder, options.spec(sources), **how)
    return found, replace(sources, csv=found.positions, gpx=None)


@dataclass
class Queries:
    """Photos to ask, of which some may be frames of recordings."""

    photos: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    frames: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)  # times, and names if not kept

    def name_frames(self, answers: Answers) -> Answers:
        """Say of each answer to a frame when that was taken, and where it is from."""
        named = []
        for answer in answers:
            time_ns, name = self.frames.get(answer.query, (answer.time_ns, answer.frame))
            named.append(replace(answer, time_ns=time_ns, frame=name))
        return replace(answers, answers=named)


def frames_to_ask(
    recordings: Sequence[Path], options: FrameOptions, context: typer.Context, *, progress: bool
) -> Queries:
    """The frames of recordings, in a folder that is there until the command ends, or that was named."""
    from tfa.photos.recordings.frames import KeyframeInterval as Parsed
    from tfa.photos.recordings.frames import extract_frames, format_frame_name, parse_frame_time
    from tfa.photos.recordings.recording import NO_TOPIC

    queries, spec = Queries(), options.spec()
    if spec.position_topic is None and Parsed.parse(spec.every).unit != "metres":
        spec = replace(spec, position_topic=NO_TOPIC)  # a bag with several need not be told which: none is of use
    folder = options.frames
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="tfa-frames-", ignore_cleanup_errors=True)
        context.call_on_close(temporary.cleanup)
    for number, recording in enumerate(recordings):
        if folder is None:
            own = Path(temporary.name, f"{number:03d}")
        else:
            own = folder if len(recordings) == 1 else folder / f"{number:03d}-{recording.stem}"
        # A frame that cannot be read is reported, and the others are answered.
        found = extract_frames(recording, own, spec, skip_bad=True, progress=progress)
        queries.photos += found.photos
        queries.notes += found.notes
        queries.skipped += found.skipped
        for photo in found.photos:
            time_ns = parse_frame_time(photo)
            name = None if folder is not None or time_ns is None else f"{recording}@{format_frame_name(time_ns)}"
            queries.frames[str(photo)] = (time_ns, name)
    return queries

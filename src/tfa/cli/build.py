"""`tfa build`, `tfa frames` and `tfa tiles`: photos, recordings and orthophotos in, a map out."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import format_count, print_json, say, show_notes, wants_progress
from tfa.cli.info import show_map
from tfa.core.config import EncoderOptions, HeadSpec, MapSpec, RerankSpec
from tfa.core.text import format_command
from tfa.errors import BadSpec, NoImages, TfaError
from tfa.search.store import URL_EXAMPLES, MapLocation, is_url, split_map_url

if TYPE_CHECKING:
    from tfa.photos.find_positions import PositionSources
    from tfa.photos.recordings.frames import ExtractedFrames, FrameSpec


# --- recordings -----------------------------------------------------------------------------------

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

    def name_frames(self, answers: list[Any]) -> None:
        """Say of each answer to a frame when that was taken, and where it is from."""
        for row, answer in enumerate(answers):
            if answer.query in self.frames:
                time_ns, name = self.frames[answer.query]
                answers[row] = replace(answer, time_ns=time_ns, frame=name)


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


# --- frames ---------------------------------------------------------------------------------------


def frames(
    files: Annotated[
        list[Path], typer.Argument(metavar="RECORDING", exists=True, help="ROS 1 or ROS 2 bags, MCAP files, or videos.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where photos and positions.csv go; new or empty.")],
    topic: TopicOption = None,
    position_topic: PositionTopic = None,
    every: EveryOption = None,
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
    chosen = FrameOptions(topic, position_topic, every)
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


# --- tiles ----------------------------------------------------------------------------------------


def tiles(
    orthophoto: Annotated[
        Path, typer.Argument(metavar="ORTHO.tif", exists=True, dir_okay=False, help="A GeoTIFF, north up, in bytes.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where tiles and positions.csv go; new or empty.")],
    size: Annotated[float, typer.Option(metavar="M", help="Side of a tile in metres: about what one photo shows.")],
    step: Annotated[
        float | None, typer.Option(metavar="M", help="Metres from tile to tile; the size if not given.")
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Cut an orthophoto into tiles with the positions of their centres, to build a map for photos from the air.

    Tiles that show nearly nothing are left out. Needs pip install 'tfa-vpr\\[geo]'.
    """
    from tfa.photos.orthophoto import TILE_POSITIONS, cut_tiles

    cut = cut_tiles(orthophoto, out, size, step, wants_progress(quiet))
    if json:
        pixels = {"across": cut.size[0], "down": cut.size[1]}
        print_json({"out": str(out), "tiles": cut.written, "left_out": cut.left_out, "pixels": pixels})
        return
    say(f"wrote {format_count(cut.written, 'tile')} to {out}", style="bold green")
    if cut.left_out:
        say(f"  left out, with nearly nothing on them: {cut.left_out:,}")
    say(
        "map them: "
        + format_command("tfa", "build", out, "--out", f"{out.name}.tfa", "--positions", out / TILE_POSITIONS)
    )


# --- build ----------------------------------------------------------------------------------------

_HELP = {field.name: field.metadata["help"] for field in dataclasses.fields(HeadSpec)}


_Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Build a store map on a Ray cluster: auto, local, ray://HOST:10001 or HOST:PORT. "
        "Needs pip install 'tfa-vpr\\[ray]'.",
    ),
]
_Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Store maps: number of processes, or of Ray tasks at a time.")
]
_ShardSize = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Store maps: photos per shard. \\[default: 1000]")
]
_Work = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Store maps: folder for shards, to resume an interrupted build; visible to all workers. "
        "\\[default: beside the token cache]",
    ),
]
_Seal = Annotated[
    str | None,
    typer.Option(metavar="INDEX", help="Store maps: index to search by. \\[default: exact search]"),
]


_PatchesAt = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Store maps: where patches are stored, lance+s3://BUCKET/PREFIX/NAME or lance:///FOLDER/NAME. "
        "\\[default: in the store]",
    ),
]


@dataclass(frozen=True)
class _ShardOptions:
    """Options of a build in shards, which only a map in a store has."""

    ray: str | None = None
    workers: int | None = None
    shard_size: int | None = None
    work: Path | None = None
    seal: str | None = None
    patches_at: str | None = None

    @property
    def names(self) -> list[str]:
        """Those that were set, as they are typed."""
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) is not None]


@options.with_encoder
def build(
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTOS",
            help="Photos, or folders searched for photos; or bags and videos; for a store also a manifest "
            "(.csv, .parquet) or a bucket.",
        ),
    ],
    out: Annotated[
        MapLocation | None,
        typer.Option(
            metavar="NAME.tfa|URL", parser=MapLocation, help="Map to write: a folder, or the URL of a map in a store."
        ),
    ] = None,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    positions: options.PositionsOption = None,
    gpx: options.Gpx = None,
    gpx_offset: options.GpxOffset = None,
    gpx_gap: options.GpxGap = None,
    utm: options.Utm = None,
    topic: TopicOption = None,
    position_topic: PositionTopic = None,
    every: EveryOption = None,
    frames: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Where the frames of a recording are kept as photos. Beside the map, as NAME-frames, if not given.",
        ),
    ] = None,
    skip_bad: options.SkipBad = False,
    head: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="judged: of several heads the one whose answers bear most evidence; second-order: that of --carrier "
            "(both ours); paper: the paper's own.",
        ),
    ] = MapSpec.head,
    carrier: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --head second-order: original, partial (if not given), adaptive, blend, tempered or full.",
        ),
    ] = None,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Keep all three replicas: three times the size, steadier answers.")
    ] = False,
    storage: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="float16, float32, or int7: a quarter of float32 and the fastest to search (ours)."
        ),
    ] = MapSpec.storage,
    rerank: Annotated[
        bool,
        typer.Option(
            "--rerank/--no-rerank",
            help="Keep what verifying answers by their patches needs, and decide whether it is used.",
        ),
    ] = True,
    dims: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Search by N numbers of an image, a byte each, and score the best 100 again with all (ours): for "
            "large maps, where 1024 is a good choice. If not given, all numbers are searched.",
        ),
    ] = None,
    patches: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="How they are kept. full: a byte for each number of a patch; small: two bits for each, about a "
            "quarter of the size (15,870 bytes an image, not 67,712).",
        ),
    ] = RerankSpec.patches,
    ray: _Ray = None,
    workers: _Workers = None,
    shard_size: _ShardSize = None,
    work: _Work = None,
    seal: _Seal = None,
    patches_at: _PatchesAt = None,
    words: Annotated[int, typer.Option(min=1, help=f"{_HELP['words']}.")] = HeadSpec().words,
    batch_size: Annotated[int, typer.Option(min=1, help="Photos encoded at a time.")] = EncoderOptions.batch_size,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing map.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Build a searchable map from photos.

    Each photo is encoded once and kept in a cache: a stopped build goes on where it was.
    """
    from tfa.maps import PlaceMap

    # What can be refused is refused before the work, not after an hour of it.
    shards = _ShardOptions(ray, workers, shard_size, work, seal, patches_at)
    location = _check_out(out, photos, shards, force=force)
    given = MapSpec.carrier if carrier is None else carrier
    kept = rerank if patches == RerankSpec.patches else RerankSpec(patches=patches)
    if kept and not rerank:
        raise BadSpec(f"--patches {patches} says how patches are kept, and --no-rerank keeps none; leave one out")
    if patches_at is not None and not rerank:
        raise BadSpec("--patches-at says where patches are kept, and --no-rerank keeps none; leave one out")
    own_dims = None if location.in_store else dims  # a store searches by its own vectors
    map_spec = MapSpec(head=head, carrier=given, storage=storage, ensemble=ensemble, rerank=kept, dims=own_dims)
    if carrier is not None and head != "second-order":
        own = f"the {head} head decides about its carrier itself"
        raise BadSpec(f"--carrier {carrier} is for --head second-order; {own}")
    sources = options.read_position_sources(positions, gpx, gpx_offset, gpx_gap, utm)
    if location.in_store and (gpx is not None or utm is not None):
        raise BadSpec("--gpx and --utm are for maps in folders; list lat and lon in the manifest of photos instead")
    chosen = FrameOptions(topic, position_topic, every, frames)
    recorded = are_recordings(photos, chosen)
    if recorded and location.in_store:
        raise BadSpec("recordings are for maps in folders; make photos of them first with: tfa frames")
    spec = HeadSpec(words=words)
    encoding = dataclasses.replace(encoding, batch_size=batch_size, skip_bad=skip_bad)
    progress = wants_progress(quiet)
    if location.in_store:
        settings = {"encoder": encoder, "spec": spec, "map_spec": map_spec, "options": encoding}
        _build_in_store(photos, location.text, shards, dims, positions, settings, progress=progress, json=json)
        return

    paths, notes, skipped = [Path(photo) for photo in photos], list[str](), list[tuple[str, str]]()
    if recorded:
        found, sources = frames_for_map(
            paths, location.folder, chosen, sources, skip_bad=skip_bad, overwrite=force, progress=progress
        )
        paths, notes, skipped = [found.folder], found.notes, found.skipped
    place_map = PlaceMap.build(
        paths[0] if len(paths) == 1 else paths,
        encoder=encoder,
        positions=sources,
        spec=spec,
        map_spec=map_spec,
        options=encoding,
        progress=progress,
    )
    place_map.save(location.folder, overwrite=force)
    place_map.notes, place_map.skipped = [*notes, *place_map.notes], [*skipped, *place_map.skipped]
    report_build(place_map, location.folder, json=json)


def _check_out(out: MapLocation | None, photos: Sequence[str], shards: _ShardOptions, *, force: bool) -> MapLocation:
    """Refuse, before the work, a place that cannot be written to and options that do not belong to it."""
    if out is None:
        raise typer.BadParameter(
            f"where shall the map be? Give --out NAME.tfa, a folder, or a store URL: {URL_EXAMPLES}"
        )
    if not out.in_store:
        if shards.names:
            raise BadSpec(f"{shards.names[0]} is for a map in a store; give its URL with --out: {URL_EXAMPLES}")
        for photo in photos:
            if is_url(photo):
                raise NoImages(f"{photo} is read for a map in a store (--out URL); copy it here for a map in a folder")
    for photo in photos:
        if not is_url(photo) and not Path(photo).exists():
            raise typer.BadParameter(f"{photo} does not exist; give an image, a folder of images, or several of them")
    if not out.in_store:
        check_out(out.folder, force=force)
    return out


def check_out(out: Path, *, force: bool) -> None:
    if out.exists() or out.is_symlink():
        if not force:
            raise TfaError(f"{out} exists already; choose another --out, or replace it with --force")
        if out.suffix != ".tfa":  # a slip of the pen must not cost a folder of photos
            raise TfaError(f"{out} is not named like a map (NAME.tfa): --force will not replace it")
    options.check_writable(out)


def report_build(place_map: Any, out: Path, *, json: bool) -> None:
    info = place_map.info()
    skipped = show_notes(place_map.notes, place_map.skipped)
    if json:
        print_json({**info, "skipped": skipped})
        return
    say(f"built {out}", style="bold green")
    show_map(info)
    say("query it: " + format_command("tfa", "query", out, "PHOTO"))


def _build_in_store(
    photos: Sequence[str],
    url: str,
    shards: _ShardOptions,
    dims: int | None,
    positions: Path | None,
    settings: Mapping[str, Any],
    *,
    progress: bool,
    json: bool,
) -> None:
    from tfa.maps.building import Sharding, build_sharded, list_photos
    from tfa.maps.building.executors import choose_executor
    from tfa.maps.building.photo_list import SHARD_SIZE
    from tfa.maps.building.sharded import _DIMS

    split_map_url(url)  # before a cluster is started
    encoding = settings["options"]
    listed = list_photos(photos, positions=positions, skip_bad=encoding.skip_bad)
    # What executors print is not our output: Ray writes of lost workers to standard output.
    with redirect_stdout(sys.stderr), choose_executor(shards.ray, shards.workers, encoding.device) as executor:
        sharding = Sharding(
            executor=executor,
            shard_size=shards.shard_size or SHARD_SIZE,
            work=shards.work,
            dims=dims or _DIMS,
            index=shards.seal,
            patches_at=shards.patches_at,
        )
        report = build_sharded(listed, url, sharding=sharding, progress=progress, **settings)
    skipped = show_notes(report.notes, report.skipped)
    if json:
        print_json({**report.to_dict(), "skipped": skipped})
        return
    say(f"built {report.url}", style="bold green")
    say(
        f"{format_count(report.header.count, 'image')} in {report.header.collection}, {report.header.dims} numbers each"
    )
    say("query it: " + format_command("tfa", "query", report.url, "PHOTO"))

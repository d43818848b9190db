"""`tfa build`, `tfa frames` and `tfa tiles`: build maps from photos, recordings and orthophotos."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import delivered, format_count, print_json, say, show_notes
from tfa.cli.info import SUMMARY, show_map
from tfa.cli.options import Part, PositionOptions, check_new, check_writable, list_set_keys, takes
from tfa.core.plain import Options, opt, to_plain
from tfa.core.text import format_command
from tfa.errors import BadSpec, TfaError
from tfa.search.store import URL_EXAMPLES, MapLocation, is_url, split_map_url
from tfa.types import (
    PAPER_ENCODER,
    BuildOptions,
    BuildResult,
    EncoderOptions,
    FramesResult,
    HeadSpec,
    RerankSpec,
    StoreBuildResult,
    TileSize,
    TilesResult,
)

if TYPE_CHECKING:
    from tfa.maps.building.sharded import BuildReport
    from tfa.photos.find_positions import PositionSources
    from tfa.photos.recordings.frames import ExtractedFrames, FrameSpec


class FrameOptions(Options):
    """Frames of a recording to keep, and the folder they are written to."""

    topic: str | None = opt(None, "Image topic to read from a bag. [default: the only one]", cli={"metavar": "NAME"})
    position_topic: str | None = opt(
        None,
        "Topic with positions (NavSatFix, Odometry, PoseStamped), or none. [default: the only one]",
        cli={"metavar": "NAME|none"},
    )
    every: str | None = opt(
        None,
        "Frame spacing: N frames, Ns seconds, Nm meters, or new (visibly different). [default: 1s]",
        cli={"metavar": "N|Ns|Nm|new"},
    )
    folder: Path | None = opt(None, "Folder for the frames of a recording.")

    def make_spec(self, gpx: PositionSources | None = None) -> FrameSpec:
        """Return the settings of the recording reader."""
        from tfa.photos.recordings.frames import DEFAULT_INTERVAL, FrameSpec

        every = DEFAULT_INTERVAL if self.every is None else self.every
        return FrameSpec(topic=self.topic, position_topic=self.position_topic, every=every, gpx=gpx)


def list_set_fields(options: Options) -> list[str]:
    return [one.name for one in fields(options) if getattr(options, one.name) is not None]


def are_recordings(paths: Sequence[str | Path], chosen: FrameOptions) -> bool:
    """Return True if these are recordings; reject a mix with photos, and frame options without a recording."""
    from tfa.photos.recordings.recording import is_recording

    kinds = [not is_url(one) and is_recording(Path(one)) for one in paths]
    if not any(kinds):
        names = list_set_fields(chosen)
        if names:
            option = f"--{names[0]}" if names[0] in ("topic", "every") else f"frames.{names[0]}"
            raise BadSpec(f"{option} is for bags and videos; remove it, or pass a recording")
        return False
    if not all(kinds):
        recording, other = paths[kinds.index(True)], paths[kinds.index(False)]
        raise BadSpec(
            f"{recording} is a recording and {other} is not; pass recordings only, or extract photos first with: "
            + format_command("tfa", "frames", recording, "--out", "FOLDER")
        )
    return True


def extract_map_frames(
    recordings: Sequence[Path], out: MapLocation, chosen: FrameOptions, sources: PositionSources, **how: Any
) -> tuple[ExtractedFrames, PositionSources]:
    """Extract the frames of a new map into a folder next to it; return them and their position sources."""
    from tfa.photos.recordings.frames import extract_frames

    if sources.csv is not None:
        raise BadSpec(
            "--positions lists files, but frames of a recording have no names yet; use --set frames.position_topic or "
            "--gpx, or extract photos first with: tfa frames"
        )
    built = Path(f"{split_map_url(out.text)[1]}.tfa") if out.in_store else out.folder
    folder = chosen.folder or built.with_name(f"{built.stem}-frames")
    extracted = extract_frames(recordings, folder, chosen.make_spec(sources), **how)
    return extracted, replace(sources, csv=extracted.positions, gpx=None)


@dataclass
class Queries:
    """Photos to query, and the recordings that they are frames of."""

    photos: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    frames: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)  # time, and name if not stored

    def name_frame(self, answer: Any) -> Any:
        """Return an answer with the time and recording of its frame."""
        if answer.query not in self.frames:
            return answer
        time_ns, name = self.frames[answer.query]
        return replace(answer, time_ns=time_ns, frame=name)


def extract_queries(
    recordings: Sequence[Path], chosen: FrameOptions, context: typer.Context, *, progress: bool
) -> Queries:
    """Extract frames of recordings into the chosen folder, or a temporary one."""
    from tfa.photos.recordings.frames import KeyframeInterval, extract_frames, format_frame_name, parse_frame_time
    from tfa.photos.recordings.recording import NO_TOPIC

    queries, spec = Queries(), chosen.make_spec()
    if spec.position_topic is None and KeyframeInterval.parse(spec.every).unit != "meters":
        spec = replace(spec, position_topic=NO_TOPIC)  # not needed: do not make the user choose one
    folder = chosen.folder
    if folder is None:
        temporary = tempfile.TemporaryDirectory(prefix="tfa-frames-", ignore_cleanup_errors=True)
        context.call_on_close(temporary.cleanup)
    for number, recording in enumerate(recordings):
        if folder is None:
            target = Path(temporary.name, f"{number:03d}")
        else:
            target = folder if len(recordings) == 1 else folder / f"{number:03d}-{recording.stem}"
        # Report an unreadable frame and query the others.
        extracted = extract_frames(recording, target, spec, skip_bad=True, progress=progress)
        queries.photos += extracted.photos
        queries.notes += extracted.notes
        queries.skipped += extracted.skipped
        for photo in extracted.photos:
            time_ns = parse_frame_time(photo)
            name = None if folder is not None or time_ns is None else f"{recording}@{format_frame_name(time_ns)}"
            queries.frames[str(photo)] = (time_ns, name)
    return queries


@takes(
    chosen=Part(FrameOptions, ("topic", "position_topic", "every")),
    positions=Part(PositionOptions, ("gpx", "gpx_offset", "gpx_gap")),
    encoding=Part(EncoderOptions, ("skip_bad",)),
)
def frames(
    files: Annotated[
        list[Path], typer.Argument(metavar="RECORDING", exists=True, help="ROS 1 or ROS 2 bags, MCAP files, or videos.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for photos and positions.csv; new or empty.")],
    chosen: FrameOptions,
    positions: PositionOptions,
    encoding: EncoderOptions,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder of other frames.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Extract photos and their positions from bags or videos.

    Compressed images are copied unchanged, raw ones become PNG, video frames JPEG. Needs pip install
    'tfa-vpr\\[bags]', for videos 'tfa-vpr\\[video]'.
    """
    from tfa.photos.recordings.frames import extract_frames

    check_writable(out)
    sources, progress = positions.read(), not quiet
    extracted = extract_frames(
        files, out, chosen.make_spec(sources), skip_bad=encoding.skip_bad, overwrite=force, progress=progress
    )
    skipped = show_notes(extracted.notes, extracted.skipped)
    if json:
        where = None if extracted.positions is None else str(extracted.positions)
        print_json(FramesResult(
            out=str(out), frames=len(extracted.photos), seen=extracted.seen, positions=where, skipped=skipped,
            notes=extracted.notes,
        ))  # fmt: skip
        return
    say(f"wrote {format_count(len(extracted.photos), 'photo')} to {out}", style="bold green")
    placed = [] if extracted.positions is None else ["--positions", str(extracted.positions)]
    say("build a map: " + format_command("tfa", "build", out, "--out", f"{out.name}.tfa", *placed))


def tiles(
    orthophoto: Annotated[
        Path, typer.Argument(metavar="ORTHO.tif", exists=True, dir_okay=False, help="GeoTIFF in bytes, north up.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for tiles and positions.csv; new or empty.")],
    size: Annotated[float, typer.Option(metavar="M", help="Side of a tile in meters: about one photo's view.")],
    step: Annotated[float | None, typer.Option(metavar="M", help="Meters between tiles. \\[default: the size]")] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Cut an orthophoto into tiles for a map of aerial photos.

    Nearly empty tiles are left out. Needs pip install 'tfa-vpr\\[geo]'.
    """
    from tfa.photos.orthophoto import TILE_POSITIONS, cut_tiles

    cut = cut_tiles(orthophoto, out, size, step, not quiet)
    pixels = TileSize(across=cut.size[0], down=cut.size[1])
    if delivered(TilesResult(out=str(out), tiles=cut.written, left_out=cut.left_out, pixels=pixels), json=json):
        return
    say(f"wrote {format_count(cut.written, 'tile')} to {out}", style="bold green")
    if cut.left_out:
        say(f"  left out nearly empty tiles: {cut.left_out:,}")
    command = format_command("tfa", "build", out, "--out", f"{out.name}.tfa", "--positions", out / TILE_POSITIONS)
    say(f"build a map: {command}")


class ShardOptions(Options):
    """How a map in a store is built."""

    ray: str | None = opt(None, "Build a store map on a Ray cluster: auto, local, ray://HOST:10001 or HOST:PORT.")
    workers: int | None = opt(None, "Processes, or Ray tasks at a time.", ge=1)
    shard_size: int | None = opt(None, "Photos per shard. [default: 1000]", ge=1)
    work: Path | None = opt(
        None, "Shared folder for shards; an interrupted build resumes from it. [default: in the cache]"
    )
    index: str | None = opt(None, "Index to search by. [default: exact search]")
    patches_at: str | None = opt(
        None, "Store of the patches: lance+s3://BUCKET/PREFIX/NAME or lance:///FOLDER/NAME. [default: the map's]"
    )


@takes(
    positions=Part(PositionOptions, ("positions", "gpx", "utm"), {"gpx_offset": "gpx.offset", "gpx_gap": "gpx.gap"}),
    chosen=Part(FrameOptions, ("topic", "every"), "frames"),
    kind=Part(BuildOptions, ("head", "rerank", "dims", "vocabulary"), "map"),
    spec=Part(HeadSpec, (), "head"),
    reranking=Part(RerankSpec, (), "rerank"),
    encoding=Part(EncoderOptions, ("skip_bad", "weights", "device", "precision"), "encoder"),
    shards=Part(ShardOptions, (), "build"),
)
def build(
    context: typer.Context,
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTOS", help="Photos, folders, bags or videos; for a store also a manifest or a bucket."
        ),
    ],
    *,
    out: Annotated[
        MapLocation | None,
        options.output_option(
            metavar="NAME.tfa|URL", parser=MapLocation, help="Map to write: a folder, or the URL of a map in a store."
        ),
    ] = None,
    encoder: options.EncoderOption = "dinov2-s14-focus",
    positions: PositionOptions,
    chosen: FrameOptions,
    kind: BuildOptions,
    spec: HeadSpec,
    reranking: RerankSpec,
    encoding: EncoderOptions,
    shards: ShardOptions,
    paper: Annotated[
        bool, typer.Option("--paper", help="Build TFA as published, with encoder dinov2-b14@322.")
    ] = False,
    force: Annotated[bool, options.output_option("--force", help="Replace an existing map.")] = False,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Build a searchable map from photos.

    Tokens of each photo are cached, so an interrupted build resumes.
    """
    from tfa.maps import PlaceMap

    # Validate options first: a bad one must not fail after an hour of encoding.
    location = _check_out(out, photos, shards, force=force)
    if paper:
        encoder = _check_paper(context, encoder, location)
    kind = _choose_kind(kind, reranking, list_set_keys(context))
    sources = positions.read()
    recorded = are_recordings(photos, chosen)
    progress = not quiet
    paths: list[Any] = list(photos) if location.in_store else [Path(photo) for photo in photos]
    notes, skipped = list[str](), list[tuple[str, str]]()
    if recorded:
        how = {"skip_bad": encoding.skip_bad, "overwrite": force, "progress": progress}
        extracted, sources = extract_map_frames([Path(one) for one in photos], location, chosen, sources, **how)
        paths, notes, skipped = [extracted.folder], extracted.notes, extracted.skipped
    if location.in_store:
        settings = {"encoder": encoder, "spec": spec, "map_spec": kind, "options": encoding}
        report = _build_in_store(paths, location.text, shards, sources, settings, progress=progress)
        _report_store_build(report, [*notes, *report.notes], [*skipped, *report.skipped], json=json)
        return
    head: dict[str, Any] = {"map_spec": BuildOptions.paper()} if paper else {"spec": spec, "map_spec": kind}
    place_map = PlaceMap.build(
        paths[0] if len(paths) == 1 else paths, encoder=encoder, positions=sources, **head, options=encoding,
        progress=progress,
    )  # fmt: skip
    place_map.save(location.folder, overwrite=force)
    place_map.notes, place_map.skipped = [*notes, *place_map.notes], [*skipped, *place_map.skipped]
    report_build(place_map, location.folder, json=json)


def _check_paper(context: typer.Context, encoder: str, out: MapLocation) -> str:
    """Reject options that --paper sets; return the encoder, which only --encoder overrides."""

    def is_typed(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    changed = [f"--{name}" for name in ("head", "rerank", "dims", "vocabulary", "precision") if is_typed(name)]
    changed += sorted(key for key in list_set_keys(context) if key.partition(".")[0] in ("map", "head", "rerank"))
    if changed:
        raise BadSpec(f"--paper builds TFA as published and excludes {changed[0]}; remove one of them")
    if out.in_store:
        raise BadSpec("--paper needs a map in a folder, because a store reduces descriptors; pass --out NAME.tfa")
    return encoder if is_typed("encoder") else PAPER_ENCODER


def _choose_kind(kind: BuildOptions, reranking: RerankSpec, set_keys: frozenset[str]) -> BuildOptions:
    """Combine the settings of a map; reject those that exclude each other."""
    keys = sorted(key for key in set_keys if key.startswith("rerank.") or key == "build.patches_at")
    if keys and not kind.rerank:
        raise BadSpec(f"{keys[0]} needs stored patches, but --no-rerank stores none; remove one of them")
    if "map.carrier" in set_keys and kind.head != "second-order":
        raise BadSpec(
            f"map.carrier={kind.carrier} is for --head second-order; the {kind.head} head chooses its carrier; remove "
            "the setting"
        )
    return kind if reranking == RerankSpec() else replace(kind, rerank=reranking)


def _check_out(out: MapLocation | None, photos: Sequence[str], shards: ShardOptions, *, force: bool) -> MapLocation:
    """Reject an output that cannot be written, and options that do not apply to it."""
    if out is None:
        raise typer.BadParameter(f"missing --out; for example --out town.tfa, or a store URL: {URL_EXAMPLES}")
    if not out.in_store:
        names = list_set_fields(shards)
        if names:
            raise BadSpec(f"build.{names[0]} is for a map in a store; pass its URL to --out: {URL_EXAMPLES}")
        for photo in photos:
            if is_url(photo):
                raise BadSpec(f"{photo} is only read for a map in a store (--out URL); copy the photos here instead")
    for photo in photos:
        if not is_url(photo) and not Path(photo).exists():
            raise typer.BadParameter(f"{photo} does not exist; pass photos, folders, bags or videos")
    if not out.in_store:
        check_out(out.folder, force=force)
    return out


def check_out(out: Path, *, force: bool) -> None:
    """Reject an existing output, unless it is a map and --force is set."""
    if force and out.suffix != ".tfa" and (out.exists() or out.is_symlink()):  # a typo must not delete photos
        raise TfaError(f"--force does not replace {out}: only maps (NAME.tfa)")
    check_new(out, force=force)


def report_build(place_map: Any, out: Path, *, json: bool) -> None:
    info = place_map.info()
    skipped = show_notes(place_map.notes, place_map.skipped)
    if delivered(BuildResult(**vars(info), skipped=skipped), json=json):
        return
    say(f"built {out}", style="bold green")
    show_map(info, SUMMARY)
    say("query it with: " + format_command("tfa", "query", out, "PHOTO"))


def _build_in_store(
    photos: Sequence[str],
    url: str,
    shards: ShardOptions,
    sources: PositionSources,
    settings: Mapping[str, Any],
    *,
    progress: bool,
) -> BuildReport:
    from tfa.maps.building import Sharding, build_sharded, list_photos
    from tfa.maps.building.executors import choose_executor
    from tfa.maps.building.photo_list import SHARD_SIZE
    from tfa.maps.store.publish import STORE_DIMS

    split_map_url(url)  # before a cluster is started
    encoding, kind = settings["options"], settings["map_spec"]
    listed = list_photos(photos, positions=sources, skip_bad=encoding.skip_bad)
    # Ray reports lost workers on standard output, which is for results.
    with redirect_stdout(sys.stderr), choose_executor(shards.ray, shards.workers, encoding.device) as executor:
        sharding = Sharding(
            executor=executor, shard_size=shards.shard_size or SHARD_SIZE, work=shards.work,
            dims=kind.dims or STORE_DIMS, index=shards.index, patches_at=shards.patches_at,
        )  # fmt: skip
        # A store reduces vectors itself, so the head is not reduced.
        fitted = {**settings, "map_spec": replace(kind, dims=None)}
        return build_sharded(listed, url, sharding=sharding, progress=progress, **fitted)


def _report_store_build(
    report: BuildReport, notes: list[str], left_out: Sequence[tuple[str, str]], *, json: bool
) -> None:
    skipped = show_notes(notes, left_out)
    if json:
        facts = {**report.to_dict(), "notes": notes, "skipped": to_plain(skipped)}
        print_json(StoreBuildResult.from_dict(facts))
        return
    say(f"built {report.url}", style="bold green")
    say(f"  images: {report.header.count:,} in {report.header.collection}, {report.header.dims} dimensions each")
    say("query it with: " + format_command("tfa", "query", report.url, "PHOTO"))

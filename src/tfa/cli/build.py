"""`tfa build`: photos in, a map out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tfa.cli import options, recordings
from tfa.cli.console import format_count, print_json, say, show_notes, wants_progress
from tfa.cli.show_map import show_map
from tfa.core.text import format_command
from tfa.errors import BadSpec, NoImages, TfaError
from tfa.search.store import URL_EXAMPLES, MapLocation, is_url, split_map_url
from tfa.types import BuildOptions, EncoderOptions, HeadSpec, RerankSpec

if TYPE_CHECKING:
    from tfa.photos.find_positions import PositionSources

_HELP = {field.name: field.metadata["description"].rstrip(".") for field in dataclasses.fields(HeadSpec)}


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
    topic: recordings.TopicOption = None,
    position_topic: recordings.PositionTopic = None,
    every: recordings.EveryOption = None,
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
    ] = BuildOptions.head,
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
    ] = BuildOptions.storage,
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
    given = BuildOptions.carrier if carrier is None else carrier
    kept = rerank if patches == RerankSpec.patches else RerankSpec.from_dict({"patches": patches})
    if kept and not rerank:
        raise BadSpec(f"--patches {patches} says how patches are kept, and --no-rerank keeps none; leave one out")
    if patches_at is not None and not rerank:
        raise BadSpec("--patches-at says where patches are kept, and --no-rerank keeps none; leave one out")
    own_dims = None if location.in_store else dims  # a store searches by its own vectors
    texts = {"head": head, "carrier": given, "storage": storage, "ensemble": ensemble, "rerank": kept}
    map_spec = BuildOptions.from_dict({**texts, "dims": own_dims})
    if carrier is not None and head != "second-order":
        own = f"the {head} head decides about its carrier itself"
        raise BadSpec(f"--carrier {carrier} is for --head second-order; {own}")
    sources = options.read_position_sources(positions, gpx, gpx_offset, gpx_gap, utm)
    chosen = recordings.FrameOptions(topic, position_topic, every, frames)
    recorded = recordings.are_recordings(photos, chosen)
    if recorded and location.in_store:
        raise BadSpec("recordings are for maps in folders; make photos of them first with: tfa frames")
    spec = HeadSpec(words=words)
    encoding = dataclasses.replace(encoding, batch_size=batch_size, skip_bad=skip_bad)
    progress = wants_progress(quiet)
    if location.in_store:
        settings = {"encoder": encoder, "spec": spec, "map_spec": map_spec, "options": encoding}
        _build_in_store(photos, location.text, shards, dims, sources, settings, progress=progress, json=json)
        return

    paths, notes, skipped = [Path(photo) for photo in photos], list[str](), list[tuple[str, str]]()
    if recorded:
        found, sources = recordings.frames_for_map(
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
    info = place_map.info().to_dict()
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
    positions: PositionSources,
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

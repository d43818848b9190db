"""`tfa build`: photos in, a map out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.base.config import EncoderOptions, HeadSpec, MapSpec, RerankSpec
from tfa.base.shell import format_command
from tfa.cli import build_engine, options, recordings
from tfa.cli.console import print_json, say, show_notes, wants_progress
from tfa.cli.show_map import show_map
from tfa.errors import BadSpec, TfaError

HELP = {field.name: field.metadata["help"] for field in dataclasses.fields(HeadSpec)}


@options.with_encoder
def build(
    photos: Annotated[
        list[str],
        typer.Argument(
            metavar="PHOTOS",
            help="Photos, or folders searched for photos; or bags and videos; with --engine also a manifest "
            "(.csv, .parquet) or a bucket.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="NAME.tfa", help="The map to write, a folder.")] = None,
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
    engine: build_engine.Engine = None,
    ray: build_engine.Ray = None,
    workers: build_engine.Workers = None,
    shard_size: build_engine.ShardSize = None,
    work: build_engine.Work = None,
    seal: build_engine.Seal = None,
    patches_at: build_engine.PatchesAt = None,
    words: Annotated[int, typer.Option(min=1, help=f"{HELP['words']}.")] = HeadSpec().words,
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
    shards = build_engine.ShardOptions(ray, workers, shard_size, work, seal, patches_at)
    build_engine.check_place(out, engine, photos, shards)
    if out is not None:
        check_out(out, force=force)
    given = MapSpec.carrier if carrier is None else carrier
    kept = rerank if patches == RerankSpec.patches else RerankSpec(patches=patches)
    if kept and not rerank:
        raise BadSpec(f"--patches {patches} says how patches are kept, and --no-rerank keeps none; leave one out")
    if patches_at is not None and not rerank:
        raise BadSpec("--patches-at says where patches are kept, and --no-rerank keeps none; leave one out")
    own_dims = dims if engine is None else None  # that of a map in an engine is how its engine searches
    map_spec = MapSpec(head=head, carrier=given, storage=storage, ensemble=ensemble, rerank=kept, dims=own_dims)
    if carrier is not None and head != "second-order":
        own = f"the {head} head decides about its carrier itself"
        raise BadSpec(f"--carrier {carrier} is for --head second-order; {own}")
    sources = options.read_position_sources(positions, gpx, gpx_offset, gpx_gap, utm)
    if engine is not None and (gpx is not None or utm is not None):
        raise BadSpec("--gpx and --utm are for maps in folders; list lat and lon in the manifest of photos instead")
    chosen = recordings.FrameOptions(topic, position_topic, every, frames)
    recorded = recordings.are_recordings(photos, chosen)
    if recorded and engine is not None:
        raise BadSpec("recordings are for maps in folders; make photos of them first with: tfa frames")
    spec = HeadSpec(words=words)
    encoding = dataclasses.replace(encoding, batch_size=batch_size, skip_bad=skip_bad)
    progress = wants_progress(quiet)
    if engine is not None:
        settings = {"encoder": encoder, "spec": spec, "map_spec": map_spec, "options": encoding}
        build_engine.build_in_engine(photos, engine, shards, dims, positions, settings, progress=progress, json=json)
        return

    assert out is not None, "checked above"
    paths, notes, skipped = [Path(photo) for photo in photos], list[str](), list[tuple[str, str]]()
    if recorded:
        found, sources = recordings.frames_for_map(
            paths, out, chosen, sources, skip_bad=skip_bad, overwrite=force, progress=progress
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
    place_map.save(out, overwrite=force)
    place_map.notes, place_map.skipped = [*notes, *place_map.notes], [*skipped, *place_map.skipped]
    report_build(place_map, out, json=json)


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

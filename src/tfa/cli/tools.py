"""Tools: cache, encoders, weights, speed, demo."""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import (
    Command,
    CommandGroup,
    console,
    delivered,
    examples,
    format_count,
    open_table,
    print_json,
    print_text,
    say,
    show_notes,
)
from tfa.cli.info import format_size
from tfa.errors import BadSpec
from tfa.types import CacheInfo, CatalogEncoder, EncoderOptions, EncoderTrial, PluginEncoder, SpeedResult

if TYPE_CHECKING:
    from tfa.encoders.catalogue import Card


def cache(
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete old entries: --older-than, --max-size or both.")
    ] = False,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="With --prune: delete entries unused for this long.")
    ] = None,
    max_size: Annotated[
        float | None,
        typer.Option(min=0, metavar="GB", help="With --prune: delete least recently used entries above this size."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete everything except weights.")] = False,
    json: options.AsJson = False,
) -> None:
    """Show what the cache holds, or delete some of it.

    Photos are encoded again if their tokens were deleted; a build restarts if its shards were deleted.
    """
    if prune and clear:
        raise typer.BadParameter("pass --prune or --clear, not both")
    if prune != (older_than is not None or max_size is not None):
        raise typer.BadParameter("--prune needs --older-than DAYS, --max-size GB or both, and these need --prune")

    from tfa.photos import token_cache
    from tfa.photos.token_cache import TokenCache

    deleted = token_cache.clear_cache() if clear else None
    if prune and not clear:
        deleted = token_cache.prune_cache(older_than, None if max_size is None else round(max_size * 1e9))
    shelves, benchmark = token_cache.list_shelves(), token_cache.measure_benchmark()
    builds, most = token_cache.measure_unfinished_builds(), token_cache.read_cache_limit()
    folder, size = str(TokenCache().folder), sum(facts.bytes for facts in shelves)
    if json:
        print_json(CacheInfo(
            folder=folder, bytes=size, limit=most, encoders=shelves, benchmark=benchmark, unfinished_builds=builds,
            deleted=deleted,
        ))  # fmt: skip
        return
    if deleted is not None:
        say(f"deleted {format_count(deleted.files, 'file')}, {format_size(deleted.bytes)}", style="bold green")
    bound = "no limit" if most is None else f"limit {format_size(most)}, least recently used entries are deleted"
    say(f"{folder}: {format_size(size)} ({bound}; {token_cache.CACHE_LIMIT_VARIABLE} changes it)")
    table = open_table("encoder", "images", "size", fold=("encoder", "images", "size"))
    for one in shelves:
        table.add_row(one.encoder, f"{one.images:,}", format_size(one.bytes))
    if shelves:
        console().print(table)
    for kept in benchmark:
        say(f"benchmark {kept.kind}: {format_count(kept.files, 'file')}, {format_size(kept.bytes)}")
    if builds.files:
        room = f"{format_count(builds.files, 'file')}, {format_size(builds.bytes)}"
        say(f"{format_count(builds.builds, 'unfinished build')}: {room}")


weights = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode="rich", help="Download encoder weights.")
encoders = typer.Typer(cls=CommandGroup, rich_markup_mode="rich")
_TRIED = 16  # maximum number of photos that a trial encodes
SPEED_SECONDS, _SPEED_FRAMES = 5.0, (4, 100)  # duration of a speed test; fewest and most frames


@encoders.callback(invoke_without_command=True)
def list_encoders(context: typer.Context, json: options.AsJson = False) -> None:
    """List the encoders and whether their weights are on this machine."""
    if context.invoked_subcommand is not None:
        return

    from tfa.encoders import list_plugin_encoders
    from tfa.encoders.catalogue import CATALOGUE, DEFAULT_ENCODER

    plugins = [PluginEncoder(name=name, distribution=source) for name, source in list_plugin_encoders().items()]
    rows = [summarize_encoder(card) for card in CATALOGUE.values()]
    if delivered([*rows, *plugins], json=json):
        return
    table = open_table("encoder", "parameters", "patch", "size", "license", "weights here", fold=("license",))
    for row in rows:
        here = "yes" if row.weights else "no"
        style = "bold" if row.name == DEFAULT_ENCODER else None
        millions = f"{row.parameters / 1e6:.1f} M"
        table.add_row(row.name, millions, str(row.patch), str(row.size), row.licence, here, style=style)
    for plugin in plugins:
        table.add_row(plugin.name, "", "", "", f"from {plugin.distribution}", "")
    console().print(table)
    say()
    say(f"default: {DEFAULT_ENCODER}; choose with --encoder name, name@size or name@size/layer-facet")
    say("others: hf:ORG/NAME or hf:./folder; try one with tfa encoders try NAME --photos FOLDER")
    say("weights: tfa weights get NAME, or your own with --weights FILE")


@encoders.command(
    "try", cls=Command, epilog=examples("tfa encoders try hf:facebook/dinov2-base@322/l7 --photos photos/")
)
@options.with_encoder
def try_encoder(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Encoder, as for --encoder.")],
    photos: Annotated[Path, typer.Option(exists=True, metavar="FOLDER", help="Photos; at most 16 are encoded.")],
    encoding: EncoderOptions,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Encode a few photos, and show the tokens, preprocessing, speed and memory of an encoder."""
    from tfa.encoders import load_encoder
    from tfa.photos.images import as_rgb, find_images

    paths = find_images(photos)
    images = [as_rgb(path) for path in paths[:: -(-len(paths) // _TRIED)]]
    loading = {field: getattr(encoding, field) for field in options.ENCODING}
    encoder = load_encoder(name, **loading, progress=not quiet)
    encoder.encode(images[:1])  # the first run is slower
    start = time.perf_counter()
    batches = [encoder.encode(images[i : i + encoding.batch_size]) for i in range(0, len(images), encoding.batch_size)]
    seconds = (time.perf_counter() - start) / len(images)
    patches, cls = batches[0]
    reads = getattr(encoder, "reads", ())
    card = getattr(getattr(encoder, "identity", None), "card", None)  # encoders of other distributions have none
    trial = EncoderTrial(
        encoder=encoder.id, fingerprint=encoder.fingerprint, patches=patches.shape[1], channels=patches.shape[2],
        grid=list(encoder.grid), prefix=card and card.prefix, global_channels=None if cls is None else cls.shape[1],
        input=list(reads[:2]) or None, resample=reads[2] if reads else None,
        mean=card and list(card.mean), std=card and list(card.std), photos=len(paths), seconds=seconds,
        peak_memory=measure_peak_memory(), token_bytes=patches[0].nbytes + (0 if cls is None else cls[0].nbytes),
        notes=list(encoder.notes),
    )  # fmt: skip
    if delivered(trial, json=json):
        return
    count, cached = format_count(len(paths), "photo"), format_size(trial.token_bytes * len(paths))
    grid, token = " x ".join(map(str, trial.grid)), "no global token" if cls is None else "a global token"
    say(f"encoder: {trial.encoder}", style="bold")
    say(f"tokens: {trial.patches} patches of {trial.channels} channels, grid {grid}, {token}")
    if card is not None and trial.input is not None:
        size = f"{trial.input[0]} x {trial.input[1]} pixels, {trial.resample}, mean {trial.mean}, std {trial.std}"
        say(f"input: {size}; tokens before the patches: {trial.prefix}")
    say(f"speed: {seconds:.2f} s per photo on {encoder.device}; {count}: {seconds * len(paths) / 60:.1f} minutes")
    say(f"memory: at most {format_size(trial.peak_memory)}; token cache for {count}: {cached}")
    show_notes(trial.notes)


def measure_peak_memory() -> int:
    """Return the largest resident size of this process in bytes; 0 on Windows, which has no such count."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def summarize_encoder(card: Card) -> CatalogEncoder:
    from tfa.encoders.packaged_weights import expected_shapes

    return CatalogEncoder(
        **{name: getattr(card, name) for name in ("name", "about", "patch", "size", "licence", "hub")},
        parameters=sum(math.prod(shape) for shape in expected_shapes(card).values()),
        channels=card.width,
        blocks=card.depth,
        weights=find_weights(card),
    )


def find_weights(card: Card) -> str | None:
    """Return the file that holds the weights of `card` on this machine; does not use the network."""
    if card.package is not None:
        from tfa.encoders.packaged_weights import is_whole, packaged_path

        path = packaged_path(card)
        return str(path) if is_whole(path, card.package) else None
    if card.hub is None:
        return None

    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(card.hub, "model.safetensors")
    return cached if isinstance(cached, str) else None


@weights.callback()
def weights_of_encoders() -> None:
    """Download encoder weights."""  # typer makes a group of a single command only with a callback


@weights.command(cls=Command, epilog=examples("tfa weights get dinov2-s14-focus", "tfa weights get dinov2-b14"))
def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Encoder, as tfa encoders lists them, or mobilesam if tfa-bench is installed."
        ),
    ],
    quiet: options.Quiet = False,
) -> None:
    """Download the weights of an encoder, for work without a network."""
    from tfa.core.plugins import load_plugin

    fetch = load_plugin("tfa.weights", name)  # other weights, such as a segmenter's
    if fetch is not None:
        file = fetch(not quiet)
    elif name.startswith("hf:"):
        from tfa.encoders.hub import find_model, parse_hub_name

        file = find_model(parse_hub_name(name))[0]
    else:
        from tfa.encoders.catalogue import parse_encoder
        from tfa.encoders.weights import resolve_weights

        card = parse_encoder(name).card  # a size or layer after the name is ignored
        resolve_weights(card, progress=not quiet)
        name, file = card.name, find_weights(card)
    say(f"weights of {name}: {file}")


@options.with_encoder
def speed(
    map: options.MapPath,
    photos: Annotated[
        Path | None, options.photos_option(help="Photos to query; at most 16 are used. \\[default: map images]")
    ] = None,
    *,
    encoding: EncoderOptions,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure the speed and memory of queries on this machine, in about ten seconds."""
    from tfa.core.arrays import count_cores
    from tfa.core.tokens import Tokens
    from tfa.photos.images import as_rgb, find_images

    clock = time.perf_counter
    begun = clock()
    place_map, _ = options.open_map(map, encoding, quiet=quiet)
    opened = clock() - begun
    paths = [Path(image.path) for image in place_map.state.images] if photos is None else find_images(photos)
    paths = [path for path in paths[:: -(-len(paths) // _TRIED)] if path.is_file()]
    if not paths:
        raise BadSpec("the images of this map are not on disk; pass photos with --photos FOLDER")
    begun = clock()
    place_map.query(paths[0])
    first, encoder, online = clock() - begun, place_map.encoder, not place_map.state.is_published
    tracker = place_map.follow(online=online) if place_map.storage.has_all_rows else None
    times, end = list[tuple[float, ...]](), clock() + SPEED_SECONDS
    for path in itertools.islice(itertools.cycle(paths), _SPEED_FRAMES[1]):
        steps = [clock()]
        image = as_rgb(path)
        steps.append(clock())
        tokens = Tokens(*encoder.encode([image]), grid=encoder.grid)
        steps.append(clock())
        _ = tracker.step(tokens) if tracker else place_map.query_tokens(tokens)
        steps.append(clock())
        times.append(tuple(after - before for before, after in itertools.pairwise(steps)))
        if steps[-1] > end and len(times) >= _SPEED_FRAMES[0]:
            break
    # The first frame also prepares the tracker.
    read, encode, answer = (sum(step) / len(step) for step in zip(*times[1:], strict=True))
    threads = encoding.threads or count_cores()
    result = SpeedResult(
        map=place_map.called, images=len(place_map), encoder=encoder.id, device=encoder.device, threads=threads,
        precision=getattr(encoder, "precision", "float32"), open=opened, first_query=first,
        frames=len(times) - 1, read=read, encode=encode, answer=answer, peak_memory=measure_peak_memory(),
        frames_per_second=1 / (read + encode + answer),
    )  # fmt: skip
    if delivered(result, json=json):
        return
    how = f"{encoder.id} in {result.precision} on {encoder.device}, {format_count(threads, 'thread')}"
    say(f"{place_map.called}: {format_count(result.images, 'image')}, {how}", style="bold")
    say(f"cold: {opened:.2f} s to open the map, {first:.2f} s for the first query")
    parts = f"read {1000 * read:.0f} ms, encode {1000 * encode:.0f} ms, answer {1000 * answer:.0f} ms"
    say(f"warm: {result.frames_per_second:.1f} frames per second of one camera ({parts})")
    say(f"memory: at most {format_size(result.peak_memory)}")


def demo(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the photos, the map and the report.")] = Path(
        "demo-out"
    ),
    references: Annotated[int, typer.Option(min=2, max=90, help="Photos of the first drive: the map.")] = 90,
    queries: Annotated[int, typer.Option(min=1, max=45, help="Photos of the second drive: the queries.")] = 45,
    quiet: options.Quiet = False,
) -> None:
    """Build a map of a small town and query it, in a few minutes."""
    options.check_writable(out)

    from tfa.demo.run import run_demo

    result = run_demo(out, references=references, queries=queries, progress=not quiet)
    print_text(f"{result}\n")

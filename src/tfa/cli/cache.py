"""`tfa cache`: what the user's cache holds, and making room."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tfa.cli import options
from tfa.cli.console import console, format_count, open_table, print_json, say
from tfa.cli.show_map import human_bytes


def cache(
    prune: Annotated[bool, typer.Option("--prune", help="Delete what is old: see the next two options.")] = False,
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="With --prune: what was not used for so many days.")
    ] = None,
    max_size: Annotated[
        float | None,
        typer.Option(min=0, metavar="GB", help="With --prune: what was used longest ago, until so much is left."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Delete all of it; weights stay.")] = False,
    json: options.AsJson = False,
) -> None:
    """Show what the cache holds of each encoder, of the benchmark and of unfinished builds, or delete some of it.

    Photos whose tokens were deleted are encoded again when they are needed. What the benchmark keeps is made again, and
    a build whose shards were deleted begins anew.
    """
    if prune and clear:
        raise typer.BadParameter("give --prune or --clear, not both")
    if prune != (older_than is not None or max_size is not None):
        raise typer.BadParameter("--prune goes with --older-than DAYS, --max-size GB or both")

    from tfa.photos import cache_upkeep, token_cache
    from tfa.photos.token_cache import TokenCache

    deleted = None
    if clear:
        deleted = cache_upkeep.clear_cache()
    elif prune:
        deleted = cache_upkeep.prune_cache(older_than, None if max_size is None else round(max_size * 1e9))
    shelves, benchmark, builds = (
        cache_upkeep.list_shelves(),
        cache_upkeep.measure_benchmark(),
        cache_upkeep.measure_unfinished_builds(),
    )
    size = sum(facts.bytes for facts in shelves)
    if json:
        facts = {"folder": str(TokenCache().folder), "bytes": size, "limit": token_cache.read_cache_limit()}
        facts["encoders"] = [asdict(one) for one in shelves]
        facts["benchmark"] = [asdict(one) for one in benchmark]
        facts["unfinished_builds"] = asdict(builds)
        print_json({**facts, "deleted": None if deleted is None else deleted.to_dict()})
        return
    if deleted is not None:
        say(f"deleted {format_count(deleted.files, 'file')}, {human_bytes(deleted.bytes)}", style="bold green")
    most = token_cache.read_cache_limit()
    bound = "no limit" if most is None else f"kept below {human_bytes(most)}, those used longest ago go first"
    say(f"{TokenCache().folder}: {human_bytes(size)} ({bound}; {token_cache.CACHE_LIMIT_VARIABLE} sets another)")
    table = open_table("encoder", "images", "size", fold=("encoder", "images", "size"))
    for one in shelves:
        table.add_row(one.encoder, f"{one.images:,}", human_bytes(one.bytes))
    if shelves:
        console().print(table)
    for kept in benchmark:
        say(f"{kept.kind} of the benchmark: {format_count(kept.files, 'file')}, {human_bytes(kept.bytes)}")
    if builds.files:
        room = f"{format_count(builds.files, 'file')}, {human_bytes(builds.bytes)}"
        say(f"{format_count(builds.builds, 'unfinished build')}: {room}")

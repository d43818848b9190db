"""`tfa build --engine`: photos in, a map in an engine out; in shards, on this machine or on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.base.shell import command
from tfa.cli.console import counted, print_json, say, show_notes
from tfa.errors import BadSpec, NoImages
from tfa.search.store import URL_EXAMPLES, hide_password, is_url

Engine = Annotated[
    str | None,
    typer.Option(metavar="URL", help=f"Build the map in an engine, in shards, in place of --out: {URL_EXAMPLES}."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="With --engine: build on a Ray cluster. auto, local, ray://HOST:10001 or HOST:PORT. "
        "Needs pip install 'tfa-vpr\\[ray]'.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --engine: processes, or tasks of Ray at a time.")
]
ShardSize = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --engine: photos of a shard; 1000 if not given.")
]
Work = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="With --engine: where shards are kept until the map is published, for a build that was stopped to go on; "
        "all workers must see it. Beside the token cache if not given.",
    ),
]
Seal = Annotated[
    str | None,
    typer.Option(
        metavar="INDEX", help="With --engine: the engine's index to search by; if not given, it searches exactly."
    ),
]


PatchesAt = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="With --engine: keep the patches in a bucket or a folder, lance+s3://BUCKET/PREFIX/NAME or "
        "lance:///FOLDER/NAME; in the engine if not given.",
    ),
]


@dataclass(frozen=True)
class ShardOptions:
    """What only a build in shards takes."""

    ray: str | None = None
    workers: int | None = None
    shard_size: int | None = None
    work: Path | None = None
    seal: str | None = None
    patches_at: str | None = None

    @property
    def given(self) -> list[str]:
        return [f"--{one.name.replace('_', '-')}" for one in fields(self) if getattr(self, one.name) is not None]


def check_place(out: Path | None, engine: str | None, photos: Sequence[str], shards: ShardOptions) -> None:
    """A map is written to a folder or to an engine, and what belongs to one is refused with the other."""
    if out is None and engine is None:
        raise typer.BadParameter(
            f"where shall the map be? Give --out NAME.tfa, a folder, or --engine URL, one of {URL_EXAMPLES}"
        )
    if engine is None:
        if shards.given:
            raise BadSpec(f"{shards.given[0]} is for a map in an engine; give --engine URL too: {URL_EXAMPLES}")
        for photo in photos:
            if is_url(photo):
                raise NoImages(f"{photo} is read for a map in an engine (--engine URL); copy it here for --out")
    elif out is not None:
        raise BadSpec(
            f"--out {out} and --engine {hide_password(engine)} were given; a map is in one of them: leave one out"
        )
    for photo in photos:
        if not is_url(photo) and not Path(photo).exists():
            raise typer.BadParameter(f"{photo} does not exist; give an image, a folder of images, or several of them")


def build_in_engine(
    photos: Sequence[str],
    engine: str,
    shards: ShardOptions,
    dims: int | None,
    positions: Path | None,
    settings: Mapping[str, Any],
    *,
    progress: bool,
    json: bool,
) -> None:
    from tfa.maps.sharded import Sharding, build_sharded, list_photos
    from tfa.maps.sharded.executors import executor_for
    from tfa.maps.sharded.photo_list import SHARD_SIZE
    from tfa.maps.sharded.settings import DIMS
    from tfa.search.store import split_map_url

    split_map_url(engine)  # a misspelt one costs no cluster
    encoding = settings["options"]
    listed = list_photos(photos, positions=positions, skip_bad=encoding.skip_bad)
    # What executors print is no answer of ours: Ray writes of lost workers to standard output.
    with redirect_stdout(sys.stderr), executor_for(shards.ray, shards.workers, encoding.device) as executor:
        sharding = Sharding(
            executor=executor,
            shard_size=shards.shard_size or SHARD_SIZE,
            work=shards.work,
            dims=dims or DIMS,
            index=shards.seal,
            patches_at=shards.patches_at,
        )
        report = build_sharded(listed, engine, sharding=sharding, progress=progress, **settings)
    skipped = show_notes(report.notes, report.skipped)
    if json:
        print_json({**report.to_dict(), "skipped": skipped})
        return
    say(f"built {report.url}", style="bold green")
    say(f"{counted(report.header.count, 'image')} in {report.header.collection}, {report.header.dims} numbers each")
    say("query it: " + command("tfa", "query", report.url, "PHOTO"))

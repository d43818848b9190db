"""`tfa bench scale`: what carries a map past one machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tfa.cli import options
from tfa.cli.console import note, print_json, print_text, wants_progress

if TYPE_CHECKING:
    from tfa.bench.scale.datasets import Datasets


def scale(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART",
            help="engines, switches, killed, replicas, ray, union or reduction. If none is named: all; the last two "
            "need --dataset.",
        ),
    ] = None,
    sizes: Annotated[
        str, typer.Option(metavar="N,…", help="Images that engines are compared with, of made-up vectors.")
    ] = "20000,100000,1000000",
    engines: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Only these: exact, reduced, faiss-flat, postgres, milvus, lance, …"),
    ] = None,
    limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="A row that takes longer is given up, and says so.")
    ] = 900.0,
    milvus: Annotated[
        str | None, typer.Option(metavar="URL", help="Compare this server: milvus://HOST:19530. Else one is started.")
    ] = None,
    postgres: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Compare this server: postgres://USER@HOST/DATABASE. Else one is started."),
    ] = None,
    photos: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Photos for ray; else a town is drawn."),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="For union and reduction: a dataset and its folder, as for tfa bench run; several.",
        ),
    ] = None,
    heads: Annotated[str | None, typer.Option(metavar="NAME,…", help="For union: heads, as for tfa bench run.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="For union: take each dataset alone from these records of tfa bench run, where they are up to date.",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For ray, union and reduction. If not given: a quick one of random weights for ray, else "
            "dinov2-s14-focus.",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="Where vectors are made up, 4 kB an image. In the cache folder if not given.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure rows once more that --out has already.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Keep every row there as soon as it is done, in JSON; rows that are there are not measured again.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Put the tables into this Markdown file, between <!-- scale: PART --> and <!-- end of PART -->.",
        ),
    ] = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what carries a map past one machine: engines by size, switches of versions, kills, replicas, Ray, all
    datasets as one gallery, fewer numbers an image."""
    from tfa.bench.scale.kept_rows import KeptRows
    from tfa.bench.scale.page import all_tables, filled, tables
    from tfa.bench.scale.suite import OF_DATASETS, ScaleSettings, chosen_parts, run_parts
    from tfa.core.files import write_text

    wanted = chosen_parts(parts or ())
    joining = [part for part in wanted if part in OF_DATASETS]
    if joining and len(dataset or ()) < 2:
        named = " and ".join(joining)
        if parts:
            raise typer.BadParameter(f"{named}: datasets are joined; give --dataset NAME=PATH, at least twice")
        wanted = [part for part in wanted if part not in joining]
        note(f"{named} are left out: they need --dataset NAME=PATH, at least twice")
    if out is not None:
        options.check_writable(out)
    progress = wants_progress(quiet)
    settings = ScaleSettings(
        sizes=_numbers(sizes),
        engines=_listed(engines),
        limit=limit,
        milvus=milvus,
        postgres=postgres,
        work=work,
        photos=photos,
        encoder=encoder,
        heads=_listed(heads),
        records=records,
        datasets=cache(lambda: identified(dataset or (), encoder or "dinov2-s14-focus", progress)),
    )
    kept = KeptRows(out, again=again)
    for row in run_parts(wanted, settings, kept, progress):
        if not quiet and not json:
            note(f"{row['part']}: {row['name']}{': ' + row['given_up'] if 'given_up' in row else ''}")
    if json:
        print_json(kept.to_dict())
    else:
        print_text(all_tables(kept.rows.values()))
    if page is not None:
        write_text(page, filled(page.read_text("utf-8"), tables(kept.rows.values())))
        note(f"wrote {page}")
    if out is not None:
        note(f"wrote {out}")


def identified(dataset: Sequence[str], encoder: str, progress: bool) -> Datasets:
    """Datasets, which are encoded when a row needs their tokens."""
    from tfa.bench.record_inputs import identify
    from tfa.bench.run import prepare
    from tfa.bench.scale.datasets import Datasets
    from tfa.cli.bench.run import load_all, loaded_encoder
    from tfa.core.progress import as_progress
    from tfa.types import EncoderOptions

    model, bars, loaded = loaded_encoder(encoder, EncoderOptions()), as_progress(progress), load_all(dataset)
    known = [identify(data, model) for data in loaded]
    return Datasets(known, lambda: [prepare(data, model, progress=bars) for data in loaded])


def _listed(text: str | None) -> list[str]:
    return [one.strip() for one in (text or "").split(",") if one.strip()]


def _numbers(text: str) -> list[int]:
    listed = _listed(text)
    if not listed or not all(one.isdecimal() and int(one) >= 1000 for one in listed):
        raise typer.BadParameter(f"{text!r} is no list of sizes; give numbers of 1000 or more, such as 20000,100000")
    return [int(one) for one in listed]

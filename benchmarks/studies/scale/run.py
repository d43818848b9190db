"""Run the parts of the scale study and save their rows."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.options import make_parser, run_script
from studies.scale.engines import CONTENDERS
from studies.scale.rows import SavedRows, all_tables, filled, tables
from tfa.cli import options
from tfa.cli.console import note, print_json, print_text
from tfa.core.files import cache_folder, write_text
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadSpec
from tfa.types import EncoderOptions
from tfa_bench.cli.run import load_all, loaded_encoder
from tfa_bench.run import identify, prepare

if TYPE_CHECKING:
    from studies.scale.union import Datasets


STORES = ("postgres", "lance", "milvus")
SIZES = (20_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class ScaleSettings:
    """Settings of all parts; each uses those it needs."""

    sizes: Sequence[int] = SIZES
    engines: Sequence[str] = ()  # contenders or stores [default: all]
    limit: float = 900.0  # seconds per row
    milvus: str | None = None  # a running server
    postgres: str | None = None
    work: Path | None = None  # folder of synthetic vectors [default: the cache folder]
    photos: Path | None = None
    encoder: str | None = None
    heads: Sequence[str] = ()
    records: Path | None = None  # records of heads on separate datasets
    datasets: Callable[[], Datasets] | None = None  # called only if needed
    dims: int = 1024
    block: int = 10_000
    switches: int = 30
    edits: int = 20
    images: int = 600  # photos of a drawn town

    def chosen(self, names_there: Sequence[str]) -> list[str]:
        return [one for one in names_there if not self.engines or one in self.engines]

    @property
    def stores(self) -> list[str]:
        return self.chosen(STORES)


Rows = Iterator[dict[str, Any]]


def engines(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.engines import EngineSettings, run_engines

    own = EngineSettings(
        folder=settings.work or cache_folder() / "bench-scale",
        sizes=settings.sizes,
        engines=settings.chosen(list(CONTENDERS)),
        limit=settings.limit,
        dims=settings.dims,
        block=settings.block,
        milvus=settings.milvus,
        postgres=settings.postgres,
    )
    return run_engines(own, saved, progress)


def union(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.union import HEADS, run_union

    assert settings.datasets is not None
    return run_union(settings.datasets(), settings.heads or HEADS, saved, progress, settings.records)


def reduction(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.union import run_reduction

    assert settings.datasets is not None
    return run_reduction(settings.datasets(), saved, progress)


def ray(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.ray_builds import QUICK, RaySettings, run_ray

    own = RaySettings(settings.photos, settings.images, settings.encoder or QUICK, limit=settings.limit)
    return run_ray(own, saved)


def switches(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.versions import run_switches

    return run_switches(settings.stores, saved, progress, switches=settings.switches)


def killed(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.versions import run_killed

    return run_killed(settings.stores, saved, added=settings.edits)


def replicas(settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None) -> Rows:
    from studies.scale.versions import run_replicas

    return run_replicas(settings.stores, saved, edits=settings.edits)


PARTS: Mapping[str, Callable[[ScaleSettings, SavedRows, Progress | bool | None], Rows]] = {
    "engines": engines,
    "switches": switches,
    "killed": killed,
    "replicas": replicas,
    "ray": ray,
    "union": union,
    "reduction": reduction,
}
_OF_DATASETS = ("union", "reduction")  # parts that need --dataset


def chosen_parts(names: Sequence[str]) -> list[str]:
    """Return the named parts, or all, in the order of the suite."""
    _check("part", names, list(PARTS))
    return [name for name in PARTS if not names or name in names]


def check_engines(names: Sequence[str]) -> None:
    _check("engine", names, list(dict.fromkeys([*CONTENDERS, *STORES])))


def _check(what: str, names: Sequence[str], names_there: Sequence[str]) -> None:
    for name in names:
        if name not in names_there:
            close = get_close_matches(name, names_there, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadSpec(f"unknown {what} {name!r}; {hint}choose from {', '.join(names_there)}")


def run_parts(
    names: Sequence[str], settings: ScaleSettings, saved: SavedRows, progress: Progress | bool | None = None
) -> Rows:
    """Yield missing rows as they are measured."""
    check_engines(settings.engines)
    for name in chosen_parts(names):
        yield from PARTS[name](settings, saved, progress)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure maps beyond one machine: stores by size, version switches, kills, replicas, Ray, all datasets as one
    gallery, fewer dimensions per image.

    With --out, every row is saved when it is done; existing rows are not measured again.
    """
    parser = make_parser(main.__doc__ or "")
    named = "engines, switches, killed, replicas, ray, union or reduction; the last two need --dataset"
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{named} [default: all]")
    parser.add_argument("--sizes", type=_sizes, default=[20_000, 100_000, 1_000_000], metavar="N,…", help="images")
    parser.add_argument("--engines", type=_listed, default=[], metavar="NAME,…", help="only these, such as exact,lance")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="time limit per row")
    parser.add_argument("--milvus", metavar="URL", help="use this server instead of starting one")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of starting one")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="photos for ray [default: a drawn town]")
    parser.add_argument("--dataset", action="append", default=[], metavar="NAME=PATH", help="for union and reduction")
    parser.add_argument("--heads", type=_listed, default=[], metavar="NAME,…", help="for union")
    parser.add_argument("--records", type=Path, metavar="DIR", help="for union: records of the datasets")
    parser.add_argument("--encoder", metavar="NAME", help="for ray, union and reduction")
    parser.add_argument("--work", type=Path, metavar="DIR", help="folder for synthetic vectors, 4 kB per image")
    parser.add_argument("--again", action="store_true", help="measure existing rows again")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="fill the tables into this page")
    return run_script(parser, _run, argv)


def _run(arguments: Namespace) -> None:
    parts, out = chosen_parts(arguments.parts), arguments.out
    joining = [part for part in parts if part in _OF_DATASETS]
    if joining and len(arguments.dataset) < 2:
        named = " and ".join(joining)
        if arguments.parts:
            raise BadSpec(f"{named}: datasets are joined; pass --dataset NAME=PATH at least twice")
        parts = [part for part in parts if part not in joining]
        note(f"{named} are skipped: they need --dataset NAME=PATH at least twice")
    if out is not None:
        options.check_writable(out)
    progress = not arguments.quiet
    settings = ScaleSettings(
        sizes=arguments.sizes,
        engines=arguments.engines,
        limit=arguments.limit,
        milvus=arguments.milvus,
        postgres=arguments.postgres,
        work=arguments.work,
        photos=arguments.photos,
        encoder=arguments.encoder,
        heads=arguments.heads,
        records=arguments.records,
        datasets=cache(lambda: _identify(arguments.dataset, arguments.encoder or "dinov2-s14-focus", progress)),
    )
    saved = SavedRows(out, again=arguments.again)
    for row in run_parts(parts, settings, saved, progress):
        if not arguments.quiet and not arguments.json:
            note(f"{row['part']}: {row['name']}{': ' + row['given_up'] if 'given_up' in row else ''}")
    if arguments.json:
        print_json(saved.to_dict())
    else:
        print_text(all_tables(saved.rows.values()))
    if arguments.page is not None:
        write_text(arguments.page, filled(arguments.page.read_text("utf-8"), tables(saved.rows.values())))
        note(f"wrote {arguments.page}")
    if out is not None:
        note(f"wrote {out}")


def _identify(dataset: Sequence[str], encoder: str, progress: bool) -> Datasets:
    """Return datasets that are encoded when a row needs their tokens."""
    from studies.scale.union import Datasets

    model, bars, loaded = loaded_encoder(encoder, EncoderOptions()), as_progress(progress), load_all(dataset)
    names_there = [identify(data, model) for data in loaded]
    return Datasets(names_there, lambda: [prepare(data, model, progress=bars) for data in loaded])


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _sizes(text: str) -> list[int]:
    listed = _listed(text)
    if not listed or not all(one.isdecimal() and int(one) >= 1000 for one in listed):
        raise ArgumentTypeError(f"{text!r} is not a list of sizes; use numbers of 1000 or more, such as 20000,100000")
    return [int(one) for one in listed]


if __name__ == "__main__":
    sys.exit(main())

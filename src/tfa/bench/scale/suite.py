"""The parts of `tfa bench scale` by name, run one after the other; what is done is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.bench.scale.contenders import CONTENDERS
from tfa.bench.scale.kept_rows import KeptRows
from tfa.core.files import cache_folder
from tfa.core.progress import Progress
from tfa.errors import BadSpec

if TYPE_CHECKING:
    from tfa.bench.scale.datasets import Datasets

STORES = ("postgres", "lance", "milvus")
SIZES = (20_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class ScaleSettings:
    """What the parts are given; each takes what it needs."""

    sizes: Sequence[int] = SIZES
    engines: Sequence[str] = ()  # contenders, or stores; none: all
    limit: float = 900.0  # seconds of a row
    milvus: str | None = None  # a server that runs already
    postgres: str | None = None
    work: Path | None = None  # where vectors are made up; None: in the cache folder
    photos: Path | None = None
    encoder: str | None = None
    heads: Sequence[str] = ()
    records: Path | None = None  # of heads on each dataset alone
    datasets: Callable[[], Datasets] | None = None  # called only where they are needed
    dims: int = 1024
    block: int = 10_000
    switches: int = 30
    edits: int = 20
    images: int = 600  # photos of a drawn town

    def chosen(self, known: Sequence[str]) -> list[str]:
        return [one for one in known if not self.engines or one in self.engines]

    @property
    def stores(self) -> list[str]:
        return self.chosen(STORES)


Rows = Iterator[dict[str, Any]]


def engines(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.engines import EngineSettings, run_engines

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
    return run_engines(own, kept, progress)


def union(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.union import HEADS, run_union

    assert settings.datasets is not None
    return run_union(settings.datasets(), settings.heads or HEADS, kept, progress, settings.records)


def reduction(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.reduction import run_reduction

    assert settings.datasets is not None
    return run_reduction(settings.datasets(), kept, progress)


def ray(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.ray_builds import QUICK, RaySettings, run_ray

    own = RaySettings(settings.photos, settings.images, settings.encoder or QUICK, limit=settings.limit)
    return run_ray(own, kept)


def switches(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.switches import run_switches

    return run_switches(settings.stores, kept, progress, switches=settings.switches)


def killed(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.killed_servers import run_killed

    return run_killed(settings.stores, kept, added=settings.edits)


def replicas(settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None) -> Rows:
    from tfa.bench.scale.replicas import run_replicas

    return run_replicas(settings.stores, kept, edits=settings.edits)


PARTS: Mapping[str, Callable[[ScaleSettings, KeptRows, Progress | bool | None], Rows]] = {
    "engines": engines,
    "switches": switches,
    "killed": killed,
    "replicas": replicas,
    "ray": ray,
    "union": union,
    "reduction": reduction,
}
OF_DATASETS = ("union", "reduction")  # parts that need --dataset


def chosen_parts(names: Sequence[str]) -> list[str]:
    """The parts to run, in the order of the suite: those named, or all."""
    _check("part", names, list(PARTS))
    return [name for name in PARTS if not names or name in names]


def check_engines(names: Sequence[str]) -> None:
    _check("engine", names, list(dict.fromkeys([*CONTENDERS, *STORES])))


def _check(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadSpec(f"there is no {what} {name!r} to measure; {hint}there are {', '.join(known)}")


def run_parts(
    names: Sequence[str], settings: ScaleSettings, kept: KeptRows, progress: Progress | bool | None = None
) -> Rows:
    """Rows that were not there yet, as they are done."""
    check_engines(settings.engines)
    for name in chosen_parts(names):
        yield from PARTS[name](settings, kept, progress)

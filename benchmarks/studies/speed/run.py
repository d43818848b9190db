"""Run every speed benchmark by name, each with its floor."""

from __future__ import annotations

import difflib
import importlib
import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from studies.options import make_parser, run_script
from studies.speed.measure import (
    COLUMNS,
    HasLines,
    Line,
    cells,
    compared,
    library_versions,
    machine,
    measure,
    thread_count,
)
from tfa.cli import options
from tfa.cli.console import console, note, open_table, print_json, say
from tfa.core.files import write_json
from tfa.core.progress import Progress
from tfa.errors import BadSpec, MissingExtra, WeightsMissing


def result_lines(result: HasLines) -> Sequence[Line]:
    return result.lines()


def fit_lines(result: Any) -> list[Line]:
    """Compare the fit with the sum of its parts, then list the parts."""
    whole = compared(f"fit of {result.images:,} images", result.seconds, result.floor)
    return [whole, *(Line(f"of which {name}", seconds) for name, seconds in result.parts.items())]


def calibrate_lines(result: Any) -> list[Line]:
    return [
        compared(f"calibration on {result.target:,} images", result.target_seconds, result.fit_seconds),
        compared(f"calibration on {result.full:,} images", result.full_seconds, result.fit_seconds),
    ]


def verify_lines(result: Any) -> list[Line]:
    batch = f"a query of a batch of {result.queries}, {result.threads} threads"
    return [
        compared("one query", result.seconds, result.products_seconds),
        compared(batch, result.batch_seconds, result.batch_products_seconds),
    ]


FORMAT, VERSION = "tfa-speed", 1
SIZES = ("small", "full")
PEERS = "peers"
Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One entry of the suite. Nothing is imported before it runs."""

    title: str
    run: str  # module:function below studies.speed, called with the settings and progress=
    floor: str  # sentence: what the time is compared with
    small: Settings  # quick trial
    full: Settings  # settings of the performance page
    limits: str = ""  # sentences: why a target may be out of reach
    lines: Callable[[Any], Sequence[Line]] = result_lines  # makes lines of the function's result
    named_only: bool = False  # long, or needs more libraries: only run by name


_GRAMS_AND_SPECTRA = (
    "The floor is six Gram matrices in float64 and six eigendecompositions, called on their own; held against it is "
    "the fit from the descriptors on, since words and descriptors have floors of their own. Memory is the process's."
)
SUITE: dict[str, Benchmark] = {
    "encoding": Benchmark(
        title="Encoding photos",
        run="photo:run_encoding_benchmark",
        floor="The floor is the same encoder by torch in float32 (under a bar ≥ the ratio is floor over time); for "
        "reading photos, the floor is Pillow's decoding and resizing.",
        small={"encoders": ("dinov2-s14@322",), "batches": (1,), "photos": 40, "repeats": 1},
        full={"encoders": ("dinov2-s14@322", "dinov2-b14@322"), "batches": (1, 8), "photos": 200, "repeats": 3},
    ),
    "vocabulary": Benchmark(
        title="Three vocabularies",
        run="fit:run_vocabulary_benchmark",
        floor="The floor is the bare products of patches and words of as many iterations, in the same blocks.",
        small={"patches": 20_000, "channels": 384, "words": 64},
        full={"patches": 300_000, "channels": 768, "words": 64, "repeats": 2},
    ),
    "descriptors": Benchmark(
        title="Six descriptors of an image",
        run="fit:run_descriptors_benchmark",
        floor="The floor is the bare products: patches with the words of three vocabularies, and weights with patches.",
        small={"images": 20, "patches": 529, "channels": 384, "repeats": 1},
        full={"images": 200, "patches": 529, "channels": 768, "repeats": 3},
    ),
    "fit": Benchmark(
        title="Fitting a head",
        run="fit:run_fit_benchmark",
        floor="The floor is k-means, descriptors, Gram matrices and eigendecompositions, each called on its own.",
        small={"images": 100, "patches": 256, "channels": 384},
        full={"images": 607, "patches": 529, "channels": 384},
        lines=fit_lines,
    ),
    "growth": Benchmark(
        title="Fitting maps of several sizes",
        run="growth:run_fit_growth_benchmark",
        floor=_GRAMS_AND_SPECTRA,
        small={"sizes": (100, 200), "patches": 64, "channels": 384},
        full={"sizes": (600, 2000), "patches": 529, "channels": 768},
    ),
    "growth-5000": Benchmark(
        title="Fitting maps of up to 5,000 images",
        run="growth:run_fit_growth_benchmark",
        floor=_GRAMS_AND_SPECTRA,
        small={"sizes": (100, 300), "patches": 64, "channels": 384},
        full={"sizes": (600, 2000, 5000), "patches": 529, "channels": 768},
        named_only=True,
    ),
    "growth-10000": Benchmark(
        title="Fitting a map of 10,000 images",
        run="growth:run_fit_growth_benchmark",
        floor="The floor is not timed at this size: the question is whether the fit completes, and in what memory "
        "of the process.",
        small={"sizes": (400,), "patches": 64, "channels": 384, "floor": False},
        full={"sizes": (10_000,), "patches": 529, "channels": 768, "floor": False},
        named_only=True,
    ),
    "sampled": Benchmark(
        title="Fitting with a sampled PCA",
        run="growth:run_sampled_fit_benchmark",
        floor="The floor is the process's memory at the smaller map: that at the larger one should be the same, apart "
        "from what is on disk.",
        small={"images": (1500, 3000), "max_pca": 500, "pca_sample": 300, "max_pseudo": 300},
        full={"images": (25_000, 50_000), "max_pca": 2000, "pca_sample": 1000, "max_pseudo": 1000},
        named_only=True,
    ),
    "calibrate": Benchmark(
        title="Calibrating a head",
        run="fit:run_calibrate_benchmark",
        floor="The floor is the database-only fit the calibration builds on.",
        small={"images": 100, "target": 16, "full": 100, "patches": 256, "channels": 384},
        full={"images": 607, "target": 64, "full": 607, "patches": 529, "channels": 384},
        lines=calibrate_lines,
    ),
    "query": Benchmark(
        title="Querying a map",
        run="query:run_query_benchmark",
        floor="The floor is the time of reading as many bytes from memory as the answer must read; caches are emptied "
        "before every call, as the encoder empties them between two photos.",
        limits="In a map of 1,000 images the descriptor of the query, whose 26 million multiplications no floor of "
        "bytes includes, takes longer than the rows. In a large map one query runs at the speed of memory; in a "
        "batch the float32 products at the processor's full speed take more than an eighth of that. "
        "Most of a second-order query is its descriptor, for any map: products of patches, and the spectrum of "
        "one matrix of 128 × 128 on one core. In a map of 1,000 images that alone is above 0.6 of the paper's query.",
        small={"sizes": (1000,), "repeats": 3},
        full={"sizes": (1000, 10_000)},
    ),
    "cold": Benchmark(
        title="One photo, from the shell",
        run="query:run_cold_benchmark",
        floor="The floor is a script that reads the same photo and runs the same integer model by onnxruntime, and "
        "nothing else; times are of whole processes, the fastest of several. Wanted in int8: 1.2 s and 250 MB.",
        small={"images": 200, "repeats": 1},
        full={"images": 1000, "repeats": 5},
    ),
    "map-size": Benchmark(
        title="Bytes of a map",
        run="query:run_map_size_benchmark",
        floor="The floor is not a time: bytes of an image are compared with 4·K·d, what AnyLoc keeps of it.",
        limits="The coordinates of a geometry grow with the images it was fitted on, up to 4,096 directions: at 2,000 "
        "images they take a quarter of the map.",
        small={"sizes": (300,), "second_order_sizes": (300,)},
        full={"sizes": (607, 2000), "second_order_sizes": (607, 20_000)},
    ),
    "default": Benchmark(
        title="The default map compared with AnyLoc",
        run="second_order:run_default_benchmark",
        floor="The floor is AnyLoc on the same tokens: its build with one array of residuals, a query from patches to "
        "its ten best, and 4·K·d bytes an image.",
        small={"images": 60, "grid": (16, 16), "channels": 384},
        full={"images": 607, "grid": (23, 23), "channels": 384, "repeats": 3},
        named_only=True,
    ),
    "second-order": Benchmark(
        title="Fitting second-order and judged heads",
        run="second_order:run_second_order_benchmark",
        floor="The floor is another build of the tokens: the paper's fit, or AnyLoc's with one array of residuals.",
        limits="Most of a second-order fit are its descriptors, and about half of those the spectra of three matrices "
        "of 128 × 128 an image, in float64, at the speed of LAPACK.",
        small={"images": 60, "grid": (16, 16), "channels": 384, "target": 64},
        full={"images": 607, "grid": (23, 23), "channels": 384, "target": 64, "repeats": 2},
    ),
    "second-order-growth": Benchmark(
        title="Fitting second-order maps of up to 50,000 images",
        run="growth:run_second_order_growth",
        floor="The floor is not timed: the question is how time and memory of the process grow. One construction of "
        "the three is fitted, from made-up descriptors on.",
        limits="Beyond 8,256 images the spectrum is of a matrix of that size whatever the map, and the rest is linear.",
        small={"sizes": (300, 600, 1200), "directions": 24},
        full={"sizes": (5000, 20_000, 50_000)},
        named_only=True,
    ),
    "increment": Benchmark(
        title="Adding a photo",
        run="query:run_increment_benchmark",
        floor="The floor is the encoding of the photo alone.",
        small={"images": 1000},
        full={"images": 10_000},
    ),
    "verify": Benchmark(
        title="Verifying candidates",
        run="photo:run_verify_benchmark",
        floor="The floor is the bare matrix products of the query's patches with those of its candidates.",
        small={"candidates": 20, "patches": 529, "dimensions": 128, "queries": 4},
        full={"candidates": 20, "patches": 529, "dimensions": 128, "queries": 16},
        lines=verify_lines,
    ),
    "requests": Benchmark(
        title="Requests to a service",
        run="requests:run_requests_benchmark",
        floor="The floor is the same bytes sent and returned over a bare connection.",
        small={"requests": 50},
        full={"requests": 1000},
    ),
    PEERS: Benchmark(
        title="Side by side with the peers",
        run="peers:run_peers_benchmark",
        floor="The floor is one AnyLoc build (one vocabulary by its own k-means library, residuals image after image, "
        "nothing calibrated) on the same tokens; of a search or a whitening by TFA it is the peer that does the same.",
        small={"images": 60, "patches": 256, "channels": 384},
        full={"images": 607, "patches": 529, "channels": 384, "repeats": 2},
        named_only=True,
    ),
}


@dataclass(frozen=True)
class Done:
    """One benchmark of a run."""

    name: str
    settings: Settings
    lines: tuple[Line, ...]
    details: Mapping[str, Any] = field(default_factory=dict)  # to_dict of the result

    def to_dict(self) -> dict[str, Any]:
        entry = SUITE[self.name]
        return {
            "name": self.name,
            "title": entry.title,
            "floor": entry.floor,
            "settings": dict(self.settings),
            "lines": [line.to_dict() for line in self.lines],
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class SpeedRun:
    """Measurements of one run and its machine."""

    size: str
    machine: Mapping[str, str | int]
    versions: Mapping[str, str]
    threads: int
    benchmarks: tuple[Done, ...] = ()

    @classmethod
    def here(cls, size: str, benchmarks: Sequence[Done] = ()) -> SpeedRun:
        return cls(size, machine(), library_versions(), thread_count(), tuple(benchmarks))

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "size": self.size,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "threads": self.threads,
            "benchmarks": [done.to_dict() for done in self.benchmarks],
        }


def chosen(names: Sequence[str] = (), *, peers: bool = False) -> list[str]:
    """Return the named benchmarks, or all that run by default, in the order of the suite."""
    for name in names:
        if name not in SUITE:
            close = difflib.get_close_matches(name, SUITE, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise BadSpec(f"unknown speed benchmark {name!r}; {hint}choose from {', '.join(SUITE)}")
    wanted = set(names) or {name for name, entry in SUITE.items() if not entry.named_only}
    return [name for name in SUITE if name in wanted or (peers and name == PEERS)]


def run_each(
    names: Sequence[str], size: str = "full", progress: bool | Progress | None = None, *, alone: bool = False
) -> Iterator[Done]:
    """Run the benchmarks one by one; yield each when it is done.

    `alone`: each in a separate process, because leftovers of another change times: allocated memory is reused, and
    waiting threads occupy a core.
    """
    if size not in SIZES:
        raise BadSpec(f"size={size!r} is unknown; use {' or '.join(SIZES)}")
    for name in names:
        if alone:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                yield process.submit(run_one, name, size, progress).result()
        else:
            yield run_one(name, size, progress)


def run_one(name: str, size: str, progress: bool | Progress | None = None) -> Done:
    entry = SUITE[name]
    settings = entry.small if size == "small" else entry.full
    try:
        measured = measure(partial(_function(entry), **settings, progress=progress))
    except (MissingExtra, WeightsMissing) as error:  # the others still run
        return Done(name, settings, (Line(entry.title, note=str(error)),))
    result: HasLines = measured.result
    lines = list(entry.lines(result))
    # A benchmark that measures memory resets its peak for each part, so only the others have a total.
    if measured.peak_bytes is not None and all(line.peak_bytes is None for line in lines):
        lines.append(Line("the whole benchmark, with its synthetic data", peak_bytes=measured.peak_bytes))
    return Done(name, settings, tuple(lines), result.to_dict())


def _function(entry: Benchmark) -> Callable[..., Any]:
    module, _, name = entry.run.partition(":")
    return getattr(importlib.import_module(f"studies.speed.{module}"), name)


def main(argv: Sequence[str] | None = None) -> int:
    """Time every stage against its floor in the same run: the least time of its unavoidable work.

    With --out, the result is written after every benchmark.
    """
    parser = make_parser(main.__doc__ or "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run [default: all but the long ones]")
    parser.add_argument("--peers", action="store_true", help="also AnyLoc's build, faiss and scikit-learn")
    parser.add_argument("--size", choices=SIZES, default="full", help="small: minutes in all, for trying out")
    return run_script(parser, _run, argv)


def _run(arguments: Namespace) -> None:
    names, out, size = chosen(arguments.names, peers=arguments.peers), arguments.out, arguments.size
    if out is not None:
        options.check_writable(out)
    done: list[Done] = []
    for one in run_each(names, size, not arguments.quiet, alone=True):
        done.append(one)
        if not arguments.json:
            show(one)
        if out is not None:  # keep results if a later benchmark is interrupted
            write_json(out, SpeedRun.here(size, done).to_dict())
    if size == "small" and any(line.bar for one in done for line in one.lines):
        note("targets apply to --size full")
    if out is not None:
        note(f"wrote {out}")
    if arguments.json:
        print_json(SpeedRun.here(size, done).to_dict())


def show(done: Done) -> None:
    """Print the lines of a benchmark; one that misses its target is yellow."""
    say(f"{SUITE[done.name].title} ({done.name})", style="bold")
    say(SUITE[done.name].floor)
    table = open_table()
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for line in done.lines:
        table.add_row(*cells(line), style="yellow" if line.met is False else None)
    console().print(table)
    say()


if __name__ == "__main__":
    sys.exit(main())

"""Cost of a deployment on any device, by the paper's two protocols.

batch-one   one photo at a time: encoder, head and exact top 10, with tokens on the device; 20 warm-ups, 100 timed
amortized   set-up and retrieval of all queries with all three replicas, in fresh processes in alternating order

Vocabularies are drawn patches; without --dataset, tokens are synthetic and encoder weights are random. None of this
changes the work of a query, except that decisions, and with them the number of terms, depend on the data. Times are
also ratios to AnyLoc (VLAD with hard assignment) in the same run. On cpu the heads are numpy, else torch.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from studies.options import at_least, load_datasets, make_parser, open_encoder, open_progress, print_table, run_script
from studies.speed.fit import synthetic_tokens
from tfa import pipeline
from tfa.cli.console import delivered, say
from tfa.core.arrays import Array, backend_for, choose_device, l2_normalize, to_numpy
from tfa.core.progress import SilentProgress
from tfa.core.tokens import Tokens
from tfa.encoders import parse_encoder
from tfa.encoders.packaged_weights import expected_shapes
from tfa.encoders.vit import VitEncoder
from tfa.encoders.weights import LoadedWeights
from tfa.errors import BadSpec, TfaError
from tfa.method.described_queries import DescribedQueries
from tfa.method.device_scorer import DeviceScorer
from tfa.method.residuals import HARD, describe_residuals
from tfa.method.scorer import ResidualSide, Scorer, ScoreTerm, SecondOrderSide
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.search.gallery import Gallery, find_duplicates, top_k
from tfa.types import HeadSpec
from tfa_bench.cli.run import named_heads
from tfa_bench.run import prepare

ANYLOC = "anyloc"
HEADS = (ANYLOC, "tfa", "tfa-c64", "tfa-fullq", "second-order")
TOP, TARGET = 10, 64
_FLOAT = 4  # bytes
PAPER = {
    "batch-one": "paper (RTX 3090, AmsterTime): encoder 12.468 ms, TFA-FullQ head 1.223 ms = 1.50 × VLAD (0.813 ms)",
    "amortized": "paper (H100, Pitts30k): TFA 0.346 ms, TFA-C64 1.344 ms for a query and replica",
}


# --- storage -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    """MiB of float32 arrays that answer queries."""

    descriptors: float  # features of every database image
    bases: float  # U, (D, r), as the paper stores it
    dual: float  # E, (r, a), with which this package computes the same coordinates from the descriptors


def count_storage(images: int, widths: Sequence[int], rank: int, width: int) -> Storage:
    """Return the storage of features (m, D_t) and of the PCA of rank r in D dimensions, fitted on all images."""
    numbers = (images * sum(widths), rank * width, rank * images)
    return Storage(*(number * _FLOAT / 2**20 for number in numbers))


def measure_storage(scorer: Scorer) -> Storage:
    """Return the storage of a head, with the PCA of every side that has one."""
    images, widths = len(scorer.bias), [term.gallery.width for term in scorer.terms]
    sides = [
        count_storage(images, (), len(side.eigenvalues), side.width)
        for side in scorer.sides
        if isinstance(side, SecondOrderSide) or side.geometry is not None
    ]
    descriptors = count_storage(images, widths, 0, 0).descriptors
    return Storage(descriptors, sum(side.bases for side in sides), sum(side.dual for side in sides))


# --- heads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedHead:
    """The scorers of all replicas, and the seconds of set-up; `controller` is part of it."""

    scorers: Sequence[Scorer]
    setup: float
    controller: float


def fit_head(name: str, database: Tokens, queries: Tokens, centers: Sequence[np.ndarray], device: str) -> FittedHead:
    """Fit one head with these vocabularies. The time of the vocabularies does not count."""
    backend, spec, started = backend_for(device), HeadSpec.paper(), time.perf_counter()
    if name == ANYLOC:
        described = describe_residuals(database, centers, [HARD], spec.temperature, backend)
        scorers = [
            _make_vlad(words, spec, described[HARD, s].descriptors)
            for s, words in zip(CONSTRUCTIONS, centers, strict=True)
        ]
        return FittedHead(scorers, time.perf_counter() - started, 0.0)
    if name == "second-order":
        second = pipeline.fit_second_order(database, "tempered", spec=spec, device=device)
        return FittedHead([second.scorer(s) for s in CONSTRUCTIONS], time.perf_counter() - started, 0.0)
    fitted = pipeline.fit_database(database, spec, centers, backend, "float32", SilentProgress())
    decided = time.perf_counter()
    if name == "tfa":
        head = pipeline.decide_head(fitted, backend, SilentProgress())
    else:
        target = queries.select(slice(0, TARGET)) if name == "tfa-c64" else queries
        head = pipeline.calibrate(fitted, target, device=device)
    _synchronize(device)
    done = time.perf_counter()
    return FittedHead([head.scorer(s) for s in CONSTRUCTIONS], done - started, done - decided)


def _make_vlad(words: np.ndarray, spec: HeadSpec, descriptors: np.ndarray) -> Scorer:
    term = ScoreTerm(1.0, 0, None, Gallery.of(descriptors))
    side = ResidualSide(HARD, words, spec.temperature)
    return Scorer((side,), (term,), np.zeros(len(descriptors)), find_duplicates(descriptors))


def draw_centers(tokens: Tokens, words: int) -> list[np.ndarray]:
    """Return three vocabularies of random unit patches."""
    drawn = []
    for seed in CONSTRUCTIONS:
        rng = np.random.default_rng(seed)
        images = rng.integers(0, len(tokens), words)
        patches = [tokens.patches[image][rng.integers(0, tokens.counts[image])] for image in images]
        drawn.append(l2_normalize(np.asarray(patches, np.float64)))
    return drawn


def _synchronize(device: str) -> None:
    """Wait for the device, whose calls return before they are done."""
    kind = device.split(":")[0]
    if kind in ("cuda", "mps"):
        getattr(torch, kind).synchronize()


# --- batch-one -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: mean and standard deviation."""

    mean: float
    deviation: float


def time_calls(calls: Sequence[Callable[[], Any]], device: str, warm: int, timed: int) -> Timing:
    """Time calls in turn; the device is waited for before and after each."""
    seconds = []
    for number in range(warm + timed):
        _synchronize(device)
        started = time.perf_counter()
        calls[number % len(calls)]()
        _synchronize(device)
        seconds.append(time.perf_counter() - started)
    counted = [1000 * one for one in seconds[warm:]]
    return Timing(statistics.fmean(counted), statistics.pstdev(counted))


def make_calls(scorer: Scorer, queries: Tokens, device: str) -> list[Callable[[], Any]]:
    """Return one call per query that ranks the database; tokens and rows are on the device already."""
    backend = backend_for(device, double=False)
    alone = [(queries.load(i, i + 1), None if queries.cls is None else queries.cls[[i]]) for i in range(len(queries))]
    if backend.torch_device is None:
        return [partial(rank_on_cpu, scorer, Tokens(*one)) for one in alone]
    on_device = DeviceScorer(scorer, backend)
    put = [(on_device.put(patches), None if cls is None else on_device.put(cls)) for patches, cls in alone]
    return [partial(rank_on_device, on_device, *one) for one in put]


def rank_on_device(scorer: DeviceScorer, patches: Array, cls: Array | None) -> tuple[Array, Array]:
    """Return indices and scores of the best images, (q, k), on the device; ties go to the smaller index."""
    scores = scorer.score_features(scorer.features(patches, cls))
    best = scorer.backend.xp.argsort(scores, axis=1, descending=True, stable=True)[:, :TOP]
    return best, scorer.backend.xp.take_along_axis(scores, best, axis=1)


def rank_on_cpu(scorer: Scorer, queries: Tokens) -> np.ndarray:
    """Return the best images of queries, (q, k), with numpy."""
    return top_k(scorer.scores(queries), TOP)[0]


def make_random_encoder(name: str, device: str) -> VitEncoder:
    """Return an encoder with random weights, which compute as long as released ones."""
    identity, generator = parse_encoder(name), torch.Generator().manual_seed(0)
    shapes = expected_shapes(identity.card)
    weights = {key: (0.02 * torch.randn(shape, generator=generator)).numpy() for key, shape in shapes.items()}
    return VitEncoder(identity, LoadedWeights(weights, "0" * 64), device)


def run_batch_one(arguments: Namespace) -> dict[str, Any]:
    """Time the encoder and every head on single queries."""
    device = "torch" if arguments.device == "torch" else choose_device(arguments.device)
    encoder, database, queries = load_tokens(arguments)
    width, height, _ = encoder.reads
    pixels = torch.zeros(1, 3, height, width).to(encoder.device)
    counts = arguments.warm, arguments.timed
    encoding = time_calls([lambda: encoder.compute_tokens(pixels)], encoder.device, *counts)
    centers, some = draw_centers(database, arguments.words), queries.select(slice(0, arguments.timed))
    rows = {}
    for name in arguments.heads:
        scorer = fit_head(name, database, queries, centers, "cpu" if device == "torch" else device).scorers[0]
        timing = time_calls(make_calls(scorer, some, device), device, *counts)
        rows[name] = {**asdict(timing), "terms": len(scorer.terms), "storage": asdict(measure_storage(scorer))}
    return {
        "protocol": "batch-one", "encoder": encoder.id, "device": describe_device(device), "images": len(database),
        "encoder_ms": asdict(encoding), "heads": rows,
    }  # fmt: skip


def show_batch_one(facts: Mapping[str, Any]) -> None:
    encoder, heads = facts["encoder_ms"]["mean"], facts["heads"]
    base = heads[ANYLOC]["mean"]
    say(f"{facts['encoder']} on {facts['device']}, {facts['images']:,} database images; encoder {encoder:.3f} ms")
    columns = ("head", "terms", "head ms", "± SD", "total ms", "head × AnyLoc", "total × AnyLoc", "descriptors MiB")
    print_table(
        (*columns, "bases MiB", "dual MiB"),
        [
            [
                name, str(one["terms"]), f"{one['mean']:.3f}", f"{one['deviation']:.3f}",
                f"{encoder + one['mean']:.3f}", f"{one['mean'] / base:.2f}",
                f"{(encoder + one['mean']) / (encoder + base):.2f}",
                *(f"{one['storage'][key]:.2f}" for key in ("descriptors", "bases", "dual")),
            ]
            for name, one in heads.items()
        ],
        left=1,
    )  # fmt: skip


# --- amortized -----------------------------------------------------------------------------------------------------


def run_variant(arguments: Namespace) -> dict[str, Any]:
    """Measure one head in this process: set-up, and the retrieval of all queries with all replicas."""
    torch.set_num_threads(arguments.threads)
    device = "torch" if arguments.device == "torch" else choose_device(arguments.device)
    if device.startswith("cuda") and arguments.memory is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.memory * 2**30 / total))
    with threadpool_limits(arguments.threads):
        _, database, queries = load_tokens(arguments)
        calibrating, queries = queries, queries.select(slice(TARGET, None))  # C64's photos evaluate no head
        centers = draw_centers(database, arguments.words)
        fitted = fit_head(arguments.worker, database, calibrating, centers, "cpu" if device == "torch" else device)
        started = time.perf_counter()
        ranked = [retrieve(scorer, queries, device) for scorer in fitted.scorers]
        retrieval = time.perf_counter() - started
    digest = hashlib.sha256(b"".join(one.tobytes() for one in ranked)).hexdigest()
    return {
        "setup": fitted.setup, "controller": fitted.controller, "retrieval": retrieval, "rankings": digest,
        "milliseconds": 1000 * retrieval / (len(queries) * len(fitted.scorers)), "queries": len(queries),
        "images": len(database), "device": describe_device(device),
    }  # fmt: skip


def retrieve(scorer: Scorer, queries: Tokens, device: str) -> np.ndarray:
    """Return the best images of all queries, with the copies to and from the device."""
    backend = backend_for(device, double=False)
    if backend.torch_device is None:
        return rank_on_cpu(scorer, queries)
    on_device, best = DeviceScorer(scorer, backend), []
    for batch in queries.batches():
        cls = None if queries.cls is None else on_device.put(queries.cls[batch.start : batch.stop])
        best.append(to_numpy(rank_on_device(on_device, on_device.put(batch.patches), cls)[0]))
    return np.concatenate(best).astype(np.int64)


def run_amortized(arguments: Namespace, argv: Sequence[str]) -> dict[str, Any]:
    """Measure every head in fresh processes, in an order that alternates."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.heads}
    for repetition in range(arguments.repetitions):
        for name in arguments.heads[:: -1 if repetition % 2 else 1]:
            command = [sys.executable, str(Path(__file__)), *argv, "--worker", name, "--json", "--quiet"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise TfaError(f"the process that measures {name} failed: {done.stderr.strip()}")
            runs[name].append(json.loads(done.stdout))
    return {"protocol": "amortized", "threads": arguments.threads, "heads": runs}


def show_amortized(facts: Mapping[str, Any]) -> None:
    runs = facts["heads"]
    one = next(iter(runs.values()))[0]
    each = statistics.fmean(run["milliseconds"] for run in runs[ANYLOC])
    say(
        f"{one['device']}, {facts['threads']} threads, {one['images']:,} images, {one['queries']:,} queries, 3 replicas"
    )
    rows = []
    for name, several in runs.items():
        cells = [_format_spread([run[key] for run in several]) for key in ("setup", "controller", "retrieval")]
        milliseconds = [run["milliseconds"] for run in several]
        same = "yes" if len({run["rankings"] for run in several}) == 1 else "no"
        ratio = f"{statistics.fmean(milliseconds) / each:.2f}"
        rows.append([name, *cells, _format_spread(milliseconds, 3), ratio, same])
    columns = ("head", "set-up s", "controller s", "retrieval s", "ms / query, replica", "× AnyLoc", "equal rankings")
    print_table(columns, rows, left=1)


def _format_spread(values: Sequence[float], digits: int = 2) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {spread:.{digits}f}"


# --- script --------------------------------------------------------------------------------------------------------


def load_tokens(arguments: Namespace) -> tuple[VitEncoder, Tokens, Tokens]:
    """Return the encoder, and tokens of database and queries: of a dataset, or synthetic ones of the same shape."""
    if arguments.dataset:
        [dataset], encoder = load_datasets(arguments), open_encoder(arguments)
        assert isinstance(encoder, VitEncoder)
        bench = prepare(dataset, encoder, progress=open_progress(arguments))
        queries = bench.queries.tokens
        assert isinstance(queries, DescribedQueries)
        return encoder, bench.database.tokens, queries.whole  # without cached descriptors, which would not be timed
    encoder = make_random_encoder(arguments.encoder, "cpu" if arguments.device == "torch" else arguments.device)
    rows, columns = encoder.grid
    tokens = synthetic_tokens(arguments.images + arguments.queries, rows * columns, encoder.channels)
    return encoder, tokens.select(slice(0, arguments.images)), tokens.select(slice(arguments.images, None))


def describe_device(device: str) -> str:
    """Return the device with the name of its hardware."""
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)}), float32"
    return {"cpu": "cpu, numpy, float32", "torch": "cpu, torch, float32"}.get(device, f"{device}, float32")


def study(arguments: Namespace, argv: Sequence[str]) -> None:
    """Run one protocol and print its table."""
    arguments.heads = named_heads(arguments.heads)
    unknown = [name for name in arguments.heads if name not in HEADS]
    if unknown or ANYLOC not in arguments.heads:
        raise BadSpec(f"--heads {','.join(arguments.heads)} must name {ANYLOC} and others of {', '.join(HEADS)}")
    if arguments.worker is not None:
        delivered(run_variant(arguments), out=None, json=True)
        return
    one_by_one = arguments.protocol == "batch-one"
    facts = run_batch_one(arguments) if one_by_one else run_amortized(arguments, argv)
    if not delivered(facts, out=arguments.out, json=arguments.json):
        (show_batch_one if one_by_one else show_amortized)(facts)
        say(PAPER[arguments.protocol])


def make_deployment_parser() -> ArgumentParser:
    parser = make_parser(__doc__ or "")
    parser.add_argument("protocol", choices=("batch-one", "amortized"))
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps, or torch (on the CPU) [%(default)s]")
    parser.add_argument("--encoder", default="dinov2-b14@322", metavar="NAME", help="[default: %(default)s]")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="encoder weights of --dataset from a file")
    parser.add_argument(
        "--dataset", action="append", metavar="NAME=PATH", help="real photos instead of synthetic tokens"
    )
    parser.add_argument("--heads", default=",".join(HEADS[:-2]), metavar="NAME,…", help=f"of {', '.join(HEADS)}")
    parser.add_argument("--images", type=at_least(2), default=1231, metavar="N", help="database images [%(default)s]")
    parser.add_argument("--queries", type=at_least(65), default=1231, metavar="N", help="queries [%(default)s]")
    parser.add_argument("--words", type=at_least(2), default=64, metavar="N", help="visual words [%(default)s]")
    parser.add_argument("--warm", type=at_least(0), default=20, metavar="N", help="warm-up batches [%(default)s]")
    parser.add_argument("--timed", type=at_least(2), default=100, metavar="N", help="timed batches [%(default)s]")
    parser.add_argument("--repetitions", type=at_least(1), default=3, metavar="N", help="processes each [%(default)s]")
    parser.add_argument("--threads", type=at_least(1), default=4, metavar="N", help="CPU threads [%(default)s]")
    parser.add_argument("--memory", type=float, default=20.0, metavar="GIB", help="limit of CUDA memory [%(default)s]")
    parser.add_argument("--worker", metavar="HEAD", help="measure one head in this process and print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    typed = list(sys.argv[1:] if argv is None else argv)
    return run_script(make_deployment_parser(), lambda arguments: study(arguments, typed), typed)


if __name__ == "__main__":
    sys.exit(main())

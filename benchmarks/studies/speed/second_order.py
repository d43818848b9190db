"""Compare second-order and judged fits (ours, beyond the paper) with the paper's fit and AnyLoc's build."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from studies.speed import peers
from studies.speed.fit import seen_again, synthetic_tokens
from studies.speed.measure import Bar, Line, Measured, compared, measure, measure_in_turn, same_threads, thread_count
from studies.speed.synthetic import second_order_head, synthetic_head, synthetic_spaces, synthetic_state, weight
from tfa.core.progress import Progress, SilentProgress, Task, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps.fit_map import describe_calibrated_reranking
from tfa.maps.stored_head import StoredHead, StoredSpaces
from tfa.method.carriers import PAPER_CARRIERS
from tfa.method.described_queries import DescribedQueries
from tfa.method.scorer import Scorer
from tfa.method.second_order_head import FittedSpaces
from tfa.method.vocabulary import sample_patches
from tfa.pipeline import fit, fit_second_order
from tfa.search.gallery import top_k
from tfa.types import BuildOptions, HeadSpec, RerankSpec
from tfa.verification.patches import CompactTokens, prepare_photo_evidence
from tfa_bench.heads.judge import calibrate_judged, fit_judged
from tfa_bench.heads.peers.anyloc import kmeans

K = 10
CACHES = 96 << 20  # bytes read before each call: the encoder reads as much between photos, so no cache holds a map
_QUERY_BAR = Bar(0.6)
_SECOND, _DESCRIBED = "second-order", "described"
_BESIDE = "adaptive"  # carrier of the paper's head for the target


@dataclass(frozen=True)
class JudgedQuery:
    """Seconds of one query of a map by head; every map is stored in integers."""

    images: int
    carrier: str  # of the second-order head
    seconds: float
    describe_seconds: float  # part of it: descriptor and coordinates
    paper_seconds: dict[str, float]  # by carrier of the paper's head

    def lines(self) -> list[Line]:
        what = f"second-order, {self.carrier}, {self.images:,} images, one query"
        lines = []
        for carrier, seconds in self.paper_seconds.items():
            note = f"the floor is the paper's head, {carrier}"
            if carrier == _BESIDE:
                note += f"; describing {1000 * self.describe_seconds:.2f} ms"
            lines.append(compared(what, self.seconds, seconds, _QUERY_BAR if carrier == _BESIDE else None, note=note))
        return lines


def timed_beside_paper(images: int, tokens: Tokens, words: int, repeats: int, carrier: str = "tempered") -> JudgedQuery:
    """Time the way from the tokens of one photo to its ten best, with emptied caches."""
    one, channels = tokens.select([0]), tokens.channels
    scorers = {_SECOND: second_order_head(synthetic_spaces(images, channels), carrier).scorer}
    scorers |= {name: synthetic_head(images, name, words=words, channels=channels).scorer for name in PAPER_CARRIERS}
    calls: dict[str, Callable[[], Any]] = {name: _question(scorer, one) for name, scorer in scorers.items()}
    calls[_DESCRIBED] = lambda: scorers[_SECOND].describe(one)
    measure_in_turn(calls)  # warm up thread pools and page tables
    measured = measure_in_turn(calls, repeats, before_each=np.ones(CACHES, np.uint8).sum)
    paper = {name: measured[name].seconds for name in PAPER_CARRIERS}
    return JudgedQuery(images, carrier, measured[_SECOND].seconds, measured[_DESCRIBED].seconds, paper)


def _question(scorer: Scorer, one: Tokens) -> Callable[[], Any]:
    scorer.prepare()
    return lambda: top_k(scorer.scores(one), K)


PAPER, SECOND, JUDGED = "the paper's head", "second-order head", "judged head, with all challengers"
WORDS, RESIDUALS = "AnyLoc, k-means", "AnyLoc, residuals in one array"
_OF_PAPER, _OF_ANYLOC, _JUDGED_OF_PAPER = Bar(0.4), Bar(0.35), Bar(1.3)
_ALLOWED_SECONDS = 3.0  # for a calibration without encoding
STORAGE = "float16"  # storage of the calibrated map
_WARM_UP = 12  # images


class StageClock(SilentProgress):
    """Measures the stages of a second-order fit through its progress reports.

    Descriptors and spectra are reported; the time before them belongs to the directions, the time after to the head.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    @contextmanager
    def task(self, label: str, total: int, unit: str = "") -> Iterator[Task]:
        if label == "descriptors":
            self.stage("directions")
        yield self
        self.stage(label)

    def stage(self, name: str) -> None:
        """Assign the time since the last stage to this one."""
        now = time.perf_counter()
        self.seconds[name], self.last = now - self.last, now


@dataclass(frozen=True)
class SecondOrderBenchmark:
    """Seconds of every build, and of a calibration."""

    images: int
    patches: int
    channels: int
    threads: int
    seconds: dict[str, float]  # by build; without AnyLoc's if its library is missing
    stages: dict[str, float]  # of the second-order fit
    judged: str  # choice of the judge
    target: int  # photos of the calibration
    calibration_seconds: float
    machine: str

    @property
    def anyloc_seconds(self) -> float | None:
        parts = [self.seconds.get(name) for name in (WORDS, RESIDUALS)]
        return None if None in parts else sum(part for part in parts if part is not None)

    def lines(self) -> list[Line]:
        paper, second = self.seconds[PAPER], self.seconds[SECOND]
        fitted = f"second-order fit of {self.images:,} images, three constructions"
        if self.anyloc_seconds is None:
            beside = Line(f"{fitted}, compared with AnyLoc's build", second, bar=_OF_ANYLOC, note=peers.INSTALL)
        else:
            beside = compared(f"{fitted}, compared with AnyLoc's build", second, self.anyloc_seconds, _OF_ANYLOC)
        calibration = f"calibration of a judged map by {self.target} photos, their tokens given"
        return [
            compared(f"{fitted}, compared with the paper's fit", second, paper, _OF_PAPER),
            beside,
            *(Line(f"of which {name}", seconds) for name, seconds in self.stages.items()),
            compared(
                "judged fit with all challengers, compared with the paper's fit",
                self.seconds[JUDGED],
                paper,
                _JUDGED_OF_PAPER,
                note=f"chosen: {self.judged}",
            ),
            compared(
                calibration, self.calibration_seconds, _ALLOWED_SECONDS, Bar(1.0), note="the floor is what is allowed"
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "anyloc_seconds": self.anyloc_seconds}

    def __str__(self) -> str:
        rows = [f"{self.images} images × {self.patches} patches × {self.channels} channels, {self.machine}", ""]
        numbers = {**self.seconds, f"calibration by {self.target} photos": self.calibration_seconds}
        rows += [f"{name:<48}{seconds:8.2f} s" for name, seconds in numbers.items()]
        return "\n".join(rows)


def run_second_order_benchmark(
    *,
    images: int = 607,
    grid: tuple[int, int] = (23, 23),
    channels: int = 384,
    target: int = 64,
    words: int = 64,
    repeats: int = 1,
    progress: bool | Progress | None = None,
) -> SecondOrderBenchmark:
    """Time the builds, alternating, then a calibration, in this process with the same number of threads.

    AnyLoc gets unit patches: computing them is not counted. The calibration starts from the content of a map.
    """
    if images < _WARM_UP or target < _WARM_UP:
        raise BadSpec(f"images={images}, target={target}; at least {_WARM_UP} of each are needed")
    made = synthetic_tokens(images, grid[0] * grid[1], channels)
    tokens, count = Tokens(made.patches, made.cls, grid=grid), thread_count()
    photos = seen_again(tokens, target)
    photos = Tokens(photos.patches, photos.cls, grid=grid)
    spec = HeadSpec(words=words)
    with same_threads(count), as_progress(progress).task("side by side", 3) as task:
        few = slice(0, _WARM_UP)  # warm up thread pools, page tables and the first import of torch
        _builds(tokens.select(few), HeadSpec(words=4), 1)
        task.advance()
        measured, stages = _builds(tokens, spec, repeats)
        task.advance()
        calibration = _calibration(tokens, photos, measured[SECOND].result.fitted, repeats)
        task.advance()
    chosen = measured[JUDGED].result.decisions
    return SecondOrderBenchmark(
        images=images,
        patches=grid[0] * grid[1],
        channels=channels,
        threads=count,
        seconds={name: one.seconds for name, one in measured.items()},
        stages=stages,
        judged=chosen.name,
        target=target,
        calibration_seconds=calibration.seconds,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


def _builds(tokens: Tokens, spec: HeadSpec, repeats: int) -> tuple[Mapping[str, Measured], dict[str, float]]:
    """Time every build, alternating, and the stages of the shortest second-order fit."""
    clocks: list[StageClock] = []

    def second() -> Any:
        clocks.append(StageClock())
        head = fit_second_order(tokens, spec=spec, progress=clocks[-1])
        clocks[-1].stage("head")
        return head

    calls: dict[str, Any] = {PAPER: partial(fit, tokens, spec), SECOND: second}
    calls[JUDGED] = partial(fit_judged, tokens, spec=spec)
    library = peers.library(_KMEANS)
    if library is not None:
        unit, centers = sample_patches(tokens, int(tokens.counts.sum())), list[Any]()
        separate = np.split(unit, np.cumsum(tokens.counts)[:-1])
        calls[WORDS] = lambda: centers.append(peers.anyloc_words(library, unit, spec.words)[0])
        calls[RESIDUALS] = lambda: peers.anyloc_descriptors(separate, centers[-1], reuse=True)
    measured = measure_in_turn(calls, repeats)
    return measured, min((clock.seconds for clock in clocks), key=lambda seconds: sum(seconds.values()))


def _calibration(tokens: Tokens, photos: Tokens, fitted: FittedSpaces, repeats: int) -> Measured:
    """Time `tfa calibrate` on a judged map without encoding: judge, head, and the reranking decision."""
    compact = CompactTokens.fit(tokens, RerankSpec())
    spaces = StoredSpaces.of(fitted, 0, STORAGE)

    def calibrated() -> None:
        described, evidence = DescribedQueries(photos), prepare_photo_evidence(compact, photos)
        head = calibrate_judged(spaces.fitted(len(tokens), fitted.spec, None), described, evidence)
        describe_calibrated_reranking(head, described, evidence)

    return measure(calibrated, repeats)


# --- default map ----------------------------------------------------------------------------------

DEFAULT, DEFAULT_QUERY, ANYLOC_QUERY = "default head", "query of the default map", "AnyLoc, query"


@dataclass(frozen=True)
class DefaultBenchmark:
    """Build, query and size of a map with default options and of AnyLoc's, from one run."""

    images: int
    patches: int
    channels: int
    threads: int
    fit_seconds: float
    anyloc_seconds: float
    stages: dict[str, float]  # of the fit
    query_seconds: float
    anyloc_query_seconds: float
    map_bytes: int  # on disk, without patches
    reranking_bytes: int  # on disk, patches for reranking
    descriptor_bytes: int  # per image in AnyLoc: 4 · words · channels
    kmeans: str  # that built AnyLoc's vocabulary
    machine: str

    def lines(self) -> list[Line]:
        smaller = self.descriptor_bytes * self.images
        whole = self.map_bytes + self.reranking_bytes
        note = f"AnyLoc with {self.kmeans}"
        return [
            compared(f"default fit of {self.images:,} images", self.fit_seconds, self.anyloc_seconds, note=note),
            *(Line(f"of which {name}", seconds) for name, seconds in self.stages.items()),
            compared("one query from its tokens, not reranked", self.query_seconds, self.anyloc_query_seconds),
            Line(
                "map without patches for reranking, times smaller",
                ratio=smaller / self.map_bytes,
                disk_bytes=self.map_bytes,
            ),
            Line("map with patches for reranking, times smaller", ratio=smaller / whole, disk_bytes=whole),
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_default_benchmark(
    *,
    images: int = 607,
    grid: tuple[int, int] = (23, 23),
    channels: int = 384,
    words: int = 64,
    repeats: int = 1,
    progress: bool | Progress | None = None,
) -> DefaultBenchmark:
    """Time a fit with default options and AnyLoc's build, alternating, then one query of each; measure the map."""
    if images < _WARM_UP:
        raise BadSpec(f"images={images}; at least {_WARM_UP} are needed")
    made = synthetic_tokens(images, grid[0] * grid[1], channels)
    tokens, count, options = Tokens(made.patches, made.cls, grid=grid), thread_count(), BuildOptions()
    with same_threads(count), as_progress(progress).task("side by side", 3) as task:
        _default_builds(tokens.select(slice(0, _WARM_UP)), 4, 1)
        task.advance()
        measured, stages = _default_builds(tokens, words, repeats)
        task.advance()
        head = measured[DEFAULT].result
        spaces = StoredSpaces.of(head.fitted, 0, options.storage)
        stored = StoredHead.of(head, 0, options.storage, spaces)
        queries = _default_queries(stored.scorer, tokens, measured[WORDS].result, measured[RESIDUALS].result, repeats)
        task.advance()
    state = synthetic_state(stored, spaces=spaces)
    bare = weight(state)
    with_patches = weight(replace(state, compact=CompactTokens.fit(tokens, options.reranking)))
    return DefaultBenchmark(
        images=images,
        patches=grid[0] * grid[1],
        channels=channels,
        threads=count,
        fit_seconds=measured[DEFAULT].seconds,
        anyloc_seconds=measured[WORDS].seconds + measured[RESIDUALS].seconds,
        stages=stages,
        query_seconds=queries[DEFAULT_QUERY].seconds,
        anyloc_query_seconds=queries[ANYLOC_QUERY].seconds,
        map_bytes=bare,
        reranking_bytes=with_patches - bare,
        descriptor_bytes=4 * words * channels,
        kmeans=_OWN_KMEANS if peers.library(_KMEANS) is None else _KMEANS,
        machine=f"{os.cpu_count()} cores, {platform.machine()}",
    )


_KMEANS, _OWN_KMEANS = "fast_pytorch_kmeans", "our k-means, which skips settled patches"


def _default_builds(tokens: Tokens, words: int, repeats: int) -> tuple[Mapping[str, Measured], dict[str, float]]:
    """Time the default fit and AnyLoc's build, alternating; AnyLoc gets unit patches."""
    clocks: list[StageClock] = []

    def default() -> Any:
        clocks.append(StageClock())
        head = fit_second_order(tokens, BuildOptions().carrier, constructions=1, progress=clocks[-1])
        clocks[-1].stage("head")
        return head

    library = peers.library(_KMEANS)
    unit, centers = sample_patches(tokens, int(tokens.counts.sum())), list[Any]()
    separate = np.split(unit, np.cumsum(tokens.counts)[:-1])

    def vocabulary() -> Any:
        if library is None:
            import torch

            centers.append(torch.from_numpy(kmeans(unit, words, peers.SEED).astype(np.float32)))
        else:
            centers.append(peers.anyloc_words(library, unit, words)[0])
        return centers[-1]

    calls: dict[str, Any] = {DEFAULT: default, WORDS: vocabulary}
    calls[RESIDUALS] = lambda: peers.anyloc_descriptors(separate, centers[-1], reuse=True)
    measured = measure_in_turn(calls, repeats)
    return measured, min((clock.seconds for clock in clocks), key=lambda seconds: sum(seconds.values()))


def _default_queries(
    scorer: Scorer, tokens: Tokens, centers: Any, descriptors: np.ndarray, repeats: int
) -> Mapping[str, Measured]:
    """Time one photo to its ten best in either map, with emptied caches."""
    one = tokens.select([0])
    unit = sample_patches(one, int(one.counts.sum()))

    def anyloc() -> Any:
        return top_k(peers.anyloc_descriptors([unit], centers, reuse=True) @ descriptors.T, K)

    calls = {DEFAULT_QUERY: _question(scorer, one), ANYLOC_QUERY: anyloc}
    measure_in_turn(calls)  # warm up thread pools and page tables
    return measure_in_turn(calls, 5 * repeats, before_each=np.ones(CACHES, np.uint8).sum)

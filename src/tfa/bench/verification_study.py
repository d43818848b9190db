"""`tfa bench verification`: verification as built against other ways to do it, one factor changed at a time.

Datasets are told apart before anything is computed: those at odd positions of the command line are for tuning,
those at even positions confirm. A choice is made on the first half only; the second says whether it carries over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from tfa.arrays import Spill
from tfa.bench.arrangements import (
    Measure,
    Pair,
    affine,
    as_built,
    by_similarity,
    counted,
    homography,
    one_way,
    similarity,
    window_of,
    without_geometry,
)
from tfa.bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa.bench.heads.verified import first_candidates, standardised
from tfa.bench.measuring.measures import Positives
from tfa.bench.patch_pairs import CompactPatches, known_grid
from tfa.bench.plans import Split
from tfa.bench.ranking import QUERIES_AT_ONCE
from tfa.bench.running import Bench, calibrated
from tfa.config import VerifySpec
from tfa.errors import BadSpec
from tfa.progress import Progress, Task, as_progress
from tfa.tokens import Tokens
from tfa.verification import Compaction, fit_compaction, fused
from tfa.vocabulary import sample_patches

Fuse = Callable[[np.ndarray, np.ndarray], np.ndarray]  # z-scores `c` and evidence `c` → what orders them
DEFAULT = VerifySpec()
FULL = 1 << 20  # more dimensions than any encoder has: all of them are kept
HALVES = ("tuning", "confirmation")
NOTHING, BUILT = "none", "default"


def weighted(weight: float) -> Fuse:
    """The standardised score and so many times the root of the evidence."""
    return lambda standing, evidence: standing + weight * np.sqrt(evidence)


def alone(standing: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Evidence alone."""
    return evidence


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to verify. What is not said is as built."""

    factor: str
    title: str
    measure: Measure | None = as_built  # None: the head's own order
    fuse: Fuse = fused
    dimensions: int = DEFAULT.dimensions
    candidates: int = DEFAULT.candidates


VARIANTS: Mapping[str, Variant] = {
    NOTHING: Variant(factor="", title="no verification", measure=None),
    BUILT: Variant(factor="", title="as built"),
    "no-geometry": Variant(factor="geometry", title="mutual matches, no geometry", measure=without_geometry),
    "window-3": Variant(factor="geometry", title="displacements in 3 × 3 cells", measure=window_of(3)),
    "window-5": Variant(factor="geometry", title="displacements in 5 × 5 cells", measure=window_of(5)),
    "window-7": Variant(factor="geometry", title="displacements in 7 × 7 cells", measure=window_of(7)),
    "window-9": Variant(factor="geometry", title="displacements in 9 × 9 cells", measure=window_of(9)),
    "similarity": Variant(factor="geometry", title="similarity, two-point samples", measure=similarity),
    "affine": Variant(factor="geometry", title="affine map, 10 candidates", measure=affine, candidates=10),
    "homography": Variant(factor="geometry", title="homography, 10 candidates", measure=homography, candidates=10),
    "one-way": Variant(factor="matches", title="one-way matches", measure=one_way),
    "by-similarity": Variant(factor="votes", title="weighted by similarity", measure=by_similarity),
    "counted": Variant(factor="votes", title="counted alike", measure=counted),
    "dimensions-64": Variant(factor="dimensions", title="64 dimensions", dimensions=64),
    "dimensions-128": Variant(factor="dimensions", title="128 dimensions", dimensions=128),
    "dimensions-256": Variant(factor="dimensions", title="256 dimensions", dimensions=256),
    "dimensions-full": Variant(factor="dimensions", title="all dimensions", dimensions=FULL),
    "candidates-10": Variant(factor="candidates", title="10 candidates", candidates=10),
    "candidates-20": Variant(factor="candidates", title="20 candidates", candidates=20),
    "candidates-50": Variant(factor="candidates", title="50 candidates", candidates=50),
    "candidates-100": Variant(factor="candidates", title="100 candidates", candidates=100),
    "fusion-alone": Variant(factor="fusion", title="evidence alone", fuse=alone),
    "fusion-1": Variant(factor="fusion", title="z + √M", fuse=weighted(1)),
    "fusion-2": Variant(factor="fusion", title="z + 2 √M", fuse=weighted(2)),
    "fusion-4": Variant(factor="fusion", title="z + 4 √M", fuse=weighted(4)),
    "fusion-8": Variant(factor="fusion", title="z + 8 √M", fuse=weighted(8)),
}


@dataclass(frozen=True)
class Studied:
    """R@1 of every variant on one dataset, by one head: first split, first replica."""

    dataset: str
    title: str
    half: str
    head: str
    queries: int
    recall: Mapping[str, float]


@dataclass(frozen=True)
class Study:
    """All datasets under one head."""

    head: str
    encoder: str
    datasets: tuple[Studied, ...]

    def mean(self, variant: str, half: str) -> float | None:
        """Over the datasets of one half, each counted once; None if there are none."""
        values = [one.recall[variant] for one in self.datasets if one.half == half]
        return float(np.mean(values)) if values else None

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "name": name,
                "factor": variant.factor,
                "title": variant.title,
                "default": name == BUILT,
                "recall": {one.dataset: one.recall[name] for one in self.datasets},
                **{half: self.mean(name, half) for half in HALVES},
            }
            for name, variant in VARIANTS.items()
        ]
        listed = [{k: v for k, v in asdict(one).items() if k not in ("recall", "head")} for one in self.datasets]
        return {"head": self.head, "encoder": self.encoder, "datasets": listed, "variants": rows}


def half_of(position: int) -> str:
    """Which half the dataset at a position of the command line is in; the first is number 0 here."""
    return HALVES[position % 2]


def study_dataset(
    bench: Bench, card: HeadCard, half: str, *, shared: Shared | None = None, progress: bool | Progress | None = None
) -> Studied:
    """Ask the first split's queries of the head, and verify its candidates in every way there is."""
    bars = as_progress(progress)
    queries, positives = bench.queries, bench.truth.positives
    split = card.plan.splits(len(queries), bench.truth.conditions)[0]
    fitted = card.fit(bench.database, shared or Shared(spec=bench.spec, progress=bars))
    heads = [calibrated(fitted, queries, fold.calibration) for fold in split.folds]
    patches = _Patches(bench.database.tokens, queries.tokens)
    with bars.task(f"{bench.truth.name}: verifying", len(split.evaluated), "queries") as task:
        right = _right(split, heads, queries, positives, patches, task)
    recall = {name: float(np.mean(hits)) for name, hits in right.items()}
    return Studied(bench.truth.name, bench.truth.title, half, card.name, len(split.evaluated), recall)


def _right(
    split: Split, heads: Sequence[Fitted], queries: Photos, positives: Positives, patches: _Patches, task: Task
) -> dict[str, list[bool]]:
    """For each variant, which queries it answers rightly."""
    right: dict[str, list[bool]] = {name: [] for name in VARIANTS}
    for fold, head in zip(split.folds, heads, strict=True):
        for start in range(0, len(fold.evaluated), QUERIES_AT_ONCE):
            rows = fold.evaluated[start : start + QUERIES_AT_ONCE]
            for query, scores in zip(rows, head.scores(queries.select(rows), head.replicas[0]), strict=True):
                for name, answer in answers(scores, partial(patches.pair, int(query))).items():
                    right[name].append(answer in positives[query])
                task.advance()
    return right


def answers(
    scores: np.ndarray, pair: Callable[[int, int], Pair], variants: Mapping[str, Variant] = VARIANTS
) -> dict[str, int]:
    """The best database image of a row of scores `m` under each variant; `pair(dimensions, image)` gives patches.

    A row of nothing but equal scores has no answer: -1.
    """
    if scores.max() == scores.min():
        return dict.fromkeys(variants, -1)
    standing = standardised(scores)
    chosen = {name: first_candidates(scores, variant.candidates) for name, variant in variants.items()}
    found = _measured(chosen, pair, variants)
    best = {}
    for name, variant in variants.items():
        images, order = chosen[name], standing[chosen[name]]
        if variant.measure is not None:
            evidence = [found[variant.dimensions, variant.measure, image] for image in images.tolist()]
            order = variant.fuse(order, np.array(evidence, np.float64))
        best[name] = int(images[order == order.max()].min())  # ties to the smaller index
    return best


def _measured(
    chosen: Mapping[str, np.ndarray], pair: Callable[[int, int], Pair], variants: Mapping[str, Variant]
) -> dict[tuple[int, Measure, int], float]:
    """What each measure says of each image it is asked about, at each number of dimensions."""
    asked: dict[tuple[int, int], dict[Measure, None]] = {}
    for name, variant in variants.items():
        if variant.measure is not None:
            for image in chosen[name].tolist():
                asked.setdefault((variant.dimensions, image), {})[variant.measure] = None
    found = {}
    for (dimensions, image), measures in asked.items():
        patches = pair(dimensions, image)  # its matches serve every measure, then are forgotten
        found.update({(dimensions, measure, image): measure(patches) for measure in measures})
    return found


class _Patches:
    """Compact patches of database and queries at every number of dimensions; the projection is fitted once."""

    def __init__(self, database: Tokens, queries: Tokens) -> None:
        widest, spill = fit_compaction(sample_patches(database, DEFAULT.max_patches), FULL), Spill()
        self.queries, self.grid, self._query = queries, known_grid(queries), -1
        self._rows: dict[int, np.ndarray] = {}  # of the query asked last, at each number of dimensions
        # Directions are sorted by variance, so the first of them are what a smaller fit would have kept.
        self._sides = {
            kept: CompactPatches(
                database, Compaction(widest.mean, widest.projection[:, :kept]), levels=True, spill=spill
            )
            for kept in dict.fromkeys(variant.dimensions for variant in VARIANTS.values())
        }

    def pair(self, query: int, dimensions: int, image: int) -> Pair:
        known = self._sides[dimensions]
        if query != self._query:
            self._query, self._rows = query, {}
        if dimensions not in self._rows:
            self._rows[dimensions] = known.compaction.compact(self.queries.load(query, query + 1)[0])
        return Pair(self._rows[dimensions], known.rows(np.array([image]))[0], self.grid, known.grid)


def check_halves(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise BadSpec(f"a dataset is given twice among {', '.join(names)}; the halves must not share one")


def joined(studied: Iterable[Studied], encoder: str) -> list[Study]:
    """Results of all datasets, put together for each head."""
    listed = list(studied)
    heads = dict.fromkeys(one.head for one in listed)
    return [Study(head, encoder, tuple(one for one in listed if one.head == head)) for head in heads]

"""`tfa bench verification`: verification as built against other ways to do it, one factor changed at a time.

Datasets are divided before anything is computed: those at odd positions of the command line are for tuning,
those at even positions confirm. A choice is made on the first half only; the second says whether it carries over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from tfa.bench.heads.contract import HeadCard, Shared
from tfa.bench.protocols import Split
from tfa.bench.rank import QUERIES_AT_ONCE
from tfa.bench.run import Bench, calibrated
from tfa.bench.studies.match_geometries import Measure, Pair
from tfa.bench.studies.patch_pairs import known_grid
from tfa.bench.studies.verification_variants import BUILT, DEFAULT, FULL, VARIANTS, Kept, Variant
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.evidence import standardize_ranked
from tfa.method.vocabulary import sample_patches
from tfa.search.gallery import top_k
from tfa.types import AUTO, Candidates
from tfa.verification.admission import space_evenly
from tfa.verification.patches import Compaction, CompactTokens, count_dimensions, fit_compaction, use_two_bits
from tfa.verification.reranking import count_candidates, is_settled, plan_rounds

HALVES = ("tuning", "confirmation")
IMAGES_KEPT = 256  # compact patches of so many images and dimensions, in memory


@dataclass(frozen=True)
class Studied:
    """R@1 of every variant on one dataset, by one head: first split, first replica."""

    dataset: str
    title: str
    half: str
    head: str
    queries: int
    recall: Mapping[str, float]  # by the name of the variant
    candidates: float  # images that were verified as built, mean over the queries
    bytes_per_image: Mapping[str, int]  # of compact patches in a map, by the name of the variant that compares them


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
                "bytes_per_image": {one.dataset: one.bytes_per_image.get(name) for one in self.datasets},
                **{half: self.mean(name, half) for half in HALVES},
            }
            for name, variant in VARIANTS.items()
            if name in self.datasets[0].recall
        ]
        apart = ("recall", "bytes_per_image", "head")  # by variant, or said once
        listed = [{k: v for k, v in asdict(one).items() if k not in apart} for one in self.datasets]
        return {"head": self.head, "encoder": self.encoder, "datasets": listed, "variants": rows}


def half_of(position: int) -> str:
    """Which half the dataset at a position of the command line is in; the first is number 0 here."""
    return HALVES[position % 2]


def study_dataset(
    bench: Bench,
    card: HeadCard,
    half: str,
    *,
    most: int | None = None,
    variants: Mapping[str, Variant] = VARIANTS,
    shared: Shared | None = None,
    progress: bool | Progress | None = None,
) -> Studied:
    """Query the head with the first split's queries (`most` of them at most, evenly spaced), and verify its
    candidates in every way given, that as built among them."""
    bars, positives = as_progress(progress), bench.truth.positives
    studied = StudiedQueries(bench, card, most, shared or Shared(spec=bench.spec, progress=bars))
    patches = _Patches(bench.database.tokens, bench.queries.tokens, [variant.kept for variant in variants.values()])
    found = []
    with bars.task(f"{bench.truth.name}: verifying", len(studied), "queries") as task:
        for query, scores in studied:
            found.append((query, answers(scores, partial(patches.pair, query), variants)))
            task.advance()
    recall = {name: float(np.mean([one[name].image in positives[query] for query, one in found])) for name in variants}
    verified = float(np.mean([one[BUILT].candidates for _, one in found]))
    sizes = {name: patches.bytes_per_image(variant.kept) for name, variant in variants.items() if variant.measure}
    return Studied(bench.truth.name, bench.truth.title, half, card.name, len(found), recall, verified, sizes)


class StudiedQueries:
    """Queries of the first split (`most` of them at most, evenly spaced), each with its row of scores `m` by the first
    replica of the head that was calibrated for its fold."""

    def __init__(self, bench: Bench, card: HeadCard, most: int | None, shared: Shared) -> None:
        self.queries = bench.queries
        self.split = thinned(card.plan.splits(len(self.queries), bench.truth.conditions)[0], most)
        fitted = card.fit(bench.database, shared)
        self.heads = [calibrated(fitted, self.queries, fold.calibration) for fold in self.split.folds]

    def __len__(self) -> int:
        return len(self.split.evaluated)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for fold, head in zip(self.split.folds, self.heads, strict=True):
            for start in range(0, len(fold.evaluated), QUERIES_AT_ONCE):
                rows = fold.evaluated[start : start + QUERIES_AT_ONCE]
                yield from zip(rows.tolist(), head.scores(self.queries.select(rows), head.replicas[0]), strict=True)


def thinned(split: Split, most: int | None) -> Split:
    """At most so many of the evaluated queries, evenly spaced in each fold."""
    if most is None:
        return split
    share = -(-most // len(split.folds))
    folds = [replace(fold, evaluated=fold.evaluated[space_evenly(len(fold.evaluated), share)]) for fold in split.folds]
    return replace(split, folds=tuple(folds))


class Answer(NamedTuple):
    image: int  # -1: none
    candidates: int  # images that were verified


def answers(
    scores: np.ndarray,
    pair: Callable[[Kept, int], Pair],
    variants: Mapping[str, Variant] = VARIANTS,
) -> dict[str, Answer]:
    """The best database image of a row of scores `m` under each variant.

    `pair(kept, image)` gives patches of the query and an image. A row of nothing but equal scores has no answer.
    """
    if scores.max() == scores.min():
        return dict.fromkeys(variants, Answer(-1, 0))
    ranked, _ = top_k(scores[None], max(count_candidates(variant.candidates) for variant in variants.values()))
    standing = standardize_ranked(scores[None], ranked)[0]
    chosen = {name: ranked[0, : count_candidates(variant.candidates)] for name, variant in variants.items()}
    fixed = {name: images for name, images in chosen.items() if variants[name].candidates != AUTO}
    known = _measured(fixed, pair, variants)

    def evidence_of(variant: Variant, images: np.ndarray) -> np.ndarray:
        assert variant.measure is not None
        for image in images.tolist():
            if (variant.kept, variant.measure, image) not in known:
                known[variant.kept, variant.measure, image] = variant.measure(pair(variant.kept, image))
        return np.array([known[variant.kept, variant.measure, image] for image in images.tolist()], np.float64)

    best = {}
    for name, variant in variants.items():
        images, order, count = chosen[name], standing[: len(chosen[name])], 0
        if variant.measure is not None:
            evidence = _verified(order, variant.candidates, lambda end: evidence_of(variant, images[:end]))  # noqa: B023
            count = len(evidence)
            order = variant.fuse(order[:count], evidence)
        best[name] = Answer(int(images[order.argmax()]), count)  # of equals the head's first
    return best


def _verified(standing: np.ndarray, candidates: Candidates, first: Callable[[int], np.ndarray]) -> np.ndarray:
    """Evidence of as many of the images `c` as are verified, by their z-scores; `first(end)` is that of the first."""
    ends = plan_rounds(candidates, len(standing))
    for end in ends[:-1]:
        evidence = first(end)
        if is_settled(standing[None, :end], evidence[None], standing[end : end + 1])[0]:
            return evidence
    return first(ends[-1])


def _measured(
    chosen: Mapping[str, np.ndarray], pair: Callable[[Kept, int], Pair], variants: Mapping[str, Variant]
) -> dict[tuple[Kept, Measure, int], float]:
    """What each measure says of each of its candidates, by what is kept of a patch."""
    wanted: dict[tuple[Kept, int], dict[Measure, None]] = {}
    for name, images in chosen.items():
        measure = variants[name].measure
        if measure is not None:
            for image in images.tolist():
                wanted.setdefault((variants[name].kept, image), {})[measure] = None
    evidence_of = {}
    for (kept, image), measures in wanted.items():
        patches = pair(kept, image)  # its matches serve every measure, then are forgotten
        evidence_of.update({(kept, measure, image): measure(patches) for measure in measures})
    return evidence_of


class _Patches:
    """Compact patches of database and queries, by what is kept of them; the projection is fitted once."""

    def __init__(self, database: Tokens, queries: Tokens, kinds: Iterable[Kept]) -> None:
        self.database, self.queries = database, queries
        self.grids = known_grid(queries), known_grid(database)
        sample = sample_patches(database, DEFAULT.max_patches)
        widest = fit_compaction(sample, FULL)

        def compaction(kept: Kept) -> Compaction:
            # Directions are sorted by variance, so the first of them are what a smaller fit would have kept.
            full = replace(widest, projection=widest.projection[:, : count_dimensions(kept.patches, kept.dimensions)])
            return full if kept.patches == "full" else use_two_bits(full, sample)

        self._compactions = {kept: compaction(kept) for kept in dict.fromkeys(kinds)}
        # Of one query after the other, and of the images that several queries have as candidates.
        self.of_query = lru_cache(len(self._compactions))(self._of_query)
        self.of_image = lru_cache(IMAGES_KEPT)(self._of_image)

    def pair(self, query: int, kept: Kept, image: int) -> Pair:
        return Pair(self.of_query(kept, query), self.of_image(kept, image), *self.grids)

    def bytes_per_image(self, kept: Kept) -> int:
        """In a map."""
        rows, columns = self.grids[1]
        return rows * columns * self._compactions[kept].bytes_per_patch

    def _of_query(self, kept: Kept, query: int) -> np.ndarray:
        return self._compactions[kept].compact(self.queries.load(query, query + 1)[0])

    def _of_image(self, kept: Kept, image: int) -> np.ndarray:
        """As a map keeps it: in few bits."""
        return CompactTokens.of(self.database.select([image]), self._compactions[kept]).rows([0])[0]


def check_halves(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise BadSpec(f"a dataset is given twice among {', '.join(names)}; the halves must not share one")


def joined(studied: Iterable[Studied], encoder: str) -> list[Study]:
    """Results of all datasets, put together for each head."""
    listed = list(studied)
    heads = dict.fromkeys(one.head for one in listed)
    return [Study(head, encoder, tuple(one for one in listed if one.head == head)) for head in heads]

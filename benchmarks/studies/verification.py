"""Compare default reranking with alternatives, one factor changed at a time.

Datasets are divided before anything is computed: those at odd positions of the command line are for tuning, those at
even positions confirm. Choices use only the first half; the second tests whether they carry over.
"""

from __future__ import annotations

import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from studies.options import at_least, load_datasets, make_parser, open_encoder, open_progress, run_script
from tfa.cli.console import console, delivered, open_table, print_text, say
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, MissingExtra
from tfa.method.evidence import standardize_ranked
from tfa.method.vocabulary import DrawnPatches
from tfa.search.gallery import top_k
from tfa.types import AUTO, Candidates, RerankSpec
from tfa.verification import matching
from tfa.verification.matching import compute_displacements, find_matches, find_mutual, find_nearest
from tfa.verification.patches import Compaction, CompactTokens, count_dimensions, fit_compaction, use_two_bits
from tfa.verification.reranking import combine_scores, count_candidates, is_settled, plan_rounds
from tfa.verification.usual_evidence import space_evenly
from tfa_bench.cli.run import named_folder, named_heads
from tfa_bench.heads.catalogue import head_cards
from tfa_bench.heads.contract import HeadCard, Shared
from tfa_bench.heads.tfa_heads import require_grid
from tfa_bench.protocols import Split
from tfa_bench.rank import QUERIES_AT_ONCE
from tfa_bench.run import Bench, calibrated, prepare

Measure = Callable[["Pair"], float]
TOLERANCE = 2.0  # cells by which a match may miss a transformation and still agree
_SCALES = (0.5, 2.0)  # at larger scale differences, photos share too few patches
_SAMPLES = 256  # pairs of matches that propose a similarity
USUAL = 0.05  # approximate distinctiveness of a match
TRIALS = 40  # samples that propose an affine map or a homography


class Pair:
    """Compact patches `(n, r)` and `(m, r)` of a query and a candidate, with cached matches."""

    def __init__(self, query: np.ndarray, candidate: np.ndarray, grid: tuple[int, int], other: tuple[int, int]) -> None:
        self.query, self.candidate, self.grid, self.other = query, candidate, grid, other

    @cached_property
    def similarities(self) -> np.ndarray:
        return self.query @ self.candidate.T

    @cached_property
    def mutual(self) -> tuple[np.ndarray, np.ndarray]:
        best, highest, _, columns = (found[None] for found in find_nearest(self.similarities.copy()))
        _, ours = find_mutual(best, highest, columns)
        return ours, best[0, ours]

    @cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Every query patch with its most similar candidate patch, mutual or not."""
        return np.arange(len(self.query)), self.similarities.argmax(axis=1)

    @cached_property
    def distinctiveness(self) -> np.ndarray:
        """Best minus second-best similarity of each query patch; 0 without a second."""
        if self.similarities.shape[1] < 2:
            return np.zeros(len(self.query))
        two = np.partition(self.similarities, -2, axis=1)[:, -2:]
        return (two[:, 1] - two[:, 0]).astype(np.float64)

    @property
    def reach(self) -> tuple[int, int]:
        return max(self.grid[0], self.other[0]) - 1, max(self.grid[1], self.other[1]) - 1

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of mutual matches in both grids as complex numbers, column + i·row."""
        ours, theirs = self.mutual
        (y, x), (v, u) = np.divmod(ours, self.grid[1]), np.divmod(theirs, self.other[1])
        return x + 1j * y, u + 1j * v


def as_built(pair: Pair) -> float:
    """Return the evidence of `tfa.verification`."""
    return find_matches(pair.query, pair.candidate[None], pair.grid, pair.other)[0].evidence


def without_geometry(pair: Pair) -> float:
    """Count mutual matches at any position."""
    return float(pair.distinctiveness[pair.mutual[0]].sum())


def window_of(cells: int, weight: float | None = None) -> Measure:
    """Return a measure that votes for displacements in one window of `cells` cells a side [default: weight of maps]."""
    each = matching.SCALE / cells if weight is None else weight
    return lambda pair: each * voted(pair, *pair.mutual, half=cells // 2, weights=pair.distinctiveness[pair.mutual[0]])


def one_way(pair: Pair) -> float:
    """Let every query patch vote, not only mutual matches."""
    return voted(pair, *pair.best, weights=pair.distinctiveness)


def counted(pair: Pair) -> float:
    """Give every match the same vote, a usual distinctiveness, so that the score keeps its relative weight."""
    return USUAL * voted(pair, *pair.mutual)


def by_similarity(pair: Pair) -> float:
    """Weight votes by patch similarity; an opposite patch has no vote."""
    return USUAL * voted(pair, *pair.mutual, weights=pair.similarities[pair.mutual].clip(min=0))


def voted(
    pair: Pair, ours: np.ndarray, theirs: np.ndarray, *, half: int | None = None, weights: np.ndarray | None = None
) -> float:
    """Return the largest sum of votes in a window of 2·half + 1 displacements a side [default: 5]."""
    half = matching.ONE_WINDOW[0][0] // 2 if half is None else half
    down, right = compute_displacements(ours, theirs, pair.grid, pair.other)
    height, width = 2 * pair.reach[0] + 1, 2 * pair.reach[1] + 1
    at = (down + pair.reach[0]) * width + right + pair.reach[1]
    votes = np.bincount(at, weights, minlength=height * width).reshape(height, width)
    # The sum over a square is a sum over rows of sums over columns.
    for axis in (0, 1):
        ends = [(half, half) if a == axis else (0, 0) for a in (0, 1)]
        votes = np.lib.stride_tricks.sliding_window_view(np.pad(votes, ends), 2 * half + 1, axis).sum(axis=-1)
    return float(votes.max())


def similarity(pair: Pair) -> float:
    """Sum matches that one shift, rotation and scale explains: w = a z + b, the best of many pairs of matches."""
    z, w = pair.cells
    votes = pair.distinctiveness[pair.mutual[0]]
    if len(z) < 2:
        return float(votes.sum())
    i, j = _two_of(len(z))
    apart = z[i] != z[j]  # always true for mutual matches; avoids a division by zero otherwise
    i, j = i[apart], j[apart]
    a = (w[i] - w[j]) / (z[i] - z[j])
    allowed = (np.abs(a) >= _SCALES[0]) & (np.abs(a) <= _SCALES[1])
    a, b = a[allowed], (w[i] - a * z[i])[allowed]
    missed = np.abs(a[:, None] * z + b[:, None] - w)
    return float(((missed <= TOLERANCE) * votes).sum(axis=1).max(initial=0.0))


def _two_of(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of different indices below `count`: all if few, otherwise a fixed draw."""
    first, second = np.triu_indices(count, 1)
    if len(first) <= _SAMPLES:
        return first, second
    drawn = np.random.default_rng(0).choice(len(first), _SAMPLES, replace=False)
    return first[drawn], second[drawn]


def affine(pair: Pair) -> float:
    return _explained(pair, "AffineTransform", 3)


def homography(pair: Pair) -> float:
    return _explained(pair, "ProjectiveTransform", 4)


def _explained(pair: Pair, model: str, needed: int) -> float:
    """Sum the votes of matches explained by the best transformation of scikit-image's RANSAC."""
    try:
        from skimage import measure, transform
    except ImportError:
        raise MissingExtra("the study fits with scikit-image; install with: pip install 'tfa-bench'") from None
    z, w = pair.cells
    if len(z) <= needed:  # any sample explains itself
        return 0
    sides: Any = tuple(np.stack([side.real, side.imag], axis=1) for side in (z, w))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # collinear samples have no transformation and count as nothing
        _, inliers = measure.ransac(sides, getattr(transform, model), needed, TOLERANCE, max_trials=TRIALS, rng=0)
    votes = pair.distinctiveness[pair.mutual[0]]
    return 0.0 if inliers is None else float(votes[np.asarray(inliers, bool)].sum())


Fuse = Callable[[np.ndarray, np.ndarray], np.ndarray]  # z-scores `(c,)` and evidence `(c,)` → ordering
DEFAULT = RerankSpec()
FEW = 20  # candidates of variants that differ from the default in another factor
FULL = 1 << 20  # more dimensions than any encoder: keep all
NOTHING, BUILT = "none", "default"


class StoredPatch(NamedTuple):
    """Stored form of a patch."""

    dimensions: int = DEFAULT.dimensions
    patches: str = DEFAULT.patches  # full or small
    cells: bool = True  # centered on their cell, not on one mean


_AS_BUILT = StoredPatch()


def weighted(weight: float) -> Fuse:
    """Return a fusion of the standardized score and `weight` times the root of the evidence."""
    return lambda standing, evidence: standing + weight * np.sqrt(evidence)


def alone(standing: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """Evidence alone."""
    return evidence


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to rerank. Fields not set are the default, with 20 candidates."""

    factor: str
    title: str
    measure: Measure | None = as_built  # None: the head's order
    fuse: Fuse = combine_scores
    stored: StoredPatch = _AS_BUILT
    candidates: Candidates = FEW


VARIANTS: Mapping[str, Variant] = {
    NOTHING: Variant(factor="", title="no verification", measure=None),
    BUILT: Variant(factor="", title="as built", candidates=AUTO),
    "no-geometry": Variant(factor="geometry", title="mutual matches, no geometry", measure=without_geometry),
    "window-3": Variant(factor="geometry", title="displacements in 3 × 3 cells", measure=window_of(3)),
    "window-5": Variant(factor="geometry", title="displacements in 5 × 5 cells", measure=window_of(5)),
    "window-7": Variant(factor="geometry", title="displacements in 7 × 7 cells", measure=window_of(7)),
    "window-9": Variant(factor="geometry", title="displacements in 9 × 9 cells", measure=window_of(9)),
    "window-13": Variant(factor="geometry", title="displacements in 13 × 13 cells", measure=window_of(13)),
    "one-mean": Variant(factor="cells", title="patches centered on one mean", stored=StoredPatch(cells=False)),
    "earlier": Variant(
        factor="cells",
        title="one mean, 5 × 5 cells: earlier maps",
        stored=StoredPatch(cells=False),
        measure=window_of(5, 1.0),
        fuse=weighted(4),
    ),
    "similarity": Variant(factor="geometry", title="similarity, two-point samples", measure=similarity),
    "affine": Variant(factor="geometry", title="affine map, 10 candidates", measure=affine, candidates=10),
    "homography": Variant(factor="geometry", title="homography, 10 candidates", measure=homography, candidates=10),
    "one-way": Variant(factor="matches", title="one-way matches", measure=one_way),
    "by-similarity": Variant(factor="votes", title="weighted by similarity", measure=by_similarity),
    "counted": Variant(factor="votes", title="counted alike", measure=counted),
    "dimensions-64": Variant(factor="dimensions", title="64 dimensions", stored=StoredPatch(64)),
    "dimensions-128": Variant(factor="dimensions", title="128 dimensions", stored=StoredPatch(128)),
    "dimensions-256": Variant(factor="dimensions", title="256 dimensions", stored=StoredPatch(256)),
    "dimensions-full": Variant(factor="dimensions", title="all dimensions", stored=StoredPatch(FULL)),
    "patches-small": Variant(
        factor="patches", title="small patches, else as built", stored=StoredPatch(patches="small"), candidates=AUTO
    ),
    "candidates-10": Variant(factor="candidates", title="10 candidates", candidates=10),
    "candidates-20": Variant(factor="candidates", title="20 candidates", candidates=20),
    "candidates-50": Variant(factor="candidates", title="50 candidates", candidates=50),
    "candidates-100": Variant(factor="candidates", title="100 candidates", candidates=100),
    "fusion-alone": Variant(factor="fusion", title="evidence alone", fuse=alone),
    "fusion-1": Variant(factor="fusion", title="z + √M", fuse=weighted(1)),
    "fusion-2": Variant(factor="fusion", title="z + 2 √M", fuse=weighted(2)),
    "fusion-5": Variant(factor="fusion", title="z + 5 √M", fuse=weighted(5)),
    "fusion-10": Variant(factor="fusion", title="z + 10 √M", fuse=weighted(10)),
}
_FACTORS = tuple(dict.fromkeys(variant.factor for variant in VARIANTS.values() if variant.factor))


def of_factors(names: Sequence[str] | None) -> dict[str, Variant]:
    """Return the variants of some factors [default: all] and the one they are compared with."""
    for name in names or ():
        if name not in _FACTORS:
            raise BadSpec(f"unknown factor {name!r}; use {', '.join(_FACTORS)}")
    return {name: one for name, one in VARIANTS.items() if names is None or one.factor in ("", *names)}


HALVES = ("tuning", "confirmation")
CACHED_IMAGES = 256  # compact patches of images and dimensions in memory


@dataclass(frozen=True)
class Studied:
    """R@1 of every variant on one dataset with one head: first split, first replica."""

    dataset: str
    title: str
    half: str
    head: str
    queries: int
    recall: Mapping[str, float]  # by variant name
    candidates: float  # images reranked by default, mean over queries
    bytes_per_image: Mapping[str, int]  # compact patches in a map, by the variant that compares them


@dataclass(frozen=True)
class Study:
    """All datasets with one head."""

    head: str
    encoder: str
    datasets: tuple[Studied, ...]

    def mean(self, variant: str, half: str) -> float | None:
        """Return the mean over the datasets of one half; None if it is empty."""
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
        apart = ("recall", "bytes_per_image", "head")  # stored by variant, or once
        listed = [{k: v for k, v in asdict(one).items() if k not in apart} for one in self.datasets]
        return {"head": self.head, "encoder": self.encoder, "datasets": listed, "variants": rows}


def half_of(position: int) -> str:
    """Return the half of the dataset at a position of the command line, counted from 0."""
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
    """Query with the first split's queries (at most `most`, evenly spaced) and rerank with every variant and the
    default.
    """
    bars, positives = as_progress(progress), bench.truth.positives
    studied = StudiedQueries(bench, card, most, shared or Shared(spec=bench.spec, progress=bars))
    patches = _Patches(bench.database.tokens, bench.queries.tokens, [variant.stored for variant in variants.values()])
    found = []
    with bars.task(f"{bench.truth.name}: verifying", len(studied), "queries") as task:
        for query, scores in studied:
            found.append((query, answers(scores, partial(patches.pair, query), variants)))
            task.advance()
    recall = {name: float(np.mean([one[name].image in positives[query] for query, one in found])) for name in variants}
    verified = float(np.mean([one[BUILT].candidates for _, one in found]))
    sizes = {name: patches.bytes_per_image(variant.stored) for name, variant in variants.items() if variant.measure}
    return Studied(bench.truth.name, bench.truth.title, half, card.name, len(found), recall, verified, sizes)


class StudiedQueries:
    """Queries of the first split (at most `most`, evenly spaced), each with scores `(m,)` of the first replica of the
    head calibrated for its fold.
    """

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
    """Keep at most `most` evaluated queries, evenly spaced in each fold."""
    if most is None:
        return split
    share = -(-most // len(split.folds))
    folds = [replace(fold, evaluated=fold.evaluated[space_evenly(len(fold.evaluated), share)]) for fold in split.folds]
    return replace(split, folds=tuple(folds))


class Answer(NamedTuple):
    image: int  # -1: no answer
    candidates: int  # number of reranked images


def answers(
    scores: np.ndarray, pair: Callable[[StoredPatch, int], Pair], variants: Mapping[str, Variant] = VARIANTS
) -> dict[str, Answer]:
    """Return the best database image of scores `(m,)` under each variant.

    `pair(kept, image)` returns patches of the query and an image. A row of equal scores has no answer.
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
            if (variant.stored, variant.measure, image) not in known:
                known[variant.stored, variant.measure, image] = variant.measure(pair(variant.stored, image))
        return np.array([known[variant.stored, variant.measure, image] for image in images.tolist()], np.float64)

    best = {}
    for name, variant in variants.items():
        images, order, count = chosen[name], standing[: len(chosen[name])], 0
        if variant.measure is not None:
            evidence = _verified(order, variant.candidates, lambda end: evidence_of(variant, images[:end]))  # noqa: B023
            count = len(evidence)
            order = variant.fuse(order[:count], evidence)
        best[name] = Answer(int(images[order.argmax()]), count)  # ties go to the head's first
    return best


def _verified(standing: np.ndarray, candidates: Candidates, first: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the evidence of the reranked images `(c,)` by their z-scores; `first(end)` computes it up to `end`."""
    ends = plan_rounds(candidates, len(standing))
    for end in ends[:-1]:
        evidence = first(end)
        if is_settled(standing[None, :end], evidence[None], standing[end : end + 1])[0]:
            return evidence
    return first(ends[-1])


def _measured(
    chosen: Mapping[str, np.ndarray], pair: Callable[[StoredPatch, int], Pair], variants: Mapping[str, Variant]
) -> dict[tuple[StoredPatch, Measure, int], float]:
    """Return each measure of each of its candidates, by stored form of patches."""
    wanted: dict[tuple[StoredPatch, int], dict[Measure, None]] = {}
    for name, images in chosen.items():
        measure = variants[name].measure
        if measure is not None:
            for image in images.tolist():
                wanted.setdefault((variants[name].stored, image), {})[measure] = None
    evidence_of = {}
    for (stored, image), measures in wanted.items():
        patches = pair(stored, image)  # its matches serve every measure
        evidence_of.update({(stored, measure, image): measure(patches) for measure in measures})
    return evidence_of


class _Patches:
    """Compact patches of database and queries by stored form; the projection is fitted once."""

    def __init__(self, database: Tokens, queries: Tokens, kinds: Iterable[StoredPatch]) -> None:
        self.database, self.queries = database, queries
        self.grids = require_grid(queries), require_grid(database)
        drawn, count = DrawnPatches.draw(database, DEFAULT.max_patches), self.grids[1][0] * self.grids[1][1]
        sample, cell = drawn.read(), drawn.chosen % count
        widest = {True: fit_compaction(sample, FULL, cell, count), False: fit_compaction(sample, FULL)}

        def compaction(stored: StoredPatch) -> Compaction:
            # Directions are sorted by variance, so a smaller fit would keep the first of them.
            most, fit = count_dimensions(stored.patches, stored.dimensions), widest[stored.cells]
            cells = None if fit.cells is None else fit.cells[:, :most]
            full = replace(fit, projection=fit.projection[:, :most], cells=cells)
            return full if stored.patches == "full" else use_two_bits(full, sample, cell)

        self._compactions = {stored: compaction(stored) for stored in dict.fromkeys(kinds)}
        # One query after the other, with images that are candidates of several queries.
        self.of_query = lru_cache(len(self._compactions))(self._of_query)
        self.of_image = lru_cache(CACHED_IMAGES)(self._of_image)

    def pair(self, query: int, stored: StoredPatch, image: int) -> Pair:
        return Pair(self.of_query(stored, query), self.of_image(stored, image), *self.grids)

    def bytes_per_image(self, stored: StoredPatch) -> int:
        """Return the size in a map."""
        rows, columns = self.grids[1]
        return rows * columns * self._compactions[stored].bytes_per_patch

    def _of_query(self, stored: StoredPatch, query: int) -> np.ndarray:
        compact = CompactTokens(self._compactions[stored], self.grids[1], (), DEFAULT)
        return compact.query(self.queries.select([query]))[0]

    def _of_image(self, stored: StoredPatch, image: int) -> np.ndarray:
        """Return patches as a map stores them, in few bits."""
        return CompactTokens.of(self.database.select([image]), self._compactions[stored]).rows([0])[0]


def check_halves(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise BadSpec(f"a dataset is repeated in {', '.join(names)}; the halves must not share one")


def joined(studied: Iterable[Studied], encoder: str) -> list[Study]:
    """Combine the results of all datasets per head."""
    listed = list(studied)
    heads = dict.fromkeys(one.head for one in listed)
    return [Study(head, encoder, tuple(one for one in listed if one.head == head)) for head in heads]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare ways to rerank candidates, one factor changed at a time: R@1 of the first split and replica."""
    parser = make_parser(main.__doc__ or "", "The first, third, … are for tuning, the second, fourth, … confirm.")
    parser.add_argument("--heads", default="tfa-c64+", metavar="NAME,…", help="heads whose candidates are reranked")
    parser.add_argument("--factors", metavar="NAME,…", help="only variants of these factors, such as candidates,fusion")
    parser.add_argument("--queries", type=at_least(1), metavar="N", help="at most N queries each, evenly spaced")
    parser.add_argument("--matcher", metavar="NAME", help="compare with a learned matcher instead: aliked-lightglue")
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.matcher is not None and arguments.factors is not None:
        raise BadSpec("--matcher and --factors are two studies; use one of them")
    check_halves([named_folder(text)[0] for text in arguments.dataset])
    variants = of_factors(None if arguments.factors is None else arguments.factors.split(","))
    cards = head_cards(named_heads(arguments.heads))
    loaded, bars = load_datasets(arguments, cards), open_progress(arguments)
    if arguments.matcher is not None:
        from studies.learned_matcher import open_matcher

        learned = open_matcher(arguments.matcher, bars)
    model = open_encoder(arguments)

    def prepared() -> Iterator[tuple[int, Bench, HeadCard, Shared]]:
        for position, data in enumerate(loaded):
            bench = prepare(data, model, progress=bars)
            shared = Shared(spec=bench.spec, device=arguments.device, progress=bars)
            yield from ((position, bench, card, shared) for card in cards)

    if arguments.matcher is not None:
        from studies.learned_matcher import MatcherStudy, match_dataset

        compared = [
            match_dataset(bench, card, learned, most=arguments.queries, shared=shared, progress=bars)
            for _, bench, card, shared in prepared()
        ]
        beside = MatcherStudy.of(learned, model.id, compared)
        if not delivered(beside.to_dict(), out=arguments.out, json=arguments.json):
            print_text(beside.markdown() + "\n")
        return
    each = (
        study_dataset(
            bench, card, half_of(position), most=arguments.queries, variants=variants, shared=shared, progress=bars
        )
        for position, bench, card, shared in prepared()
    )
    studies = joined(each, model.id)
    if not delivered([study.to_dict() for study in studies], out=arguments.out, json=arguments.json):
        for study in studies:
            show(study)


def show(study: Study) -> None:
    """Print variants down, datasets across, with the mean of each half."""
    halves = {half: [one for one in study.datasets if one.half == half] for half in HALVES}
    shown = [(half, own) for half, own in halves.items() if own]
    say(f"Reranking of {study.head}, {study.encoder}: R@1 in percent, first split and replica", style="bold")
    members = "; ".join(f"{half}: {', '.join(one.dataset for one in own)}" for half, own in shown)
    say(f"{members} (by their position on the command line: odd ones are for tuning, even ones confirm); * default")
    table = open_table()
    for column in ("factor", "variant"):
        table.add_column(column, overflow="fold")
    for half, own in shown:
        for one in own:
            table.add_column(one.dataset, justify="right", overflow="fold")
        table.add_column(f"mean, {half}", justify="right")
    factor = None
    for name in study.datasets[0].recall:
        variant, cells = VARIANTS[name], []
        for half, own in shown:
            cells += [f"{100 * one.recall[name]:.1f}" for one in own]
            cells.append(f"{100 * (study.mean(name, half) or 0.0):.1f}")
        title = f"{variant.title} *" if name == BUILT else variant.title
        table.add_row(variant.factor if variant.factor != factor else "", title, *cells)
        factor = variant.factor
        if name == BUILT:
            table.add_row("", "  mean number of candidates", *_candidates(shown))
        if name == BUILT or variant.stored.patches == "small":
            table.add_row("", "  bytes per image in a map", *_bytes(shown, name))
    console().print(table)
    say()


def _candidates(shown: Sequence[tuple[str, Sequence[Studied]]]) -> list[str]:
    cells = []
    for _, own in shown:
        taken = [one.candidates for one in own]
        cells += [f"{number:.1f}" for number in (*taken, sum(taken) / len(taken))]
    return cells


def _bytes(shown: Sequence[tuple[str, Sequence[Studied]]], name: str) -> list[str]:
    cells = []
    for _, own in shown:
        sizes = [one.bytes_per_image[name] for one in own]
        cells += [f"{number:,.0f}" for number in (*sizes, sum(sizes) / len(sizes))]
    return cells


if __name__ == "__main__":
    sys.exit(main())

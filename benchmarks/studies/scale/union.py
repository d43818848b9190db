"""The parts `union` and `reduction`: all datasets as one gallery, and fewer dimensions and bits.

`union` measures R@1 of every dataset separately and with all datasets as one gallery, under benchmark heads. A head
that calibrates uses 64 queries of each dataset, drawn as in the first split of `tfa bench run`, in both cases. Results
on separate datasets come from the records of `tfa bench run` if available.

`reduction` measures the recall lost by fewer dimensions per image and fewer bits per dimension.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from studies.scale.rows import SavedRows
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.method.decisions import SecondOrderDecisions
from tfa.method.scorer import Compiled
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import TARGET_CARRIER
from tfa.search.gallery import top_k
from tfa.search.quantized import round_rows
from tfa.search.reduced import AGAIN, Moments, Reduction, fit_reduction, fit_reduction_by_products
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa_bench.heads.second_order import DTYPE, fitted_judged, fitted_spaces
from tfa_bench.measures import recall_at
from tfa_bench.rank import answers_of_split
from tfa_bench.records import Record
from tfa_bench.run import Bench, Identified, calibrated, current_record


class _Chained(Sequence):
    """Arrays of several sequences, concatenated; each is loaded on access."""

    def __init__(self, parts: Sequence[Tokens]) -> None:
        self.parts = [part.patches for part in parts]
        self.shapes = np.concatenate([part.shapes for part in parts])
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> Any:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part][index - (self._ends[part - 1] if part else 0)]


def joined_tokens(parts: Sequence[Tokens]) -> Tokens:
    """Join the tokens of all images in this order. The grid is unknown if parts differ or one has none."""
    grids = {part.grid for part in parts}
    globals_ = [part.cls for part in parts if part.cls is not None]
    cls = np.concatenate(globals_) if len(globals_) == len(parts) else None
    return Tokens(_Chained(parts), cls, grid=grids.pop() if len(grids) == 1 else None)


DIMS = (256, 512, 1024, 2048)
SHARES = (0.25, 0.5, 1.0)
AT_ONCE = 64  # queries described per batch


def four_bits(rows: np.ndarray) -> np.ndarray:
    """Quantize each row to 15 levels, returned as floats; rows are centered first, which does not change the order."""
    return np.asarray(round_rows(rows - rows.mean(axis=0), top=7))


def one_bit(rows: np.ndarray) -> np.ndarray:
    """Return the signs of the centered rows, each row scaled so that its product with itself is right."""
    centred = rows - rows.mean(axis=0)
    sums = np.maximum(np.abs(centred).sum(axis=1, keepdims=True), 1e-30)
    return np.sign(centred) * ((centred * centred).sum(axis=1, keepdims=True) / sums)


KINDS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "float32": lambda rows: rows,
    "int8": lambda rows: np.asarray(round_rows(rows)),
    "4 bit": four_bits,
    "1 bit": one_bit,
}


@dataclass(frozen=True)
class Variant:
    """R@1 of one gallery at one number of dimensions and one kind of rows."""

    gallery: str
    dims: int
    rows: str
    again: int  # images that are rescored
    recall: Mapping[str, float]  # per dataset
    share: float = 1.0  # fraction of the gallery's images that the reduction was fitted on

    @property
    def mean(self) -> float:
        """Mean over datasets."""
        return float(np.mean(list(self.recall.values())))


@dataclass(frozen=True)
class Spread:
    """Mean and spread of a row from moments of the reduced rows, compared with full scores."""

    gallery: str
    dims: int
    ratio: float  # median over queries, reduced ÷ full
    mean_error: float  # median over queries, in full spreads


@dataclass(frozen=True)
class ReducedGallery:
    """One gallery: its head, its full recall, and every variant."""

    gallery: str
    head: str
    images: int
    width: int  # dimensions of a full vector
    recall: Mapping[str, float]
    variants: tuple[Variant, ...]
    spreads: tuple[Spread, ...]

    def to_dict(self) -> dict[str, Any]:
        listed = [{**asdict(one), "mean": one.mean} for one in self.variants]
        return {**asdict(self), "mean": float(np.mean(list(self.recall.values()))), "variants": listed}


@dataclass(frozen=True)
class GalleryQueries:
    """Query vectors of one dataset, and their positives in a gallery."""

    name: str
    vectors: np.ndarray  # (q, D)
    positives: Sequence[np.ndarray]


def study_gallery(
    name: str,
    benches: Sequence[Bench],
    database: Photos,
    shared: Shared,
    dims: Sequence[int] = DIMS,
    *,
    counted: bool = False,
) -> ReducedGallery:
    """Study the images of some datasets as one gallery; `counted`: also fit reductions on a share of them."""
    head = fitted_judged(database, shared)
    assert isinstance(head.decisions, SecondOrderDecisions)
    compiled = head.scorer(0).compile()
    described = list(_describe_queries(benches, compiled))
    full = [one.vectors @ compiled.database.T + compiled.bias for one in described]
    width = compiled.database.shape[1]
    sizes = [*(size for size in dims if size <= width), width + 1]
    variants: list[Variant] = []
    spreads: list[Spread] = []
    for size in sizes:
        reduction = _fit(compiled, size)
        variants += _variants(name, reduction, compiled, described, full)
        spreads.append(_spread(name, reduction, compiled, described, full))
        if counted and size <= width:
            for share in SHARES[:-1]:
                some = _fit(compiled, size, share)
                variants += _variants(name, some, compiled, described, full, share, kinds=("int8",))
    recall = _recall(described, [scores.argmax(axis=1)[:, None] for scores in full])
    return ReducedGallery(name, head.decisions.name, len(database), width, recall, tuple(variants), tuple(spreads))


def _describe_queries(benches: Sequence[Bench], compiled: Compiled) -> Iterator[GalleryQueries]:
    start = 0
    for bench in benches:
        queries = bench.queries.tokens
        blocks = [queries.select(slice(low, low + AT_ONCE)) for low in range(0, len(queries), AT_ONCE)]
        vectors = np.concatenate([compiled.query(block) for block in blocks])
        yield GalleryQueries(bench.truth.name, vectors, [np.asarray(right) + start for right in bench.truth.positives])
        start += len(bench.database)


def _fit(compiled: Compiled, dims: int, share: float = 1.0) -> Reduction:
    """Fit on a share of the images, drawn with a fixed seed."""
    count, width = compiled.database.shape
    chosen = np.random.default_rng(0).permutation(count)[: max(round(share * count), 2)]
    rows, bias = compiled.database[np.sort(chosen)].astype(np.float64), float(compiled.bias.mean())
    if len(rows) < width:
        return fit_reduction_by_products(rows, dims, bias)
    return fit_reduction(rows.T @ rows, dims, bias)


def _variants(
    name: str,
    reduction: Reduction,
    compiled: Compiled,
    described: Sequence[GalleryQueries],
    full: Sequence[np.ndarray],
    share: float = 1.0,
    kinds: Sequence[str] = tuple(KINDS),
) -> Iterator[Variant]:
    images = reduction.of_images(compiled.database, compiled.bias)
    small = [reduction.of_queries(one.vectors) for one in described]
    for kind in kinds:
        rows = KINDS[kind](images)
        coarse = [queries @ rows.T for queries in small]
        for again in (0, AGAIN):
            first = [_first(c, f, again) for c, f in zip(coarse, full, strict=True)]
            yield Variant(name, reduction.dims, kind, again, _recall(described, first), share)


def _first(coarse: np.ndarray, full: np.ndarray, again: int) -> np.ndarray:
    """Return the top answer `(q, 1)` among the best `again`, by the full score; ties to the smaller index."""
    candidates = np.sort(top_k(coarse, max(again, 1))[0], axis=1)
    best = np.take_along_axis(full, candidates, axis=1).argmax(axis=1)[:, None]
    return np.take_along_axis(candidates, best, axis=1)


def _recall(described: Sequence[GalleryQueries], first: Sequence[np.ndarray]) -> dict[str, float]:
    return {one.name: recall_at(own, one.positives, (1,))[0] for one, own in zip(described, first, strict=True)}


def _spread(
    name: str, reduction: Reduction, compiled: Compiled, described: Sequence[GalleryQueries], full: Sequence[np.ndarray]
) -> Spread:
    moments = Moments.of(np.asarray(round_rows(reduction.of_images(compiled.database, compiled.bias))))
    found = [moments.mean_and_spread(reduction.of_queries(one.vectors)) for one in described]
    mean, spread = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    scores = np.concatenate(full).astype(np.float64)
    own = np.maximum(scores.std(axis=1), 1e-30)
    error = np.abs(mean + reduction.mean_bias - scores.mean(axis=1)) / own
    return Spread(name, reduction.dims, float(np.median(spread / own)), float(np.median(error)))


# --- how many images the head's own directions and covariance need -------------------------------------------------


def fitted_on(share: float, head: str, benches: Sequence[Bench], database: Photos, shared: Shared) -> dict[str, Any]:
    """Return R@1 of a second-order head whose directions and covariance come from a share of the images.

    The other images are added afterwards. `head` is decided on all images; if it is not a second-order head, the
    calibrated one replaces it.
    """
    count, (representation, _, decided) = len(database), head.partition("/")
    carrier = decided if representation == SECOND_ORDER else TARGET_CARRIER
    chosen = np.sort(np.random.default_rng(0).permutation(count)[: max(round(share * count), 2)])
    spaces = fitted_spaces(database.select(chosen) if share < 1 else database, shared)
    space, tokens = spaces.spaces[0], database.tokens
    blocks = (tokens.select(slice(low, low + AT_ONCE)) for low in range(0, count, AT_ONCE))
    coordinates = np.concatenate([space.side.describe(block, True, DTYPE).coordinates for block in blocks])
    every = replace(space, coordinates=coordinates.astype(np.float64), duplicates=None)  # as images are added to a map
    compiled = every.scorer(spaces.decisions(carrier).kernel(SECOND_ORDER, 0), DTYPE).compile()
    described = list(_describe_queries(benches, compiled))
    first = [(one.vectors @ compiled.database.T).argmax(axis=1)[:, None] for one in described]
    recall = _recall(described, first)
    return {"fitted_on": share, "images": len(chosen), "carrier": carrier, "recall": recall,
            "mean": float(np.mean(list(recall.values())))}  # fmt: skip


UNION = "all as one"


class Datasets:
    """Several datasets under one encoder."""

    def __init__(self, identified: Sequence[Identified], encode: Callable[[], Sequence[Bench]]) -> None:
        self.identified, self._encode = identified, encode

    @classmethod
    def of(cls, benches: Sequence[Bench]) -> Datasets:
        """Wrap benches whose tokens exist already."""
        return cls(benches, lambda: benches)

    @cached_property
    def benches(self) -> Sequence[Bench]:
        """Return the benches with tokens; images missing in the cache are encoded now."""
        return self._encode()

    @property
    def encoder(self) -> str:
        return self.identified[0].encoder.id

    @property
    def galleries(self) -> list[str]:
        """Names: all datasets as one, then each dataset."""
        return [UNION, *(one.truth.name for one in self.identified)]

    def members(self, gallery: str) -> Sequence[Bench]:
        return [bench for bench in self.benches if gallery in (UNION, bench.truth.name)]


def joined(members: Sequence[Bench]) -> Photos:
    """Join the images of some datasets as one database."""
    if len(members) == 1:
        return members[0].database
    identified = all(bench.database.paths is not None for bench in members)
    paths = tuple(path for bench in members for path in bench.database.paths or ())
    return Photos(joined_tokens([bench.database.tokens for bench in members]), paths if identified else None)


_UNION_PART = "union"
HEADS = ("anyloc", "tfa", "judged", "judged-c64", "anyloc-v", "tfa-v", "judged-v", "judged-c64-v")


def run_union(
    datasets: Datasets,
    heads: Sequence[str],
    saved: SavedRows,
    progress: Progress | bool | None,
    records: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row per gallery and head; heads of one gallery are consecutive and share fits."""
    bars = as_progress(progress)
    if records is not None:
        yield from _rows_of_records(datasets.identified, heads, saved, records)
    for gallery in datasets.galleries:
        missing = [name for name in heads if not saved.has(_UNION_PART, _name(datasets.encoder, gallery, name))]
        if not missing:
            continue
        members = datasets.members(gallery)
        database = joined(members)
        shared = Shared(spec=members[0].spec, device=members[0].encoder.device, progress=bars)
        for card in map(head_card, missing):
            started = time.perf_counter()
            fitted = card.fit(database, shared)
            found = recalls(card, fitted, members, len(database), bars)
            facts = _facts(members[0], gallery, card, len(database), found, getattr(fitted, "decisions", {}))
            seconds = time.perf_counter() - started  # without fits shared with earlier heads
            name = _name(datasets.encoder, gallery, card.name)
            yield saved.keep(_UNION_PART, name, {**facts, "seconds": round(seconds, 1)})
        del shared
        gc.collect()


def _rows_of_records(
    identified: Sequence[Identified], heads: Sequence[str], saved: SavedRows, records: Path
) -> Iterator[dict[str, Any]]:
    for bench in identified:
        gallery = bench.truth.name
        for card in map(head_card, heads):
            name = _name(bench.encoder.id, gallery, card.name)
            record = None if saved.has(_UNION_PART, name) else current_record(bench, card, records)
            if record is not None:
                images = len(bench.truth.database)
                yield saved.keep(_UNION_PART, name, _facts(bench, gallery, card, images, *recorded(record, bench)))


def _name(encoder: str, gallery: str, head: str) -> str:
    return f"{encoder}, {gallery}, {head}"


def _facts(
    bench: Identified,
    gallery: str,
    card: HeadCard,
    images: int,
    recall: Mapping[str, float],
    decisions: Mapping[str, Any],
) -> dict[str, Any]:
    about = {"encoder": bench.encoder.id, "gallery": gallery, "head": card.name, "title": card.title, "images": images}
    return {**about, "recall": dict(recall), "decisions": _in_words(decisions)}


def recalls(
    card: HeadCard, fitted: Fitted, members: Sequence[Bench], images: int, progress: Progress
) -> dict[str, float]:
    """Return R@1 of the queries of each dataset, the mean over constructions."""
    found, start = {}, 0
    for bench in members:
        split = card.plan.splits(len(bench.queries), bench.truth.conditions)[0]
        heads = [calibrated(fitted, bench.queries, fold.calibration) for fold in split.folds]
        answers = answers_of_split(split, heads, bench.queries, images, 1, progress)
        rows = split.evaluated
        positives = [np.asarray(bench.truth.positives[row]) + start for row in rows]
        own = [recall_at(answers.rankings[rows, column], positives, (1,))[0] for column in range(len(answers.replicas))]
        found[bench.truth.name] = float(np.mean(own))
        start += len(bench.database)
    return found


def recorded(record: Record, bench: Identified) -> tuple[dict[str, float], Mapping[str, Any]]:
    """Return the recalls of a separate dataset from its record's first split, and its decisions."""
    rows = record.evaluated(0)
    positives = [bench.truth.positives[row] for row in rows]
    own = [recall_at(record.rankings[rows, 0, column], positives, (1,))[0] for column in range(len(record.replicas))]
    return {bench.truth.name: float(np.mean(own))}, record.folds[0][0]["decisions"]


def _in_words(decisions: Mapping[str, Any]) -> str:
    """Describe the chosen head and whether answers are reranked, if that was decided."""
    kind = [str(decisions[key]) for key in ("representation", "carrier") if key in decisions]
    verified = decisions.get("verification", {}).get("used")
    return ", ".join([*kind, *([] if verified is None else ["verified" if verified else "not verified"])])


_REDUCTION_PART = "reduction"


def run_reduction(
    datasets: Datasets, saved: SavedRows, progress: Progress | bool | None, dims: Sequence[int] = DIMS
) -> Iterator[dict[str, Any]]:
    """Yield a row per gallery, and per share of the images of the union."""
    bars = as_progress(progress)
    encoder = datasets.encoder
    for gallery in datasets.galleries:
        name = f"{encoder}, {gallery}"
        if not saved.has(_REDUCTION_PART, name):
            members = datasets.members(gallery)
            shared = Shared(spec=members[0].spec, progress=bars)
            found = study_gallery(gallery, members, joined(members), shared, dims, counted=gallery == UNION)
            yield saved.keep(_REDUCTION_PART, name, {"encoder": encoder, **found.to_dict()})
    [head] = [row["head"] for row in saved.of(_REDUCTION_PART) if row["name"] == f"{encoder}, {UNION}"]
    for share in SHARES:
        name = f"{encoder}, {UNION}, head fitted on {share:.0%}"
        if not saved.has(_REDUCTION_PART, name):
            members = datasets.members(UNION)
            shared = Shared(spec=members[0].spec, progress=bars)
            found_on = fitted_on(share, head, members, joined(members), shared)
            yield saved.keep(_REDUCTION_PART, name, {"encoder": encoder, "gallery": UNION, **found_on})

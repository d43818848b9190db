"""The part `union`: R@1 of every dataset separately and with all datasets as one gallery, under benchmark heads.

The part `reduction` measures the cost of fewer dimensions on the same gallery. A head that calibrates uses 64 queries
of
each dataset, drawn as in the first split of `tfa bench run`, in both cases. Results on separate datasets come from the
records of `tfa bench run` if available.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from studies.reduction import DIMS, SHARES, fitted_on, joined_tokens, study_gallery
from studies.scale.rows import SavedRows
from tfa.core.progress import Progress, as_progress
from tfa.evaluate.metrics import recall_at
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa_bench.rank import answers_of_split
from tfa_bench.records import Record
from tfa_bench.run import Bench, Identified, calibrated, current_record

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

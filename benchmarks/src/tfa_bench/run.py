"""The first loop: encode a dataset once, query every head, write its rankings. Nothing is scored here.

A head's record is written when it is complete; a finished split of an unfinished head is kept beside it. A run
that is interrupted continues where it stopped. A record that exists is kept, unless it was made by another revision
of the algorithm: then it is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import hash_json
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.encoders import Encoder
from tfa.errors import BadSpec
from tfa.method.described_queries import DescribedQueries
from tfa.photos.token_cache import TokenCache
from tfa.types import HeadSpec
from tfa_bench.datasets.load import Dataset
from tfa_bench.finished_splits import FinishedSplits
from tfa_bench.heads.contract import Calibratable, Fitted, HeadCard, Photos, Shared
from tfa_bench.protocols import Split
from tfa_bench.provenance import hardware, versions
from tfa_bench.rank import answers_of_split, score_sample
from tfa_bench.record_files import RecordPath, record_path
from tfa_bench.record_inputs import WORDS, inputs_of, is_outdated, plan_of, spec_of
from tfa_bench.records import TRUTH_FILE, Record, Truth

DEPTH = 100  # places of a ranking that are kept


@dataclass(frozen=True)
class Ran:
    """What became of one head on one dataset."""

    dataset: str
    head: str
    encoder: str
    outcome: str  # "written" | "kept" | "renewed" | "same" | "skipped"
    path: RecordPath | None = None
    reason: str = ""


@dataclass(frozen=True)
class Bench:
    """A dataset under an encoder, ready for heads."""

    dataset: Dataset
    truth: Truth
    encoder: Encoder
    database: Photos
    queries: Photos
    images: str  # digest of all image files
    spec: HeadSpec


def prepare(
    dataset: Dataset, encoder: Encoder, *, cache: TokenCache | None = None, progress: bool | Progress | None = None
) -> Bench:
    """Encode the images of a dataset (what the cache knows is not computed again)."""
    cache, bars = cache or TokenCache(), as_progress(progress)
    database = cache.encode(dataset.database, encoder, progress=bars)
    queries = cache.encode(dataset.queries, encoder, progress=bars)
    return Bench(
        dataset,
        dataset.truth(),
        encoder,
        Photos(database.tokens, tuple(database.paths)),
        Photos(DescribedQueries(queries.tokens), tuple(queries.paths)),
        hash_json([database.digests, queries.digests]),
        spec_of(dataset),
    )


def run_heads(
    bench: Bench,
    cards: Sequence[HeadCard],
    results: Path,
    *,
    depth: int = DEPTH,
    split_depth: int | None = None,
    again: bool = False,
    progress: bool | Progress | None = None,
    report: Callable[[Ran], None] = lambda ran: None,
) -> list[Ran]:
    """Records of all heads on one dataset. `again` makes existing ones once more and compares.

    `depth` places of a ranking are kept; of a plan with several splits `split_depth`, if it is given. A deeper
    record that exists is as good.
    """
    if min(depth, split_depth or depth) < 1:
        raise BadSpec(f"depth={min(depth, split_depth or depth)} is out of range: must be at least 1")
    bars = as_progress(progress)
    keep_truth(bench.truth, results)
    shared = Shared(spec=bench.spec, device=bench.encoder.device, progress=bars)
    done = []
    for card in cards:
        kept = (split_depth or depth) if card.plan.count > 1 else depth
        done.append(run_head(bench, card, results, shared, depth=kept, again=again, progress=bars))
        report(done[-1])
    return done


def keep_truth(truth: Truth, results: Path) -> None:
    """Write what answers are judged by, or check that it is what earlier records were made with."""
    folder = results / truth.name
    if not (folder / TRUTH_FILE).exists():
        truth.write(folder)
    elif Truth.read(folder).fingerprint != truth.fingerprint:
        raise BadSpec(
            f"{folder} holds records of another copy of {truth.name} (other images or positives); "
            "write to another folder with --out, or remove it"
        )


def run_head(
    bench: Bench, card: HeadCard, results: Path, shared: Shared, *, depth: int, again: bool, progress: Progress
) -> Ran:
    path = record_path(results, bench.truth.name, bench.encoder.id, card.name)
    plan = plan_of(bench, card)
    inputs = inputs_of(bench, card, plan, depth)
    known = Record.read(path) if path.exists() else None
    outdated = known is not None and is_outdated(known, inputs, path)
    if known is not None and not outdated:
        if not again:
            return Ran(bench.truth.name, card.name, bench.encoder.id, "kept", path)
        inputs["depth"] = known.depth
        inputs["head"] = {**inputs["head"], **{key: known.head[key] for key in WORDS if key in known.head}}
    if card.needs_order and not bench.dataset.card.ordered:
        reason = 'the dataset is not known to be in driving order (its card says so with "ordered": true)'
        return Ran(bench.truth.name, card.name, bench.encoder.id, "skipped", None, reason)
    try:
        splits = plan.splits(len(bench.queries), bench.truth.conditions)
    except BadSpec as error:
        return Ran(bench.truth.name, card.name, bench.encoder.id, "skipped", None, str(error))
    finished = FinishedSplits(path, inputs)
    record = make_record(bench, card, splits, inputs, shared, finished, progress)
    if known is None or outdated:
        record.write(path, replace=outdated)
    finished.clear()
    if known is None or outdated:
        return Ran(bench.truth.name, card.name, bench.encoder.id, "renewed" if outdated else "written", path)
    if record.identity != known.identity:
        raise BadSpec(f"{path} does not come out the same a second time; its inputs are the same, its answers are not")
    return Ran(bench.truth.name, card.name, bench.encoder.id, "same", path)


def make_record(
    bench: Bench,
    card: HeadCard,
    splits: Sequence[Split],
    inputs: dict[str, Any],
    shared: Shared,
    finished: FinishedSplits,
    progress: Progress,
) -> Record:
    """Fit, calibrate for each split, query, and put the answers together."""
    clock = _Clock()
    first: Fitted | None = None
    with clock.of("fit"):
        fitted = card.fit(bench.database, shared)
    answered = []
    several = len(splits) > 1
    # One bar at a time: of the splits where there are several, else of the queries.
    of_queries = None if several else progress
    for number, split in enumerate(
        track_progress(splits, len(splits), card.name, progress, "splits") if several else splits
    ):
        answers = finished.read(number) if several else None
        if answers is None or number == 0:  # the first split also gives the piece of the score matrix
            with clock.of("calibrate"):
                heads = [calibrated(fitted, bench.queries, fold.calibration) for fold in split.folds]
            first = first or heads[0]
            with clock.of("query"):
                answers = answers_of_split(
                    split, heads, bench.queries, len(bench.database), inputs["depth"], of_queries
                )
            if several:
                finished.write(number, answers)
        answered.append(answers)
    assert first is not None
    return Record(
        dataset=inputs["dataset"],
        encoder=inputs["encoder"],
        head=inputs["head"],
        plan=inputs["plan"],
        algorithm=inputs["algorithm"],
        versions=versions(),
        hardware=hardware(shared.device),
        replicas=answered[0].replicas,
        seeds=tuple(split.seed for split in splits),
        folds=tuple(answers.folds for answers in answered),
        rankings=np.stack([answers.rankings for answers in answered], axis=1),
        confidence=np.stack([answers.confidence for answers in answered], axis=1),
        sample=score_sample(first, bench.queries, len(bench.database), splits[0].folds[0].evaluated),
        timings=clock.seconds,
    )


def calibrated(fitted: Fitted, queries: Photos, chosen: np.ndarray) -> Fitted:
    if not len(chosen):
        return fitted
    assert isinstance(fitted, Calibratable), "a plan that calibrates needs a head that can"
    return fitted.calibrate(queries.select(chosen))


class _Clock:
    """Seconds spent in each kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

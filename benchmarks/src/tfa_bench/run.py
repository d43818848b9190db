"""Encode a dataset once, query every head and write its rankings. Nothing is scored here.

A record is written when its head is complete; finished splits of an unfinished head are stored next to it, so an
interrupted run resumes. An existing record is kept unless another revision of the algorithm made it; then it is
made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfa.core.files import hash_file, hash_json, read_bounded, write_atomically
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.encoders import Encoder, count_depths
from tfa.errors import BadSpec
from tfa.method.described_queries import DescribedQueries
from tfa.photos.token_cache import TokenCache
from tfa.types import HeadSpec
from tfa_bench.datasets.load import Dataset
from tfa_bench.heads.contract import Calibratable, Fitted, HeadCard, Photos, Shared
from tfa_bench.protocols import Plan, Split
from tfa_bench.provenance import hardware, revisions, versions
from tfa_bench.rank import Answers, answers_of_split, score_sample
from tfa_bench.records import (
    CONTENT_BYTES,
    TRUTH_FILE,
    Record,
    RecordPath,
    Truth,
    check_array,
    decode_npz,
    encode_npz,
    fold_from_dict,
    fold_to_dict,
    record_path,
)

# --- what a record follows from ------------------------------------------------------------------------------------


TITLE_KEYS = ("title", "note")  # keys of a head that do not affect answers; a release may reword them


class Identified(Protocol):
    """The inputs of records except the head: a dataset under an encoder, encoded (a Bench) or not."""

    @property
    def dataset(self) -> Dataset: ...
    @property
    def truth(self) -> Truth: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def images(self) -> str: ...
    @property
    def spec(self) -> HeadSpec: ...


@dataclass(frozen=True)
class Unencoded:
    """A dataset under an encoder, without encoded images."""

    dataset: Dataset
    truth: Truth
    encoder: Encoder
    images: str
    spec: HeadSpec


def identify(dataset: Dataset, encoder: Encoder) -> Unencoded:
    """Read the files of a dataset to compute their digests."""
    digests = [[hash_file(path) for path in paths] for paths in (dataset.database, dataset.queries)]
    return Unencoded(dataset, dataset.truth(), encoder, hash_json(digests), spec_of(dataset))


def spec_of(dataset: Dataset) -> HeadSpec:
    return dataclasses.replace(HeadSpec(), **dataset.card.spec)


def current_record(bench: Identified, card: HeadCard, results: Path) -> Record | None:
    """Return the record of a head on this dataset if it exists and its inputs are current."""
    path = record_path(results, bench.truth.name, bench.encoder.id, card.name)
    if not path.exists():
        return None
    known, inputs = Record.read(path), inputs_of(bench, card, plan_of(bench, card), 1)
    return None if set(_differing(known, inputs)) - {"depth"} else known


def plan_of(bench: Identified, card: HeadCard) -> Plan:
    specific = card.budget_per_condition and bench.dataset.card.conditions_specific
    return dataclasses.replace(card.plan, specific=True) if specific else card.plan


def inputs_of(bench: Identified, card: HeadCard, plan: Plan, depth: int) -> dict[str, Any]:
    """Return everything that determines a record."""
    truth = bench.truth
    return {
        "dataset": {
            "name": truth.name,
            "title": truth.title,
            "database": len(truth.database),
            "queries": len(truth.queries),
            "fingerprint": truth.fingerprint,
            "images": bench.images,
        },
        "encoder": {"id": bench.encoder.id, "fingerprint": bench.encoder.fingerprint, "grid": list(bench.encoder.grid)},
        "head": {
            "name": card.name,
            "title": card.title,
            "data_used": card.sees,
            "note": card.note,
            "settings": dict(card.settings),
            "spec": bench.spec.to_dict(),
        },
        "plan": plan.to_dict(),
        "algorithm": revisions(card.stages),
        "depth": min(depth, len(truth.database)),
    }


def _differing(record: Record, inputs: dict[str, Any]) -> list[str]:
    """Return the names of inputs that differ from a record's."""
    head, verification = record.head, record.head["settings"].get("verification")
    if verification is not None:  # records made before patches could be small do not store this setting
        settings = {**head["settings"], "verification": {"patches": "full", **verification}}
        head = {**head, "settings": settings}
    made_of = {**record.inputs, "head": _without_words(head)}
    return [
        key for key, value in inputs.items() if (_without_words(value) if key == "head" else value) != made_of.get(key)
    ]


def _without_words(head: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in head.items() if key not in TITLE_KEYS}


def is_outdated(record: Record, inputs: dict[str, Any], path: RecordPath) -> bool:
    """True if another revision of the algorithm made the record from these inputs; other inputs are an error."""
    differs = _differing(record, inputs)
    outdated = "algorithm" in differs
    # A deeper ranking starts with the shallower one, and a record that is made again may have any depth.
    accepted = {"algorithm", "depth"} if outdated or record.depth >= inputs["depth"] else set()
    other = [key for key in differs if key not in accepted]
    if record.encoder["id"] != inputs["encoder"]["id"]:
        name, results = record.encoder["id"], path.dataset_folder.parent
        right = record_path(results, record.dataset["name"], name, record.name).archive.parent
        raise BadSpec(
            f"{path} was made with the encoder {name}, not {inputs['encoder']['id']}: position embeddings are "
            f"now resampled differently. Move {path.archive.parent} to {right}, or use --encoder {name}"
        )
    if other:
        raise BadSpec(
            f"{path} was made from other inputs ({', '.join(other)}); records are never overwritten. "
            "Remove it, or write to another folder with --out"
        )
    return outdated


# --- finished splits of an unfinished head -------------------------------------------------------------------------


class FinishedSplits:
    """`.tfa-c64.splits/3.npz` next to the archive of `tfa-c64.npz`; splits made from other inputs are not used."""

    def __init__(self, record: RecordPath, inputs: dict[str, Any]) -> None:
        self.folder = record.archive.parent / f".{record.head}.splits"
        self.inputs = hash_json(inputs)

    def write(self, split: int, answers: Answers) -> None:
        folds = [fold_to_dict(fold) for fold in answers.folds]
        facts = {"inputs": self.inputs, "replicas": list(answers.replicas), "folds": folds}
        content = encode_npz(facts, {"rankings": answers.rankings, "confidence": answers.confidence})
        write_atomically(self.folder / f"{split}.npz", lambda temporary: temporary.write_bytes(content))

    def read(self, split: int) -> Answers | None:
        """Return None if the split is not finished or its file is damaged; the split then reruns."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            facts, arrays = decode_npz(read_bounded(self.folder / f"{split}.npz", CONTENT_BYTES))
            if facts["inputs"] == self.inputs:
                return Answers(
                    tuple(facts["replicas"]),
                    tuple(fold_from_dict(fold) for fold in facts["folds"]),
                    check_array(arrays["rankings"], "u", 3),
                    check_array(arrays["confidence"], "f", 2),
                )
        return None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# --- runs ----------------------------------------------------------------------------------------------------------


DEPTH = 100  # length of recorded rankings


@dataclass(frozen=True)
class Ran:
    """Outcome of one head on one dataset."""

    dataset: str
    head: str
    encoder: str
    outcome: str  # "written" | "kept" | "renewed" | "same" | "skipped"
    path: RecordPath | None = None
    reason: str = ""


@dataclass(frozen=True)
class Bench:
    """An encoded dataset, ready for heads."""

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
    """Encode the images of a dataset; cached ones are not computed again."""
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
    """Write the records of all heads on one dataset; `again` reruns existing ones and compares.

    Rankings have length `depth`, or `split_depth` if it is set and the plan has several splits. A deeper existing
    record also counts.
    """
    if min(depth, split_depth or depth) < 1:
        raise BadSpec(f"depth={min(depth, split_depth or depth)} is out of range: must be at least 1")
    other = [card.name for card in cards if not card.name.startswith("second-order")]
    if other and count_depths(bench.encoder) > 1:
        raise BadSpec(f"only second-order heads use two depths, not {other[0]}; name one block of {bench.encoder.id}")
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
    """Write the ground truth, or check that it equals the one of earlier records."""
    folder = results / truth.name
    if not (folder / TRUTH_FILE).exists():
        truth.write(folder)
    elif Truth.read(folder).fingerprint != truth.fingerprint:
        raise BadSpec(
            f"{folder} holds records of another copy of {truth.name} (other images or positives). "
            "Write to another folder with --out, or remove it"
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
        inputs["head"] = {**inputs["head"], **{key: known.head[key] for key in TITLE_KEYS if key in known.head}}
    if card.needs_order and not bench.dataset.card.ordered:
        reason = 'the dataset is not in driving order, or its card lacks "ordered": true'
        return Ran(bench.truth.name, card.name, bench.encoder.id, "skipped", None, reason)
    if card.needs_depths and count_depths(bench.encoder) < 2:
        reason = "the encoder reads one block; name two, such as dinov2-s14-focus/l5+7"
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
        raise BadSpec(f"{path} is not reproducible: a second run with the same inputs gave other answers")
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
    """Fit, calibrate for each split, query, and collect the answers."""
    clock = _Clock()
    first: Fitted | None = None
    with clock.of("fit"):
        fitted = card.fit(bench.database, shared)
    answered = []
    several = len(splits) > 1
    # Show one progress bar at a time: over splits if there are several, else over queries.
    of_queries = None if several else progress
    for number, split in enumerate(
        track_progress(splits, len(splits), card.name, progress, "splits") if several else splits
    ):
        answers = finished.read(number) if several else None
        if answers is None or number == 0:  # the first split also provides the score matrix sample
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

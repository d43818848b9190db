"""Single frames against the temporal filter, and with and without self-calibration, on queries in driving order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.base.progress import Progress, as_progress, tracked
from tfa.bench.run import Bench
from tfa.errors import BadSpec
from tfa.method.head import ENSEMBLE, Replica
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.online.motion import OrderMotion
from tfa.online.self_calibration import FrameCorrection, SelfCalibration
from tfa.online.sequence_filter import SequenceFilter, SequenceSpec
from tfa.pipeline import fit

REPLICAS: tuple[Replica, ...] = (*CONSTRUCTIONS, ENSEMBLE)
Positives = Sequence[np.ndarray]
HEADS = {"mean": "mean of three", "added": "scores added"}  # how the replicas make one row of a table
SEQUENCE_COLUMNS = ("single", "filtered", "single, self-calibrated", "filtered, self-calibrated")
REPLAY_COLUMNS = ("without", "learnt from the first half", "kept fresh")
ROWS_KEPT = 256  # of the replay: score rows that self-calibration learns from


@dataclass(frozen=True)
class SequenceStudy:
    """R@1 of one drive, in shares: each frame on its own, and filtered."""

    dataset: str
    frames: int
    single: float
    filtered: float
    lost: float  # share of frames of which being lost is likelier than the best place
    single_levelled: float  # each frame on its own, less the levels that the frames before it teach
    levelled: float  # the same, filtered: as `tfa query --sequence` does
    levelled_lost: float


@dataclass(frozen=True)
class ReplayStudy:
    """R@1 of the second half of a drive, in shares, without and with self-calibration on all frames before."""

    dataset: str
    frames: int  # of the second half
    without: float
    frozen: float  # learnt from the first half, then left as it is
    fresh: float  # learnt from every frame before the one that is evaluated


@dataclass(frozen=True)
class DriveStudy:
    """Both studies of one dataset for every replica of the database-only head, and for their scores added up."""

    dataset: str
    title: str
    encoder: str
    images: int
    sequences: dict[Replica, SequenceStudy]
    replays: dict[Replica, ReplayStudy]

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "title": self.title,
            "encoder": self.encoder,
            "images": self.images,
            "filter": SequenceSpec().to_dict(),
            "rows_kept": ROWS_KEPT,
            "sequence": _by_replica(self.sequences),
            "replay": _by_replica(self.replays),
        }


def check_drive(dataset: str, queries: int) -> None:
    """Refuse, before anything is encoded, what has no second half."""
    if queries < 2:
        raise BadSpec(f"{dataset} has {queries} queries; a drive needs at least 2, in driving order")


def study_drive(bench: Bench, device: str = "cpu", progress: bool | Progress | None = None) -> DriveStudy:
    """Fit the head once, then replay the queries for each of its replicas."""
    bars, name, positives = as_progress(progress), bench.truth.name, bench.truth.positives
    sequences, replays = {}, {}
    scores = scores_of(bench, device, bars)
    for replica, rows in tracked(scores, len(REPLICAS), f"{name}: replaying", bars, "replicas"):
        sequences[replica] = study_sequence(name, rows, positives)
        replays[replica] = study_replay(name, rows, positives)
    return DriveStudy(name, bench.truth.title, bench.encoder.id, len(bench.database), sequences, replays)


def scores_of(
    bench: Bench, device: str = "cpu", progress: bool | Progress | None = None
) -> Iterator[tuple[Replica, np.ndarray]]:
    """Scores `q m` of each replica of the database-only head and of the ensemble, one at a time, all of one fit.

    Queries and database are in the dataset's order.
    """
    head = fit(bench.database.tokens, bench.spec, device=device, progress=progress)
    for replica in REPLICAS:
        yield replica, head.scores(bench.queries.tokens, replica)


def study_sequence(
    dataset: str, scores: np.ndarray, positives: Positives, spec: SequenceSpec | None = None
) -> SequenceStudy:
    """Both ways on scores `q m` whose rows and columns are in driving order."""
    _check(scores, positives)
    correct = FrameCorrection()
    numbers = []
    for rows in (scores, np.stack([correct(row) for row in scores])):
        beliefs = list(map(SequenceFilter(OrderMotion(rows.shape[1], SequenceSpec().reach), spec).update, rows))
        numbers += [
            float(_right(rows.argmax(axis=1), positives).mean()),
            float(_right(np.array([belief.best for belief in beliefs]), positives).mean()),
            float(np.mean([belief.lost > belief.confidence for belief in beliefs])),
        ]
    return SequenceStudy(dataset, len(scores), *numbers)


def study_replay(
    dataset: str, scores: np.ndarray, positives: Positives, size: int = ROWS_KEPT, seed: int = 0
) -> ReplayStudy:
    """Replay scores `q m` in order: the first half is observed, the second half is evaluated."""
    _check(scores, positives)
    half = len(scores) // 2
    learner = SelfCalibration(size, seed)
    learner.observe(scores[:half])
    frozen = learner.bias()
    plain, later = scores[half:], positives[half:]
    fresh = np.empty(len(plain), np.int64)
    for row, scores_of_frame in enumerate(plain):
        bias = learner.bias()
        fresh[row] = (scores_of_frame if bias is None else scores_of_frame + bias).argmax()
        learner.observe(scores_of_frame)
    calibrated = plain if frozen is None else plain + frozen
    shares = [_right(tops, later).mean() for tops in (plain.argmax(axis=1), calibrated.argmax(axis=1), fresh)]
    return ReplayStudy(dataset, len(plain), *map(float, shares))


def _right(tops: np.ndarray, positives: Positives) -> np.ndarray:
    return np.array([top in own for top, own in zip(tops.tolist(), positives, strict=True)], bool)


def _check(scores: np.ndarray, positives: Positives) -> None:
    if len(scores) != len(positives) or len(scores) < 2:
        raise BadSpec(f"{len(scores)} rows of scores for {len(positives)} queries; give one each, two at least")


def _by_replica(studies: Mapping[Replica, SequenceStudy] | Mapping[Replica, ReplayStudy]) -> dict[str, Any]:
    """The frames, the mean share over the replicas, the shares of their scores added up, and each replica's own."""
    facts = {name: asdict(study) for name, study in studies.items()}
    frames = {study.pop("frames") for study in facts.values()}
    for study in facts.values():
        del study["dataset"]
    added = facts.pop(ENSEMBLE)
    own = list(facts.values())
    mean = {share: float(np.mean([study[share] for study in own])) for share in added}
    return {"frames": frames.pop(), "mean": mean, "added": added, "replicas": own}


def table_rows(studies: Sequence[Mapping[str, Any]], study: str) -> list[tuple[str, ...]]:
    """Of `DriveStudy.to_dict()`s, the rows of the "sequence" or of the "replay" table, in percent."""
    cells = {"sequence": _sequence_cells, "replay": _replay_cells}[study]
    return [
        (one["dataset"], str(one[study]["frames"]), title, *cells(one[study][head]))
        for one in studies
        for head, title in HEADS.items()
    ]


def _sequence_cells(share: Mapping[str, float]) -> tuple[str, ...]:
    cell = {name: f"{100 * value:.1f}" for name, value in share.items()}
    return (
        cell["single"],
        f"{cell['filtered']} (lost {cell['lost']})",
        cell["single_levelled"],
        f"{cell['levelled']} (lost {cell['levelled_lost']})",
    )


def _replay_cells(share: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(f"{100 * share[name]:.1f}" for name in ("without", "frozen", "fresh"))

"""Single frames against the temporal filter, and with and without self-calibration, on queries in driving order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfa.bench.running import Bench
from tfa.errors import BadSpec
from tfa.pipeline import fit
from tfa.progress import Progress
from tfa.retriever import Replica
from tfa.self_calibration import Levelled, SelfCalibration
from tfa.sequences import SequenceSpec, follow, roads_by_index

Positives = Sequence[np.ndarray]


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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.dataset}, {self.frames} frames: R@1 {100 * self.single:.1f} single, {100 * self.filtered:.1f} "
            f"filtered (lost {100 * self.lost:.1f} %); self-calibrated {100 * self.single_levelled:.1f} single, "
            f"{100 * self.levelled:.1f} filtered (lost {100 * self.levelled_lost:.1f} %)"
        )


@dataclass(frozen=True)
class ReplayStudy:
    """R@1 of the second half of a drive, in shares, without and with self-calibration on all frames before."""

    dataset: str
    frames: int  # of the second half
    without: float
    frozen: float  # learnt from the first half, then left as it is
    fresh: float  # learnt from every frame before the one that is asked

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.dataset}, second half of {self.frames} frames: R@1 {100 * self.without:.1f} without, "
            f"{100 * self.frozen:.1f} learnt from the first half, {100 * self.fresh:.1f} kept fresh"
        )


def scores_of(
    bench: Bench, replica: Replica = 0, device: str = "cpu", progress: bool | Progress | None = None
) -> np.ndarray:
    """Scores `q m` of the database-only head, queries and database in the dataset's order."""
    return fit(bench.database.tokens, bench.spec, device=device, progress=progress).scores(
        bench.queries.tokens, replica
    )


def study_sequence(
    dataset: str, scores: np.ndarray, positives: Positives, spec: SequenceSpec | None = None
) -> SequenceStudy:
    """Both ways on scores `q m` whose rows and columns are in driving order."""
    _check(scores, positives)
    correct = Levelled()
    numbers = []
    for rows in (scores, np.stack([correct(row) for row in scores])):
        beliefs = list(follow(rows, roads_by_index(rows.shape[1], spec), spec))
        numbers += [
            float(_right(rows.argmax(axis=1), positives).mean()),
            float(_right(np.array([belief.best for belief in beliefs]), positives).mean()),
            float(np.mean([belief.lost > belief.confidence for belief in beliefs])),
        ]
    return SequenceStudy(dataset, len(scores), *numbers)


def study_replay(dataset: str, scores: np.ndarray, positives: Positives, size: int = 256, seed: int = 0) -> ReplayStudy:
    """Replay scores `q m` in order: the first half is observed, the second half is asked."""
    _check(scores, positives)
    half = len(scores) // 2
    learner = SelfCalibration(size, seed)
    learner.observe(scores[:half])
    frozen = learner.bias()
    plain, later = scores[half:], positives[half:]
    fresh = np.empty(len(plain), np.int64)
    for row, asked in enumerate(plain):
        bias = learner.bias()
        fresh[row] = (asked if bias is None else asked + bias).argmax()
        learner.observe(asked)
    calibrated = plain if frozen is None else plain + frozen
    shares = [_right(tops, later).mean() for tops in (plain.argmax(axis=1), calibrated.argmax(axis=1), fresh)]
    return ReplayStudy(dataset, len(plain), *map(float, shares))


def _right(tops: np.ndarray, positives: Positives) -> np.ndarray:
    return np.array([top in own for top, own in zip(tops.tolist(), positives, strict=True)], bool)


def _check(scores: np.ndarray, positives: Positives) -> None:
    if len(scores) != len(positives) or len(scores) < 2:
        raise BadSpec(f"{len(scores)} rows of scores for {len(positives)} queries; give one each, two at least")

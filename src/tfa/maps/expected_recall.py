"""Expected recall (ours, beyond the paper): of photos like these, how many will be recognised? No label is needed.

    share = mean confidence of their answers
    interval = share ± 1.645 √(τ² + Σ c (1 − c) / n²), within 0 and 1

τ is how far mean confidence and recall of a dataset lie apart that the constants were not fitted on (root mean square
over eight datasets, `benchmarks/studies/confidence.py`); the sum is the chance of n answers of confidence c. Nine in
ten such intervals should hold the recall. Photos that are unlike each other say more about what comes than a few in a
row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tfa.maps.records import Answer, ExpectedRecall

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

A = TypeVar("A", bound=Answer)
NINE_IN_TEN = 1.645  # standard deviations to each side
BETWEEN_DATASETS = {True: 0.10, False: 0.11}  # τ of verified answers and of others


def estimate_recall(confidence: ArrayLike, sure: ArrayLike, *, verified: bool) -> ExpectedRecall | None:
    """Estimate recall from the confidence of `n` answers and which of them are sure; None if there are none."""
    confidence, sure = np.asarray(confidence, np.float64), np.asarray(sure, bool)
    if not len(confidence):
        return None
    share, chance = float(confidence.mean()), float((confidence * (1 - confidence)).mean()) / len(confidence)
    half = NINE_IN_TEN * float(np.sqrt(BETWEEN_DATASETS[verified] ** 2 + chance))
    return ExpectedRecall(share, max(share - half, 0.0), min(share + half, 1.0), float(sure.mean()), len(confidence))


def estimate_answer_recall(answers: Iterable[Answer]) -> ExpectedRecall | None:
    """Estimate recall from answers to single photos; photos that could not be read do not count.

    Frames of a drive are left out: the probability of a filter is another thing.
    """
    counted = [one for one in answers if one.error is None and getattr(one, "lost", None) is None]
    verified = bool(counted) and sum(one.reranked for one in counted) * 2 >= len(counted)
    return estimate_recall([one.confidence for one in counted], [one.sure for one in counted], verified=verified)


class AnswerList(list[A]):
    """Answers to photos in their order, and what they say together."""

    def __init__(self, answers: Iterable[A] = (), notice: str | None = None) -> None:
        super().__init__(answers)
        self.notice = notice  # that the photos are unlike those the map is made for (`tfa.maps.shift`)

    @property
    def expected_recall(self) -> ExpectedRecall | None:
        """How many photos like these will be recognised."""
        return estimate_answer_recall(self)


def format_expected_recall(expected: ExpectedRecall) -> str:
    """ "of photos like these about 72 % are recognised, 66–78; 58 % surely"."""
    low, high = 100 * expected.low, 100 * expected.high
    return (
        f"of photos like these about {100 * expected.share:.0f} % are recognised, {low:.0f}–{high:.0f}; "
        f"{100 * expected.sure:.0f} % surely"
    )

"""Expected recall (ours, beyond the paper): of photos like these, how many will be recognised? No label is needed.

    share = mean confidence of their answers
    interval = share ± 1.645 √(τ² + Σ c (1 − c) / n²), within 0 and 1

τ is how far mean confidence and recall of a dataset lie apart that the constants were not fitted on (root mean square
over eight datasets, `tfa bench confidence`); the sum is the chance of n answers of confidence c. Nine in ten such
intervals should hold the recall. Photos that are unlike each other say more about what comes than a few in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfa.types import Answer, Answers, ExpectedRecall

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NINE_IN_TEN = 1.645  # standard deviations to each side
BETWEEN_DATASETS = {True: 0.10, False: 0.11}  # τ of verified answers and of others


def estimate_recall(confidence: ArrayLike, sure: ArrayLike, *, verified: bool) -> ExpectedRecall | None:
    """Estimate recall from the confidence of `n` answers and which of them are sure; None if there are none."""
    confidence, sure = np.asarray(confidence, np.float64), np.asarray(sure, bool)
    if not len(confidence):
        return None
    share, chance = float(confidence.mean()), float((confidence * (1 - confidence)).mean()) / len(confidence)
    half = NINE_IN_TEN * float(np.sqrt(BETWEEN_DATASETS[verified] ** 2 + chance))
    return ExpectedRecall(
        share=share, low=max(share - half, 0.0), high=min(share + half, 1.0), sure=float(sure.mean()),
        photos=len(confidence),
    )  # fmt: skip


def estimate_answer_recall(answers: Iterable[Answer]) -> ExpectedRecall | None:
    """Estimate recall from answers to single photos; photos that could not be read do not count.

    Frames of a drive are left out: the probability of a filter is another thing.
    """
    counted = [one for one in answers if one.error is None and one.lost is None]
    verified = bool(counted) and sum(one.reranked for one in counted) * 2 >= len(counted)
    return estimate_recall([one.confidence for one in counted], [one.sure for one in counted], verified=verified)


def collect_answers(answers: Sequence[Answer], notice: str | None = None) -> Answers:
    """Collect answers to photos in their order, with the expected recall on photos like these."""
    return Answers(answers=list(answers), expected_recall=estimate_answer_recall(answers), notice=notice)

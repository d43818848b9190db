"""Patch-match evidence of each head's top answer (ours, beyond the paper); every photo–image pair is matched once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfa.base.progress import Progress, SilentProgress
from tfa.base.threads import map_in_threads
from tfa.method.evidence.rows import NO_ANSWER
from tfa.verification.admission import PairEvidence, space_evenly

OTHERS = 8  # other photos that an answer is compared with, to see what of its evidence is its photo's own


def compute_evidence_roots(
    answers: Mapping[str, np.ndarray],
    evidence: PairEvidence,
    progress: Progress | None = None,
    *,
    subtract_usual: bool = False,
) -> dict[str, np.ndarray]:
    """Compute √M `p` of every photo with each head's first answer to it; nan where a head has none.

    `answers` are images `p`, by the name of the head; `evidence` compares a photo, by its number, with images, from
    several threads. With `subtract_usual`, less the mean √M that the answer has with other photos.
    """
    table = np.stack(list(answers.values()))
    roots = np.full(table.shape, np.nan)
    photos = table.shape[1]
    usual = _with_others(table, evidence) if subtract_usual else {}

    def compare(photo: int) -> None:
        images = np.unique(table[:, photo])
        images = images[images != NO_ANSWER]
        known = dict(zip(images.tolist(), np.sqrt(evidence(photo, images)).tolist(), strict=True))
        if subtract_usual:
            for image in known:
                known[image] -= _mean_of_others(usual, image, photo)
        roots[:, photo] = [known.get(int(image), np.nan) for image in table[:, photo]]

    with (progress or SilentProgress()).task("judging", photos, "photos") as task:
        map_in_threads(compare, range(photos), task=task)
    return dict(zip(answers, roots, strict=True))


def _with_others(table: np.ndarray, evidence: PairEvidence) -> dict[int, dict[int, float]]:
    """√M of every image that is answered with evenly spaced photos: one more than needed, as one may be its own."""
    images = np.unique(table[table != NO_ANSWER])
    photos = space_evenly(table.shape[1], OTHERS + 1).tolist()
    compared = dict(zip(photos, map_in_threads(lambda photo: np.sqrt(evidence(photo, images)), photos), strict=True))
    return {int(image): {p: float(roots[i]) for p, roots in compared.items()} for i, image in enumerate(images)}


def _mean_of_others(usual: Mapping[int, Mapping[int, float]], image: int, photo: int) -> float:
    others = [root for other, root in usual[image].items() if other != photo][:OTHERS]
    return float(np.mean(others)) if others else 0.0

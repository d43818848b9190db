"""The judge's eye (ours, beyond the paper): how much evidence the first answers of several heads bear.

Heads often answer alike: a photo is compared once with each image that any of them answers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfa.base.progress import Progress, SilentProgress, tracked
from tfa.method.evidence.rows import NOBODY
from tfa.verification.admission import PairEvidence


def roots_of_evidence(
    answers: Mapping[str, np.ndarray], evidence: PairEvidence, progress: Progress | None = None
) -> dict[str, np.ndarray]:
    """√M `p` of every photo with each head's first answer to it; nan where a head has none.

    `answers` are images `p`, by the name of the head; `evidence` compares a photo, by its number, with images.
    """
    table = np.stack(list(answers.values()))
    roots = np.full(table.shape, np.nan)
    photos = range(table.shape[1])
    for photo in tracked(photos, len(photos), "judging", progress or SilentProgress(), "photos"):
        images = np.unique(table[:, photo])
        images = images[images != NOBODY]
        known = dict(zip(images.tolist(), np.sqrt(evidence(photo, images)).tolist(), strict=True))
        roots[:, photo] = [known.get(int(image), np.nan) for image in table[:, photo]]
    return dict(zip(answers, roots, strict=True))

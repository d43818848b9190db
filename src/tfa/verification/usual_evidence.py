"""Evidence between photos and map images, and its usual size: how much a photo of the map's places has.

    usual evidence   median over photos of the largest √M among their top 20 images

The photos are map images, each hidden from its own query, or calibration photos.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfa.core.arrays import map_in_threads
from tfa.core.progress import Progress, SilentProgress
from tfa.method.scorer import Scorer
from tfa.search.gallery import top_k

TOP_IMAGES = 20
PairEvidence = Callable[[int, np.ndarray], np.ndarray]  # photo, database images (c,) → evidence (c,)


def cache_evidence(evidence: PairEvidence) -> PairEvidence:
    """Cache `evidence`, so that each pair is computed once."""
    known: dict[tuple[int, int], float] = {}

    def remembered(row: int, images: np.ndarray) -> np.ndarray:
        fresh = np.array([image for image in images if (row, int(image)) not in known], np.int64)
        if len(fresh):
            known.update({(row, int(i)): float(e) for i, e in zip(fresh, evidence(row, fresh), strict=True)})
        return np.array([known[row, int(image)] for image in images], np.float64)

    return remembered


def space_evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced numbers from 0 to count − 1, including both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def measure_on_database(
    scorer: Scorer, evidence_between: PairEvidence, most: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure usual evidence on at most `most` map images; `evidence_between` compares images by their index."""
    chosen = space_evenly(len(scorer.bias), most)
    scores = scorer.rows.scores(scorer.image_vectors(chosen))
    first = np.arange(scores.shape[1]) if scorer.duplicates is None else scorer.duplicates
    scores[first[chosen][:, None] == first] = -np.inf  # the image itself and its duplicates
    return measure_usual_evidence(scores, lambda row, images: evidence_between(int(chosen[row]), images), progress)


def measure_usual_evidence(
    scores: np.ndarray, evidence: PairEvidence, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure usual evidence of photos with scores (p, m); `evidence` is called from several threads."""
    ranked, best = top_k(scores, TOP_IMAGES)

    def find_most(row: int) -> float | None:
        images = ranked[row, np.isfinite(best[row])]
        return float(np.sqrt(evidence(row, images).max())) if len(images) else None

    with (progress or SilentProgress()).task("measuring evidence", len(ranked), "photos") as task:
        found = [one for one in map_in_threads(find_most, range(len(ranked)), task=task) if one is not None]
    return {"photos": len(found), "usual_evidence": float(np.median(found)) if found else None}

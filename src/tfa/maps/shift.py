"""Are the photos like those that the head was made for? (ours, beyond the paper) If not, a calibration is advised.

    common    mean ⟨φ_i, φ_j⟩ over pairs of photos whose answers are unlike each other: ⟨φ_a, φ_b⟩ ≤ 0.05
    evidence  median over photos of the most √M among their candidates, divided by the same of usual photos

φ are second-order coordinates, half whitened and centred as the head does. What photos of unlike places have in common
is the shift of another camera, season or light; 0.25 or more is noticed. Usual photos are the map's own, each hidden in
turn, or those of the calibration that answers; less than half of their evidence is noticed. From 16 photos on; from 64
where the head is centred on other photos already, because frames of a drive in a row share their scenery too.
`benchmarks/studies/confidence.py` measures both (docs/confidence.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.text import format_command
from tfa.maps.state import NamedHead
from tfa.method.carriers import MEAN
from tfa.method.scorer import GLOBAL, Scorer, SecondOrderSide
from tfa.search.gallery import QueryVectors
from tfa.verification.reranking import UNVERIFIED, Reranked

WINDOW_PHOTOS = 256  # photos: the last ones
MIN_PHOTOS, MIN_PHOTOS_CENTERED = 16, 64
_MAX_ANSWER_SIMILARITY, _MIN_PAIRS = 0.05, 8
COMMON_LIMIT, _EVIDENCE_LIMIT = 0.25, 0.5


class DomainShiftMonitor:
    """Detects photos that are unlike those a head was made for, from the last photos it answered."""

    def __init__(self, usual_evidence: float | None = None, *, centred: bool = False) -> None:
        """`usual_evidence` of usual photos, None if not known; `centred` on other photos than the map's?"""
        self._usual, self._fewest = usual_evidence, MIN_PHOTOS_CENTERED if centred else MIN_PHOTOS
        # φ of the photo, φ of its answer, the answer
        self._photos: deque[tuple[np.ndarray, np.ndarray, int]] = deque(maxlen=WINDOW_PHOTOS)
        self._evidence: deque[float] = deque(maxlen=WINDOW_PHOTOS)

    @classmethod
    def for_head(cls, head: NamedHead) -> DomainShiftMonitor:
        """Make the monitor of photos that a head of a map answers."""
        usual = (head.verification or {}).get("usual_evidence")
        return cls(usual, centred=any(side.shift is not None for side in head.stored.scorer.sides))

    def observe(
        self,
        scorer: Scorer,
        photos: Sequence[QueryVectors],
        ranked: Reranked,
        rows: np.ndarray,
        ids: np.ndarray | None = None,
    ) -> None:
        """Take in photos that the scorer answered; images `ranked` stand in `rows` of the gallery.

        `ids` are what the images are known by, where rows of a gallery are others the next time.
        """
        first = rows[ranked.indices[:, 0]]
        known_by = first if ids is None else ids[ranked.indices[:, 0]]
        coordinates = [half_whiten(scorer, some) for some in photos]
        theirs = half_whiten(scorer, scorer.image_vectors(first))
        if theirs is not None:
            ours = np.concatenate([some for some in coordinates if some is not None])
            self._photos.extend(zip(ours, theirs, known_by.tolist(), strict=True))
        compared = (ranked.inliers != UNVERIFIED).any(axis=1)
        self._evidence.extend(np.sqrt(ranked.evidence[compared].max(axis=1, initial=0.0)).tolist())

    @property
    def common(self) -> float | None:
        """None if there are too few photos of unlike places."""
        if len(self._photos) < self._fewest:
            return None
        ours, theirs, answers = (np.array(column) for column in zip(*self._photos, strict=True))
        pairs = np.triu(answers[:, None] != answers, 1) & (theirs @ theirs.T <= _MAX_ANSWER_SIMILARITY)
        return float((ours @ ours.T)[pairs].mean()) if pairs.sum() >= _MIN_PAIRS else None

    @property
    def evidence(self) -> float | None:
        """None if there are too few verified photos, or if it is not known what is usual."""
        if not self._usual or len(self._evidence) < self._fewest:
            return None
        return float(np.median(self._evidence)) / self._usual

    def warning(self, name: str = "MAP") -> str | None:
        """Return a sentence with advice if the photos are unlike those the head was made for; `name` is the map."""
        common, evidence, reasons = self.common, self.evidence, []
        if common is not None and common >= COMMON_LIMIT:
            reasons.append(f"photos of unlike places have {common:.2f} in common, {COMMON_LIMIT} or more is a shift")
        if evidence is not None and evidence < _EVIDENCE_LIMIT:
            reasons.append(f"they share {evidence:.0%} of the usual evidence with the map")
        if not reasons:
            return None
        return (
            f"these photos are unlike those the map is made for: {'; '.join(reasons)}. "
            f"Calibrate it for their camera: {format_command('tfa', 'calibrate', name, 'PHOTOS')}"
        )


def half_whiten(scorer: Scorer, vectors: QueryVectors) -> np.ndarray | None:
    """φ of γ = ½, `q r` float32, from what a second-order scorer compares (its first side); None of other scorers."""
    for term, features in zip(scorer.terms, vectors.terms, strict=True):
        side = None if term.side == GLOBAL else scorer.sides[term.side]
        if not isinstance(side, SecondOrderSide) or term.gamma == MEAN:
            continue
        if term.gamma is None:
            coordinates, gamma = features - side.mean_coordinates.astype(features.dtype), 0.0
        else:
            assert isinstance(term.gamma, float)
            coordinates, gamma = features, term.gamma
        return l2_normalize(coordinates * (side.eigenvalues ** (gamma / 2 - 0.25)).astype(features.dtype)).astype(
            np.float32
        )
    return None

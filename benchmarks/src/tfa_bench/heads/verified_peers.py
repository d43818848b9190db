"""AnyLoc with our verification (ours, beyond both papers): what is gained by it without our heads.

anyloc-v    where the database's own images admit it, as for every head with -v
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.base.config import VerifySpec
from tfa.verification.admission import VerificationEvidence
from tfa.verification.reranking import most_candidates, rerank
from tfa_bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa_bench.heads.own_heads import OURS, patch_pairs
from tfa_bench.heads.patch_pairs import PatchPairs, known_grid
from tfa_bench.heads.vectors import VectorHead
from tfa_bench.heads.verified import judged_by_hiding, reordered


@dataclass(frozen=True)
class VerifiedVectors:
    """A peer of one vector an image, and what is known of its verification. Its confidence stays the z-score."""

    base: VectorHead
    pairs: PatchPairs
    admission: VerificationEvidence

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.base.replicas

    @property
    def saw(self) -> str:
        return self.base.saw

    @property
    def decisions(self) -> dict[str, Any]:
        return {"verification": {"used": self.admission.admitted, "always": False, **self.admission.to_dict()}}

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        scores = self.base.scores(queries, replica)
        if not self.admission.admitted or not len(queries):
            return scores
        candidates = self.pairs.spec.candidates
        ranked = rerank(scores, most_candidates(candidates), candidates, self.pairs.of(queries.tokens))
        return reordered(scores, ranked)


def verified_peer(card: HeadCard) -> HeadCard:
    """The card of a peer with verification."""

    def fit(database: Photos, shared: Shared) -> Fitted:
        known_grid(database.tokens)
        pairs, base = patch_pairs(database, shared), card.fit(database, shared)
        assert pairs is not None
        assert isinstance(base, VectorHead)
        replica = base.replicas[0]
        admission = judged_by_hiding(
            lambda photos: base.scores(Photos(photos), replica),
            base.duplicates[replica],
            database.tokens,
            pairs,
            shared.progress,
        )
        return VerifiedVectors(base, pairs, admission)

    return dataclasses.replace(
        card,
        name=f"{card.name}-v",
        title=f"{card.title} +V",
        fit=fit,
        settings={**card.settings, "verification": {"always": False, **VerifySpec().to_dict()}},
        stages=(*card.stages, "verification"),
        note=OURS,
    )

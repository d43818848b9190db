"""AnyLoc with our verification (ours, beyond both papers): what is gained by it without our heads.

anyloc-v    where the database's own images admit it, as for every head with -v
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.bench.heads.contract import Fitted, HeadCard, Photos, Shared
from tfa.bench.heads.own_heads import OURS, patch_pairs
from tfa.bench.heads.vectors import VectorHead
from tfa.bench.heads.verified import judged_by_hiding, reordered
from tfa.bench.studies.patch_pairs import PatchPairs, known_grid
from tfa.types import RerankSpec
from tfa.verification.admission import VerificationEvidence
from tfa.verification.reranking import count_candidates, rerank


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
    def data_used(self) -> str:
        return self.base.data_used

    @property
    def decisions(self) -> dict[str, Any]:
        return {"verification": {"used": self.admission.admitted, "always": False, **self.admission.to_dict()}}

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        scores = self.base.scores(queries, replica)
        if not self.admission.admitted or not len(queries):
            return scores
        candidates = self.pairs.spec.candidates
        ranked = rerank(scores, count_candidates(candidates), candidates, self.pairs.of(queries.tokens))
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
        settings={**card.settings, "verification": {"always": False, **RerankSpec().to_dict()}},
        stages=(*card.stages, "verification"),
        note=OURS,
    )

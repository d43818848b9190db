"""The head: decisions applied to fitted branches. Tokens of a query in, a ranked database out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tfa.arrays import Backend, Spill, l2, release
from tfa.branches import Branch, PseudoScores, ScoreBlock, global_similarities, pseudo_facts
from tfa.config import HeadSpec
from tfa.controllers.database import fused_scores
from tfa.controllers.decisions import DatabaseEvidence, Decisions
from tfa.errors import BadSpec
from tfa.geometry import carrier_terms
from tfa.scoring import GLOBAL, Compiled, Part, Scorer, Side, compile_scorer, find_twins, joined, top_k
from tfa.tokens import Tokens
from tfa.vocabulary import CONSTRUCTIONS, Vocabulary

Replica = int | Literal["ensemble"]
ENSEMBLE: Literal["ensemble"] = "ensemble"


@dataclass(frozen=True)
class Head:
    """A fitted retriever. Immutable; every construction is a complete retriever of its own (a replica)."""

    spec: HeadSpec
    decisions: Decisions
    evidence: DatabaseEvidence
    vocabularies: tuple[Vocabulary, ...]
    branches: Mapping[tuple[str, int], Branch]
    cls: np.ndarray | None
    peaks: Mapping[Replica, np.ndarray]  # sorted top-1 z-scores of the pseudo queries: the scale of confidence
    scorers: Mapping[Replica, Scorer]
    saw: str = "database"

    def __len__(self) -> int:
        return self.branches[self.decisions.assignment, 0].split.images

    def scorer(self, replica: Replica = 0) -> Scorer:
        if replica not in self.scorers:
            raise BadSpec(f"replica {replica!r} does not exist; use 0, 1, 2 or 'ensemble'")
        return self.scorers[replica]

    def scores(self, tokens: Tokens, replica: Replica = 0) -> np.ndarray:
        """Scores of query images against the database, `q m`."""
        return self.scorer(replica).scores(tokens)

    def search(self, tokens: Tokens, k: int = 10, replica: Replica = 0) -> tuple[np.ndarray, np.ndarray]:
        """The k best database images of each query: indices `q k` (int64) and scores `q k`."""
        if k < 1:
            raise BadSpec(f"k={k} is out of range: must be at least 1")
        return top_k(self.scores(tokens, replica), k)

    def compile(self, replica: Replica = 0) -> Compiled:
        """The head as one vector per image and a bias per database image."""
        return compile_scorer(self.scorer(replica))


def assemble(
    spec: HeadSpec,
    decisions: Decisions,
    evidence: DatabaseEvidence,
    vocabularies: list[Vocabulary],
    branches: Mapping[tuple[str, int], Branch],
    cls: np.ndarray | None,
    backend: Backend,
    dtype: str,
) -> Head:
    """A head from its decisions: the scorer of each replica, and the scale its confidence is read on."""
    chosen = [branches[decisions.assignment, s] for s in CONSTRUCTIONS]
    admitted = l2(np.asarray(cls, dtype)) if decisions.admit_cls else None
    spill = Spill()
    scorers: dict[Replica, Scorer] = {
        s: replica_scorer(b, decisions, spec, admitted, dtype, spill) for s, b in enumerate(chosen)
    }
    scorers[ENSEMBLE] = joined([scorers[s] for s in CONSTRUCTIONS])
    peaks = pseudo_peaks(chosen, decisions, cls, backend)
    return Head(spec, decisions, evidence, tuple(vocabularies), branches, cls, peaks, scorers)


def replica_scorer(
    branch: Branch, decisions: Decisions, spec: HeadSpec, admitted: np.ndarray | None, dtype: str, spill: Spill
) -> Scorer:
    """S_{m*}, or with the global token admitted ½(S_{m*}/σ_local + S_cls/σ_cls)."""
    terms = carrier_terms(decisions.carrier, decisions.c, decisions.beta)
    local, share = 1.0, 0.0
    if decisions.admit_cls:
        local = 0.5 / decisions.sigma_local[branch.construction]
        share = 0.5 / decisions.sigma_cls[branch.construction]
    descriptors = branch.described.descriptors
    parts = [Part(local * t.weight, 0, t.gamma, (branch.features(t.gamma, dtype, spill),)) for t in terms]
    if admitted is not None:
        parts.append(Part(share, GLOBAL, None, (admitted,)))
    spectral = any(term.gamma is not None for term in terms)
    anchors = descriptors
    if len(branch.split.anchors) != branch.split.images:
        anchors = descriptors[branch.split.anchors]
    side = Side(
        branch.assignment,
        branch.centers,
        spec.temperature,
        branch.geometry if spectral else None,
        anchors if spectral else None,
    )
    scorer = Scorer((side,), tuple(parts), np.zeros(len(descriptors)), find_twins(descriptors, admitted), dtype)
    for array in (descriptors, *(chunk for part in parts for chunk in part.gallery)):
        release(array)
    branch.release()
    return scorer


def pseudo_peaks(
    chosen: list[Branch], decisions: Decisions, cls: np.ndarray | None, backend: Backend
) -> dict[Replica, np.ndarray]:
    """Sorted top-1 z-scores of the masked pseudo queries under each replica's final score, and their sum's."""
    terms = carrier_terms(decisions.carrier, decisions.c, decisions.beta)
    count = len(chosen[0].split.pseudo)
    total = Spill().empty((count, chosen[0].split.images), np.float64)
    total[:] = 0
    peaks: dict[Replica, np.ndarray] = {}
    for s, branch in enumerate(chosen):  # one branch at a time: only the sum stays
        block: ScoreBlock = PseudoScores(branch, terms, backend).block
        if decisions.admit_cls:
            assert cls is not None
            similar = global_similarities(cls, branch.split.pseudo)
            block = fused_scores(block, similar, decisions.sigma_local[s], decisions.sigma_cls[s])
        facts = pseudo_facts(_summed_into(total, block), count, branch.mask)
        peaks[s] = np.sort(facts.peak[facts.top >= 0])
        branch.release()
        release(total)
    union = chosen[0].mask.union(*(branch.mask for branch in chosen[1:]))
    facts = pseudo_facts(lambda start, stop: np.array(total[start:stop]), count, union)
    peaks[ENSEMBLE] = np.sort(facts.peak[facts.top >= 0])
    return peaks


def _summed_into(total: np.ndarray, block: ScoreBlock) -> ScoreBlock:
    def scores(start: int, stop: int) -> np.ndarray:
        rows = block(start, stop)
        total[start:stop] += rows
        return rows

    return scores

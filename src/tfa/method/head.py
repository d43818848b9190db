"""Heads: scores, rankings and vectors from fitted data and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tfa.core.arrays import Backend, Spill, l2_normalize, release
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.branch import Branches, DatabaseBranch, DatabaseSplit, ScoreBlock
from tfa.method.carriers import KernelTerm
from tfa.method.decisions import AnyDecisions, AnyEvidence, SecondOrderDecisions
from tfa.method.evidence import Mask
from tfa.method.pseudo_queries import (
    every_cosine,
    every_score,
    fuse_blocks,
    mix_blocks,
    pseudo_facts,
    score_pseudo_queries,
    take_median_spread,
)
from tfa.method.scorer import (
    GLOBAL,
    Compiled,
    ResidualSide,
    Scorer,
    ScoreTerm,
    calibrate_scorer,
    check_token_channels,
    join_scorers,
)
from tfa.method.vocabulary import CONSTRUCTIONS, Vocabulary
from tfa.search.gallery import Gallery, find_duplicates, join_duplicates, top_k
from tfa.types import HeadSpec

ReplicaName = int | Literal["ensemble"]
ENSEMBLE: Literal["ensemble"] = "ensemble"


class BaseHead:
    """A head with several replicas, each a complete scorer, and their sum (the ensemble)."""

    scorers: Mapping[ReplicaName, Scorer]

    def __len__(self) -> int:
        return len(self.scorers[0].bias)

    def scorer(self, replica: ReplicaName = 0) -> Scorer:
        if replica not in self.scorers:
            raise BadSpec(f"replica {replica!r} does not exist; use {', '.join(map(repr, self.scorers))}")
        return self.scorers[replica]

    def scores(self, tokens: Tokens, replica: ReplicaName = 0) -> np.ndarray:
        """Return scores (q, m) of query images against the database."""
        return self.scorer(replica).scores(tokens)

    def search(self, tokens: Tokens, k: int = 10, replica: ReplicaName = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best database images of each query.

        Args:
            tokens: Tokens of the queries.
            k: Number of images per query.
            replica: Replica to use, or "ensemble".

        Returns:
            Indices (q, k), int64, and scores (q, k).
        """
        if k < 1:
            raise BadSpec(f"k={k} is out of range: must be at least 1")
        return top_k(self.scores(tokens, replica), k)

    def compile(self, replica: ReplicaName = 0) -> Compiled:
        """Return the head as one vector per image and a bias per database image."""
        return self.scorer(replica).compile()


# Weight, branch and kernel of each assignment in use.
Used = Sequence[tuple[float, DatabaseBranch, Sequence[KernelTerm]]]


@dataclass(frozen=True)
class FittedDatabase:
    """Data fitted to the database, before any decision. A calibration reuses it."""

    spec: HeadSpec
    vocabularies: tuple[Vocabulary, ...]
    branches: Branches
    cls: np.ndarray | None

    @property
    def dtype(self) -> str:
        """Dtype of descriptors and scores."""
        return str(next(iter(self.branches.values())).described.descriptors.dtype)

    def check(self, tokens: Tokens) -> None:
        """Raise if `tokens` do not fit the encoder of this head."""
        width = None if self.cls is None else self.cls.shape[1]
        check_token_channels(tokens, self.vocabularies[0].centers.shape[1], width)

    @property
    def split(self) -> DatabaseSplit:
        """Roles of the database images, equal for all branches."""
        return next(iter(self.branches.values())).split

    def used(self, decisions: AnyDecisions, construction: int) -> Used:
        """Return the branches that the decisions use in one construction."""
        return [
            (weight, self.branches[a, construction], decisions.kernel(a, construction))
            for a, weight in decisions.branch_weights.items()
        ]


@dataclass(frozen=True)
class Head(FittedDatabase, BaseHead):
    """A fitted head. Immutable; every construction is a complete retriever (a replica)."""

    decisions: AnyDecisions
    evidence: AnyEvidence
    scorers: Mapping[ReplicaName, Scorer]
    data_used: str = "database"


def assemble(
    fitted: FittedDatabase,
    decisions: AnyDecisions,
    evidence: AnyEvidence,
    backend: Backend,
    *,
    score_target: Tokens | None = None,
    data_used: str = "database",
) -> Head:
    """Build a head from its decisions. `score_target` are target photos for score calibration."""
    branches, cls, dtype = fitted.branches, fitted.cls, fitted.dtype
    spill, split = Spill(), fitted.split
    unit, similar = None, None
    if decisions.admit_cls:
        assert cls is not None, "decisions that use a global token come from a database that has one"
        unit = l2_normalize(np.asarray(cls, dtype))
        similar = None if score_target is None else every_cosine(cls, split)
    scorers: dict[ReplicaName, Scorer] = {}
    for s in CONSTRUCTIONS:
        used = fitted.used(decisions, s)
        local, token = 1.0, None  # S_{m*}; with the global token w·S_{m*}/σ_local + (1 − w)·S_cls/σ_cls
        if unit is not None:
            assert not isinstance(decisions, SecondOrderDecisions), "this head has no global token"
            local = decisions.local_weight / decisions.sigma_local[s]
            token = (1 - decisions.local_weight) / decisions.sigma_cls[s], unit
        scorers[s] = replica_scorer(used, fitted.spec, dtype, spill, local, token)
        if score_target is not None:
            block, mask = final_scores(used, decisions, similar, backend, every=True)
            facts = pseudo_facts(block, len(split.pseudo), mask, split.images)
            # Equal scores have no spread and are not scaled.
            scorers[s] = calibrate_scorer(scorers[s], take_median_spread(facts) or 1.0, score_target)
        for _, branch, _ in used:
            branch.release()
    scorers[ENSEMBLE] = join_scorers([scorers[s] for s in CONSTRUCTIONS])
    return Head(fitted.spec, fitted.vocabularies, branches, cls, decisions, evidence, scorers, data_used)


def replica_scorer(
    used: Used,
    spec: HeadSpec,
    dtype: str,
    spill: Spill,
    scale: float = 1.0,
    token: tuple[float, np.ndarray] | None = None,
) -> Scorer:
    """Return the scorer of Σ scale · weight · kernel, plus the weighted cosine of unit global tokens (`token`)."""
    sides, terms = [], []
    for index, (weight, branch, kernel) in enumerate(used):
        for term in kernel:
            gallery = branch.features(term.gamma, dtype, spill)
            terms.append(ScoreTerm(scale * weight * term.weight, index, term.gamma, Gallery.of(gallery)))
        spectral = (branch.geometry, branch.anchors) if any(term.gamma is not None for term in kernel) else ()
        sides.append(ResidualSide(branch.assignment, branch.centers, spec.temperature, *spectral))
    if token is not None:
        terms.append(ScoreTerm(token[0], GLOBAL, None, Gallery.of(token[1])))
    descriptors = [branch.described.descriptors for _, branch, _ in used]
    same = [branch.duplicates for _, branch, _ in used]
    duplicates = join_duplicates(same if token is None else [*same, find_duplicates(token[1])])
    chunks = (chunk for term in terms for chunk in term.gallery.chunks)
    release(*descriptors, *(chunk for chunk in chunks if isinstance(chunk, np.ndarray)))
    return Scorer(tuple(sides), tuple(terms), np.zeros(len(descriptors[0])), duplicates, dtype)


def final_scores(
    used: Used, decisions: AnyDecisions, similar: ScoreBlock | None, backend: Backend, *, every: bool = False
) -> tuple[ScoreBlock, Mask]:
    """Return scores of the pseudo queries under the decided head, and their mask.

    `similar` are the cosines of the global tokens, if used. Set `every` if all rows are needed: computing them at once
    is cheaper.
    """
    scores = every_score if every else score_pseudo_queries
    block = mix_blocks([(weight, scores(branch, terms, backend)) for weight, branch, terms in used])
    if similar is not None:
        s = used[0][1].construction
        assert not isinstance(decisions, SecondOrderDecisions), "this head has no global token"
        block = fuse_blocks(block, similar, decisions.local_weight, decisions.sigma_local[s], decisions.sigma_cls[s])
    return block, Mask.union(*(branch.mask for _, branch, _ in used))

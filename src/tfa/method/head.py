"""The head: decisions turned into scores, a ranking, one vector per image; what every fitted head can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tfa.base.backend import Backend, l2
from tfa.base.config import HeadSpec
from tfa.base.spill import Spill, release
from tfa.base.tokens import Tokens
from tfa.errors import BadSpec, ChannelMismatch
from tfa.method.branch import Branch, ScoreBlock, row_blocks
from tfa.method.carriers import carrier_terms
from tfa.method.compiled import Compiled, compile_scorer
from tfa.method.controllers.decisions import DatabaseEvidence, Decisions, TargetDecisions, TargetEvidence
from tfa.method.evidence.support import Mask
from tfa.method.pseudo_queries import (
    empty_scores,
    every_cosine,
    every_score,
    fused,
    global_similarities,
    median_spread,
    mixed,
    pseudo_facts,
    wanted_scores,
)
from tfa.method.residuals import HARD
from tfa.method.score_calibration import calibrated
from tfa.method.scorer import GLOBAL, QuerySide, Scorer, ScoreTerm, joined
from tfa.method.vocabulary import CONSTRUCTIONS, Vocabulary
from tfa.search.gallery import Gallery
from tfa.search.ties import find_duplicates, top_k

Replica = int | Literal["ensemble"]
ENSEMBLE: Literal["ensemble"] = "ensemble"


class Retriever:
    """A head of several replicas, each a complete scorer, and their sum."""

    scorers: Mapping[Replica, Scorer]

    def __len__(self) -> int:
        return len(self.scorers[0].bias)

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


Branches = Mapping[tuple[str, int], Branch]
GLIMPSES = 256  # numbers of a descriptor that show whether it may be equal to another


@dataclass(frozen=True)
class FittedDatabase:
    """What is fitted to the database before anything is decided, and what a calibration keeps of a head."""

    spec: HeadSpec
    vocabularies: tuple[Vocabulary, ...]
    branches: Branches
    cls: np.ndarray | None

    @property
    def dtype(self) -> str:
        """Of descriptors and scores."""
        return str(self.branches[HARD, 0].described.descriptors.dtype)

    def check(self, tokens: Tokens) -> None:
        """Raise if `tokens` do not come from the encoder this head was fitted with."""
        channels = self.vocabularies[0].centers.shape[1]
        if len(tokens) and tokens.channels != channels:
            raise ChannelMismatch(
                f"tokens have {tokens.channels} channels, this head was fitted on {channels}; "
                "encode them with the encoder of the database"
            )
        width = None if self.cls is None else self.cls.shape[1]
        if tokens.cls is not None and width is not None and tokens.cls.shape[1] != width:
            raise ChannelMismatch(f"global tokens have {tokens.cls.shape[1]} channels, must have {width}")


@dataclass(frozen=True)
class Head(FittedDatabase, Retriever):
    """A fitted retriever. Immutable; every construction is a complete retriever of its own (a replica)."""

    decisions: Decisions | TargetDecisions
    evidence: DatabaseEvidence | TargetEvidence
    peaks: Mapping[Replica, np.ndarray]  # sorted top-1 z-scores of the pseudo queries: the scale of confidence
    scorers: Mapping[Replica, Scorer]
    saw: str = "database"


def assemble(
    fitted: FittedDatabase,
    decisions: Decisions | TargetDecisions,
    evidence: DatabaseEvidence | TargetEvidence,
    backend: Backend,
    *,
    score_target: Tokens | None = None,
    saw: str = "database",
) -> Head:
    """A head from its decisions: the scorer of each replica, and the scale its confidence is read on.

    `score_target` are target photos for robust score calibration; without them scores are as decided.
    """
    branches, cls, dtype = fitted.branches, fitted.cls, fitted.dtype
    admitted = l2(np.asarray(cls, dtype)) if decisions.admit_cls else None
    spill, split = Spill(), branches[HARD, 0].split
    count, images = len(split.pseudo), split.images
    similar = every_cosine(_given(cls), split) if decisions.admit_cls else None
    total = empty_scores(split)
    masks: list[Mask] = []
    scorers: dict[Replica, Scorer] = {}
    peaks: dict[Replica, np.ndarray] = {}
    for s in CONSTRUCTIONS:  # one construction at a time: only the sum of their pseudo-query scores stays
        used = [(weight, branches[assignment, s]) for assignment, weight in decisions.branch_weights.items()]
        scorers[s] = replica_scorer(used, decisions, fitted.spec, admitted, dtype, spill)
        block, mask = final_scores(used, decisions, cls, backend, similar=similar, every=True)
        if score_target is not None:
            sigma = median_spread(pseudo_facts(block, count, mask, images)) or 1.0  # all equal: nothing to scale
            scorers[s] = calibrated(scorers[s], sigma, score_target)
            block = _shifted(block, sigma, scorers[s].bias)
        facts = pseudo_facts(_summed_into(total, block, s == CONSTRUCTIONS[0]), count, mask, images)
        peaks[s] = np.sort(facts.peak[facts.top >= 0])
        masks.append(mask)
        for _, branch in used:
            branch.release()
    scorers[ENSEMBLE] = joined([scorers[s] for s in CONSTRUCTIONS])
    summed = pseudo_facts(lambda start, stop: np.array(total[start:stop]), count, masks[0].union(*masks[1:]), images)
    peaks[ENSEMBLE] = np.sort(summed.peak[summed.top >= 0])
    return Head(fitted.spec, fitted.vocabularies, branches, cls, decisions, evidence, peaks, scorers, saw)


def replica_scorer(
    used: Sequence[tuple[float, Branch]],
    decisions: Decisions | TargetDecisions,
    spec: HeadSpec,
    admitted: np.ndarray | None,
    dtype: str,
    spill: Spill,
) -> Scorer:
    """S_{m*}, or with the global token admitted w·S_{m*}/σ_local + (1 − w)·S_cls/σ_cls."""
    construction = used[0][1].construction
    local, share = 1.0, 0.0
    if admitted is not None:
        local = decisions.local_weight / decisions.sigma_local[construction]
        share = (1 - decisions.local_weight) / decisions.sigma_cls[construction]
    sides, terms = [], []
    for index, (weight, branch) in enumerate(used):
        kernel = carrier_terms(decisions.carrier, **decisions.strengths[branch.assignment])
        for term in kernel:
            gallery = branch.features(term.gamma, dtype, spill)
            terms.append(ScoreTerm(local * weight * term.weight, index, term.gamma, Gallery.of(gallery)))
        sides.append(_side(branch, spec, any(term.gamma is not None for term in kernel)))
    if admitted is not None:
        terms.append(ScoreTerm(share, GLOBAL, None, Gallery.of(admitted)))
    descriptors = [branch.described.descriptors for _, branch in used]
    duplicates = duplicates_of(*descriptors, admitted)
    for array in (*descriptors, *(chunk for term in terms for chunk in term.gallery.chunks)):
        if isinstance(array, np.ndarray):
            release(array)
    return Scorer(tuple(sides), tuple(terms), np.zeros(len(descriptors[0])), duplicates, dtype)


def _side(branch: Branch, spec: HeadSpec, spectral: bool) -> QuerySide:
    if not spectral:
        return QuerySide(branch.assignment, branch.centers, spec.temperature)
    anchors = branch.described.descriptors
    if len(branch.split.anchors) != branch.split.images:
        anchors = anchors[branch.split.anchors]
    return QuerySide(branch.assignment, branch.centers, spec.temperature, branch.geometry, anchors)


def final_scores(
    used: Sequence[tuple[float, Branch]],
    decisions: Decisions | TargetDecisions,
    cls: np.ndarray | None,
    backend: Backend,
    *,
    similar: ScoreBlock | None = None,
    every: bool = False,
) -> tuple[ScoreBlock, Mask]:
    """Scores of the pseudo queries under the decided head, and what they may not answer.

    `every` says that all rows will be needed, which is cheaper at once. `similar` are the cosines of the
    global tokens, if they are known.
    """
    weighted = []
    for weight, branch in used:
        terms = carrier_terms(decisions.carrier, **decisions.strengths[branch.assignment])
        weighted.append((weight, (every_score if every else wanted_scores)(branch, terms, backend)))
    block, first = mixed(weighted), used[0][1]
    mask = first.mask.union(*(branch.mask for _, branch in used[1:]))
    if decisions.admit_cls:
        similar, s = similar or global_similarities(_given(cls), first.split.pseudo), first.construction
        block = fused(block, similar, decisions.local_weight, decisions.sigma_local[s], decisions.sigma_cls[s])
    return block, mask


def _summed_into(total: np.ndarray, block: ScoreBlock, first: bool) -> ScoreBlock:
    def scores(start: int, stop: int) -> np.ndarray:
        rows = block(start, stop)
        total[start:stop] = rows if first else total[start:stop] + rows
        release(total)
        return rows

    return scores


def _shifted(block: ScoreBlock, sigma: float, bias: np.ndarray) -> ScoreBlock:
    return lambda start, stop: block(start, stop) / sigma + bias


def _given(cls: np.ndarray | None) -> np.ndarray:
    assert cls is not None
    return cls


def duplicates_of(*galleries: np.ndarray | None) -> np.ndarray | None:
    """For each row the first row equal to it in all galleries; None if all rows differ.

    `find_duplicates` reads every number; here it reads only rows that agree in a few places with another. It
    compares bytes, so that −0 is made 0 first.
    """
    present = [gallery for gallery in galleries if gallery is not None]
    places = [np.linspace(0, g.shape[1] - 1, min(g.shape[1], GLIMPSES)).astype(np.int64) for g in present]
    alike: dict[int, list[int]] = {}
    for start, stop in row_blocks(len(present[0])):
        glimpse = np.concatenate([g[start:stop][:, at] + 0 for g, at in zip(present, places, strict=True)], axis=1)
        for row, seen in enumerate(glimpse, start):
            alike.setdefault(hash(seen.tobytes()), []).append(row)
        for gallery in present:
            release(gallery)
    first = np.arange(len(present[0]))
    for rows in (np.array(rows) for rows in alike.values() if len(rows) > 1):
        found = find_duplicates(*(gallery[rows] + 0 for gallery in present))
        first[rows] = rows if found is None else rows[found]
    return None if (first == np.arange(len(first))).all() else first

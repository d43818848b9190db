"""Fit the head of a map and the patches that its answers are reranked by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.maps.stored_head import AnyHead
from tfa.method.dual_vocabulary import SourceWords
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import BuildOptions, HeadSpec, RerankSpec
from tfa.verification.patches import CompactTokens, PhotoPairs, explain_missing_grid, fit_compact_tokens
from tfa.verification.reranking import Reranked, count_candidates, rerank
from tfa.verification.usual_evidence import PairEvidence, measure_on_database, measure_usual_evidence

RERANKED = {"admitted": True, "reason": "on: the map stores patches"}  # facts of every head of a map with patches


def describe_reranking(
    head: AnyHead, compact: CompactTokens | None, progress: bool | Progress | None = None
) -> dict[str, Any] | None:
    """Describe the reranking of a head's answers; None without compact tokens."""
    if compact is None:
        return None
    most, progress = compact.spec.max_pseudo, as_progress(progress)
    return {**RERANKED, **measure_on_database(head.scorer(), compact.evidence_between, most, progress)}


def describe_calibrated_reranking(
    head: AnyHead, photos: Tokens, evidence: PairEvidence | None, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Describe the reranking of a calibrated head's answers, from its photos; None without evidence."""
    if evidence is None:
        return None
    return {**RERANKED, **measure_usual_evidence(head.scores(photos), evidence, progress)}


def rerank_candidates(
    query_tokens: Tokens,
    database_tokens: Tokens,
    scores: np.ndarray | None = None,
    *,
    spec: RerankSpec | None = None,
    progress: bool | Progress | None = None,
) -> Reranked:
    """Rerank the top database images of each query by spatially consistent patch matches.

    Args:
        query_tokens: Tokens of the queries, with a patch grid.
        database_tokens: Tokens of the database images of the same encoder, with a patch grid.
        scores: Scores of a head, `(q, m)`; the top `spec.candidates` are reranked. [default: rerank all images]
        spec: Settings of the reranking.
        progress: True draws progress bars.

    Returns:
        The images of each query, best first, with evidence and inliers.

    Raises:
        BadTokens: A grid is missing, or `scores` has the wrong shape.
        ChannelMismatch: The tokens come from different encoders.
    """
    spec = spec or RerankSpec()
    if query_tokens.channels != database_tokens.channels:
        raise ChannelMismatch(
            f"query tokens have {query_tokens.channels} channels, database tokens {database_tokens.channels}; "
            "use one encoder for both"
        )
    compact = CompactTokens.fit(database_tokens, spec)
    grid = compact.resolve_grid(query_tokens)
    if grid is None:
        raise BadTokens(
            f"query tokens: {explain_missing_grid(query_tokens)}; pass it: Tokens(patches, grid=(rows, columns))"
        )
    shape = (len(query_tokens), len(database_tokens))
    known = np.zeros(shape) if scores is None else np.asarray(scores)
    if known.shape != shape:
        raise BadTokens(f"scores have shape {known.shape}, must be (queries, database images) = {shape}")
    candidates = shape[1] if scores is None else spec.candidates
    pairs = PhotoPairs(compact, query_tokens, grid, np.arange(shape[1]))
    return rerank(known, count_candidates(candidates), candidates, pairs, as_progress(progress))


@dataclass(frozen=True)
class FittedMap:
    """A fitted head with its compact tokens."""

    head: AnyHead
    compact: CompactTokens | None = None
    verification: dict[str, Any] | None = None  # facts of reranking
    notes: tuple[str, ...] = ()


def fit_map(
    tokens: Tokens,
    map_spec: BuildOptions,
    spec: HeadSpec | None,
    device: str,
    progress: Progress,
    source: SourceWords | None = None,
) -> FittedMap:
    """Fit the head of a map and its patches on tokens of its photos; `source` is for a dual head."""
    if map_spec.head == "paper-dual":
        dual = pipeline.fit_dual(tokens, source, spec=spec, device=device, progress=progress)
        return add_verification(dual, tokens, map_spec, progress)
    if map_spec.head == "paper":
        paper = pipeline.fit(tokens, spec, device=device, progress=progress)
        return add_verification(paper, tokens, map_spec, progress)
    # A map stores the first construction unless it is an ensemble. The adaptive carrier needs the strengths of all.
    every = map_spec.ensemble or map_spec.carrier == "adaptive"
    head = pipeline.fit_second_order(
        tokens,
        map_spec.carrier,
        constructions=len(CONSTRUCTIONS) if every else 1,
        spec=spec,
        device=device,
        progress=progress,
    )
    return add_verification(head, tokens, map_spec, progress)


def add_verification(
    head: AnyHead, tokens: Tokens, map_spec: BuildOptions, progress: bool | Progress | None = None
) -> FittedMap:
    """Add compact tokens to a fitted head, if the map stores patches."""
    if map_spec.reranking is None:
        return FittedMap(head)
    compact = fit_compact_tokens(tokens, map_spec.reranking)
    notes = () if compact is not None else (f"built without reranking: {explain_missing_grid(tokens)}",)
    return FittedMap(head, compact, describe_reranking(head, compact, progress), notes)

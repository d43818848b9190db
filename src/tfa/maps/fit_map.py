"""Fit the head of a map, and decide without labels whether its answers are reranked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, ChannelMismatch
from tfa.maps.stored_head import AnyHead
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import BuildOptions, HeadSpec, RerankSpec
from tfa.verification.admission import PairEvidence, judge_admission_on_database, judge_admission_on_target
from tfa.verification.patches import CompactTokens, PhotoPairs, explain_missing_grid, fit_compact_tokens
from tfa.verification.reranking import Reranked, count_candidates, rerank

# --- reranking ------------------------------------------------------------------------------------


def decide_admission(
    head: AnyHead, compact: CompactTokens | None, device: str = "cpu", progress: bool | Progress | None = None
) -> dict[str, Any] | None:
    """Decide whether a head's answers are reranked; None without compact tokens."""
    if compact is None:
        return None
    judged = judge_admission_on_database(
        head, compact.evidence_between, compact.spec, backend_for(device), as_progress(progress)
    )
    return judged.to_dict()


def decide_calibration_admission(
    head: AnyHead, photos: Tokens, evidence: PairEvidence | None, progress: Progress | None = None
) -> dict[str, Any] | None:
    """Decide whether a calibrated head's answers are reranked, from its photos; None without evidence."""
    return None if evidence is None else judge_admission_on_target(head, photos, evidence, progress).to_dict()


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


# --- fit map --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedMap:
    """A fitted head with its compact tokens."""

    head: AnyHead
    compact: CompactTokens | None = None
    verification: dict[str, Any] | None = None  # whether answers are reranked, and why
    notes: tuple[str, ...] = ()


def fit_map(
    tokens: Tokens, map_spec: BuildOptions, spec: HeadSpec | None, device: str, progress: Progress
) -> FittedMap:
    """Fit the head of a map on tokens of its photos, and decide on reranking."""
    if map_spec.head == "paper":
        paper = pipeline.fit(tokens, spec, device=device, progress=progress)
        return add_verification(paper, tokens, map_spec, device, progress)
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
    return add_verification(head, tokens, map_spec, device, progress)


def add_verification(
    head: AnyHead, tokens: Tokens, map_spec: BuildOptions, device: str, progress: bool | Progress | None = None
) -> FittedMap:
    """Add compact tokens and the reranking decision to a fitted head, if the map stores patches."""
    if map_spec.reranking is None:
        return FittedMap(head)
    compact = fit_compact_tokens(tokens, map_spec.reranking)
    notes = () if compact is not None else (f"built without reranking: {explain_missing_grid(tokens)}",)
    return FittedMap(head, compact, decide_admission(head, compact, device, progress), notes)

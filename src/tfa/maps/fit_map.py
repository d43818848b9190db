"""What a map is fitted to: the head of the kind it wants, and what verification needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfa import pipeline
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.maps.stored_head import AnyHead
from tfa.maps.verification import decide_admission
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import BuildOptions, HeadSpec
from tfa.verification.patches import CompactTokens, explain_missing_grid, fit_compact_tokens


@dataclass(frozen=True)
class FittedMap:
    """A head with all that a map keeps beside it."""

    head: AnyHead
    compact: CompactTokens | None = None
    verification: dict[str, Any] | None = None  # is it used, and why
    notes: tuple[str, ...] = ()


def fit_map(
    tokens: Tokens, map_spec: BuildOptions, spec: HeadSpec | None, device: str, progress: Progress
) -> FittedMap:
    """Everything from the tokens of the map's photos."""
    if map_spec.head == "paper":
        paper = pipeline.fit(tokens, spec, device=device, progress=progress)
        return add_verification(paper, tokens, map_spec, device, progress)
    # A map keeps the first construction, unless it is an ensemble; the adaptive carrier measures strengths over all.
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
    head: AnyHead,
    tokens: Tokens,
    map_spec: BuildOptions,
    device: str,
    progress: bool | Progress | None = None,
) -> FittedMap:
    """A fitted head with what verification needs, if the map wants it."""
    if map_spec.reranking is None:
        return FittedMap(head)
    compact = fit_compact_tokens(tokens, map_spec.reranking)
    notes = () if compact is not None else (f"built without verification: {explain_missing_grid(tokens)}",)
    return FittedMap(head, compact, decide_admission(head, compact, device, progress), notes)

"""What a map is fitted to: the head of the kind it wants, and what verification needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tfa import pipeline
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.maps.stored_head import AnyHead
from tfa.maps.verification import decide_admission
from tfa.method.second_order_head import FittedSpaces, SecondOrderHead
from tfa.types import BuildOptions, HeadSpec, RerankSpec
from tfa.verification.judge import fit_compact_tokens
from tfa.verification.patches import CompactTokens, explain_missing_grid


@dataclass(frozen=True)
class FittedMap:
    """A head with all that a map keeps beside it."""

    head: AnyHead
    spaces: FittedSpaces | None = None  # kept also where another head was chosen
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
    if map_spec.head == "second-order":
        plain = pipeline.fit_second_order(tokens, map_spec.carrier, spec=spec, device=device, progress=progress)
        return add_verification(plain, tokens, map_spec, device, progress)
    compact = fit_compact_tokens(tokens, map_spec.reranking or RerankSpec())
    head, spaces = pipeline.select_head(tokens, spec, compact, device, progress=progress)
    fitted = add_verification(head, tokens, map_spec, device, progress, compact)
    notes = [] if compact is not None else [f"the head was not judged: {explain_missing_grid(tokens)}"]
    if not isinstance(head, SecondOrderHead):
        notes.append("a residual head was chosen; second-order coordinates are kept too, for calibrations to choose")
    return replace(fitted, spaces=spaces, notes=(*notes, *fitted.notes))


def add_verification(
    head: AnyHead,
    tokens: Tokens,
    map_spec: BuildOptions,
    device: str,
    progress: bool | Progress | None = None,
    compact: CompactTokens | None = None,
) -> FittedMap:
    """A fitted head with what verification needs, if the map wants it; `compact` if it was made already."""
    if map_spec.reranking is None:
        return FittedMap(head)
    compact = compact or fit_compact_tokens(tokens, map_spec.reranking)
    notes = () if compact is not None else (f"built without verification: {explain_missing_grid(tokens)}",)
    return FittedMap(head, None, compact, decide_admission(head, compact, device, progress), notes)

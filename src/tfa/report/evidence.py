"""Numbers behind the decisions of a map, for plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfa.core.plain import Value, req, to_plain
from tfa.maps import PlaceMap
from tfa.maps.describe import is_second_order, list_decisions
from tfa.maps.state import DATABASE
from tfa.method.scorer import QuerySide, ResidualSide, Scorer
from tfa.report.neighbors import sample_similarity
from tfa.types import Decision

MOST_EIGENVALUES = 200


class Spectrum(Value):
    """Spectrum of the first construction's descriptors."""

    eigenvalues: list[float] = req("The largest eigenvalues.", max_length=MOST_EIGENVALUES)
    rank: int = req("Number of eigenvalues.", ge=0)
    gamma: float = req("Shaping with the most weight; 0 if nothing is shaped.")
    participation: float = req("Spectral width.", ge=0)


class Similarity(Value):
    """Similarity of the same pairs of images."""

    original: list[float] = req("Similarity of the descriptors.")
    final: list[float] = req("Score of the head.")


class Evidence(Value):
    """Evidence for the decisions of the active head."""

    calibration: str | None = req("Active calibration.")
    decided: list[Decision] = req("Decisions for display.")
    candidates: list[dict[str, Any]] = req("Compared candidates; none for a second-order head.")
    decisions: dict[str, Any] = req("Decisions.")
    reasons: dict[str, str] = req("Reasons.")
    spectrum: Spectrum | None = req("Spectrum of the descriptors; null if the head has none.")
    similarity: Similarity | None = req("Similarity of pairs; null with fewer than two images.")


def collect_evidence(place_map: PlaceMap) -> dict[str, Any]:
    """Collect candidates, decisions, reasons, spectrum and similarities of sampled pairs of the active head.

    A second-order head is the default and has no candidates. The spectrum is null if the head has none; similarities
    are null with fewer than two images.
    """
    head = place_map.state.chosen()
    made = head.decisions
    compared = {} if is_second_order(made) else head.evidence.get("candidates", {})
    candidates = [{"name": name, **numbers, "chosen": name in _chosen(made)} for name, numbers in compared.items()]
    return {
        "calibration": None if head.name == DATABASE else head.name,
        "decided": to_plain(list_decisions(vars(head))),
        "candidates": candidates,
        "decisions": made,
        "reasons": head.evidence["reasons"],
        "spectrum": describe_spectrum(head.stored.scorer),
        "similarity": sample_similarity(head.stored.scorer, place_map.rows),
    }


def _chosen(made: Mapping[str, Any]) -> set[str]:
    """Return the names of the chosen candidates."""
    if "route" in made:  # with target photos only carriers are compared
        return {made["carrier"]}
    plain = {f"{made['assignment']}/{made['carrier']}"}
    return plain | {f"{made['assignment']}/adaptive+cls"} if made["admit_cls"] else plain


def describe_spectrum(scorer: Scorer) -> dict[str, Any] | None:
    """Return eigenvalues of the first construction, the shaping γ with the most weight (0: none), and the width."""
    for number, side in enumerate(scorer.sides):
        if isinstance(side, ResidualSide) and side.geometry is None:
            continue
        shaped = [
            (term.weight, term.gamma) for term in scorer.terms if term.side == number and isinstance(term.gamma, float)
        ]
        return {
            "eigenvalues": side.eigenvalues[:MOST_EIGENVALUES].tolist(),
            "rank": len(side.eigenvalues),
            "gamma": max(shaped)[1] if shaped else 0.0,
            "participation": measure_participation(side),
        }
    return None


def measure_participation(side: QuerySide) -> float:
    """Compute PR^u = (tr M)² / ‖M‖_F², M = Σ v vᵀ / N; for second-order descriptors M = U diag(λ) Uᵀ + μ μᵀ."""
    if isinstance(side, ResidualSide):
        assert side.geometry is not None
        return side.geometry.participation
    values, mean = side.eigenvalues.astype(np.float64), side.mean.astype(np.float64)
    along, level = side.mean_coordinates.astype(np.float64), float(mean @ mean)
    return float((values.sum() + level) ** 2 / (values @ values + 2 * values @ along**2 + level**2))

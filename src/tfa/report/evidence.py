"""What the decisions of a map rest on, in numbers that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfa.core.plain import Value, req, to_plain
from tfa.maps import PlaceMap
from tfa.maps.describe import is_second_order, list_decisions
from tfa.maps.state import DATABASE
from tfa.method.scorer import QuerySide, ResidualSide, Scorer, ScoreTerm
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
    """What the decisions of the head that answers rest on."""

    calibration: str | None = req("Calibration that answers.")
    decided: list[Decision] = req("Decisions for display.")
    candidates: list[dict[str, Any]] = req("Candidates that were compared; none for a second-order head.")
    decisions: dict[str, Any] = req("What was decided.")
    reasons: dict[str, str] = req("Why.")
    spectrum: Spectrum | None = req("Spectrum of the descriptors; null if the head has none.")
    similarity: Similarity | None = req("Similarity of pairs; null with fewer than two images.")


def collect_evidence(place_map: PlaceMap) -> dict[str, Any]:
    """Candidates, decisions and reasons of the head that answers; its spectrum; a sample of pairs.

    A second-order head has no candidates: it is the default.
    The spectrum is null where the chosen head needs none, and so are similarities of a map of fewer than two photos.
    """
    head = place_map.state.chosen()
    made = head.decisions
    compared = {} if is_second_order(made) else head.evidence["candidates"]
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
    """Names of the candidates that were chosen."""
    if "route" in made:  # by target photos carriers alone compete
        return {made["carrier"]}
    plain = {f"{made['assignment']}/{made['carrier']}"}
    return plain | {f"{made['assignment']}/adaptive+cls"} if made["admit_cls"] else plain


def describe_spectrum(scorer: Scorer) -> dict[str, Any] | None:
    """Eigenvalues of the first construction's descriptors, the shaping γ with the most weight, and the spectral width.

    γ is 0 where nothing is shaped.
    """
    for number, side in enumerate(scorer.sides):
        if isinstance(side, ResidualSide) and side.geometry is None:
            continue
        shaped = [(term.weight, term.gamma) for term in scorer.terms if term.side == number and _is_shaped(term)]
        return {
            "eigenvalues": side.eigenvalues[:MOST_EIGENVALUES].tolist(),
            "rank": len(side.eigenvalues),
            "gamma": max(shaped)[1] if shaped else 0.0,
            "participation": measure_participation(side),
        }
    return None


def _is_shaped(term: ScoreTerm) -> bool:
    return isinstance(term.gamma, float)


def measure_participation(side: QuerySide) -> float:
    """PR^u = (tr M)² / ‖M‖_F², M = Σ v vᵀ / N. Of second-order descriptors M = U diag(λ) Uᵀ + μ μᵀ."""
    if isinstance(side, ResidualSide):
        assert side.geometry is not None
        return side.geometry.participation
    values, mean = side.eigenvalues.astype(np.float64), side.mean.astype(np.float64)
    along, level = side.mean_coordinates.astype(np.float64), float(mean @ mean)
    return float((values.sum() + level) ** 2 / (values @ values + 2 * values @ along**2 + level**2))

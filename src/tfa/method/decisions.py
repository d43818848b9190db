"""Decisions of the controllers, the evidence behind them, and their JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from tfa.method.carriers import KernelTerm, carrier_terms
from tfa.method.evidence import Candidate, penalize_dispersion
from tfa.method.residuals import HARD, SOFT

MIXTURE = "mixture"


class JsonDataclass:
    """A frozen dataclass with a JSON form; tuples become lists. `from_dict` restores plain values only."""

    def to_dict(self) -> dict[str, Any]:
        return {entry.name: _to_plain(getattr(self, entry.name)) for entry in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def _to_plain(value: Any) -> Any:
    if isinstance(value, (JsonDataclass, Candidate)):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _to_plain(one) for key, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


# --- decisions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decisions(JsonDataclass):
    """Decisions of the published head."""

    assignment: str  # "hard" | "soft"
    carrier: str  # "original" | "partial" | "adaptive"
    admit_cls: bool
    c: float  # strength of spectral shaping
    beta: float  # strength of centering
    sigma_local: tuple[float, ...]  # median row spread of the local adaptive score, per construction
    sigma_cls: tuple[float, ...]  # median row spread of the global-token cosine; zeros without a global token

    @property
    def branch_weights(self) -> dict[str, float]:
        """Assignments in use and their share of the local score."""
        return {self.assignment: 1.0}

    @property
    def strengths(self) -> dict[str, dict[str, float]]:
        return {self.assignment: {"c": self.c, "beta": self.beta}}

    @property
    def local_weight(self) -> float:
        """Share of the local score if the global token is used."""
        return 0.5

    def kernel(self, assignment: str, construction: int) -> tuple[KernelTerm, ...]:
        """Return the terms of the score of an assignment, equal for every construction."""
        return carrier_terms(self.carrier, self.strengths[assignment]["c"], self.strengths[assignment]["beta"])


@dataclass(frozen=True, kw_only=True)
class TargetDecisions(JsonDataclass):
    """Decisions of the published head, calibrated on target photos."""

    route: str  # "hard" | "soft" | "mixture"
    soft_weight: float  # w_S: share of the soft branch; 0 on the hard route, 1 on the soft one
    strengths: dict[str, dict[str, float]]  # {"soft": {"c": …, "beta": …}} for the branches in use
    carrier: str
    admit_cls: bool
    local_weight: float  # share of the local score if the global token is used
    sigma_local: tuple[float, ...]
    sigma_cls: tuple[float, ...]
    score_calibrated: bool = False

    @property
    def branch_weights(self) -> dict[str, float]:
        """Assignments in use and their share of the local score."""
        if self.route != MIXTURE:
            return {self.route: 1.0}
        return {HARD: 1 - self.soft_weight, SOFT: self.soft_weight}

    def kernel(self, assignment: str, construction: int) -> tuple[KernelTerm, ...]:
        """Return the terms of the score of an assignment, equal for every construction."""
        return carrier_terms(self.carrier, self.strengths[assignment]["c"], self.strengths[assignment]["beta"])


@dataclass(frozen=True, kw_only=True)
class SecondOrderDecisions(JsonDataclass):
    """Decisions of a second-order head."""

    representation: str  # "second_order"; "hard" or "soft" only in heads that the benchmark's judge chose
    carrier: str
    centring: bool = False  # whether queries are centered on the target photos
    score_calibrated: bool = False
    c: float = 0.0
    beta: float = 0.0
    # σ_0, σ_P and σ_⅝ of each construction, by which `blend` and `tempered` bring their terms to one scale.
    sigma_original: tuple[float, ...] = ()
    sigma_partial: tuple[float, ...] = ()
    sigma_tempered: tuple[float, ...] = ()

    # A second-order head has no global token and one representation.
    admit_cls = False
    local_weight = 1.0

    @property
    def branch_weights(self) -> dict[str, float]:
        return {self.representation: 1.0}

    def kernel(self, representation: str, construction: int) -> tuple[KernelTerm, ...]:
        """Return the terms of the score under one construction."""
        spreads = (1.0, 1.0, 1.0)
        if self.sigma_original:
            each = (self.sigma_original, self.sigma_partial, self.sigma_tempered)
            spreads = (each[0][construction], each[1][construction], each[2][construction])
        return carrier_terms(self.carrier, self.c, self.beta, spreads)

    @property
    def name(self) -> str:
        """Name of the head, such as second_order/partial+centring+score."""
        more = "+centring" * self.centring + "+score" * self.score_calibrated
        return f"{self.representation}/{self.carrier}{more}"


AnyDecisions = Decisions | TargetDecisions | SecondOrderDecisions


# --- evidence --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpectralStrengths(JsonDataclass):
    """Spectral statistics of one assignment, per construction, and the strengths c and β."""

    rho: tuple[float, ...]
    alpha: tuple[float, ...]
    participation: tuple[float, ...]
    displacement: tuple[float, ...]
    c: float
    beta: float

    @classmethod
    def of(cls, rho: list[float], participation: list[float], displacement: list[float]) -> SpectralStrengths:
        """Compute c and β from energy correlation (ρ), spectral width (PR^u) and displacement of the mean."""
        # α = clip(ρ)^{2·PR^u}: the wider the spectrum, the closer to 1 the correlation must be.
        alpha = [float(np.clip(r, 0, 1) ** (2 * p)) for r, p in zip(rho, participation, strict=True)]
        beta = float(np.clip(np.median(displacement) * (1 - penalize_dispersion(rho)), 0, 1))
        values = (tuple(rho), tuple(alpha), tuple(participation), tuple(displacement))
        return cls(*values, penalize_dispersion(alpha), beta)


@dataclass(frozen=True)
class DatabaseEvidence(JsonDataclass):
    """Evidence of the database-only controller, and its reasons in words."""

    pseudo_queries: int
    assignments: dict[str, SpectralStrengths]
    candidates: dict[str, Candidate]
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RouteEvidence(JsonDataclass):
    """Information and relation of both assignments on target photos, relative to the database."""

    information_target: dict[str, float]  # mean I of the calibration images, per assignment
    information_database: dict[str, float]  # mean I of the pseudo queries
    capacity: dict[str, float]  # C: their ratio
    interval_capacity: tuple[float, float]  # of log(C_S / C_H)
    m_A: float  # median of J_S − J_H in the anchor-mass view
    m_G: float  # median of J_S − J_H in the view of whole descriptors
    interval_A: tuple[float, float]
    interval_G: tuple[float, float]


@dataclass(frozen=True)
class BranchQuality(JsonDataclass):
    """Quality of a score branch (local or global) on target photos."""

    B: float  # information of target and database rows, the smaller
    J: float  # relation
    H: float  # extreme support
    Q: float  # (B J H)^{1/3}
    T: float  # top-1 z-score of target rows, divided by that of pseudo queries


@dataclass(frozen=True)
class GlobalEvidence(JsonDataclass):
    """Comparison of the global token with the local score."""

    local: BranchQuality
    cls: BranchQuality
    r_T: float
    r_C: float
    r_J: float
    corr: tuple[float, ...]  # correlation of row spreads, per construction


@dataclass(frozen=True)
class TargetEvidence(JsonDataclass):
    """Evidence of the target-calibrated controller, and its reasons in words."""

    target_images: int
    pseudo_queries: int
    route: RouteEvidence
    assignments: dict[str, SpectralStrengths]  # for the branches in use, database against target
    candidates: dict[str, Candidate]
    global_token: GlobalEvidence | None
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the values of `route` at the top level."""
        values = super().to_dict()
        counts = {name: values.pop(name) for name in ("target_images", "pseudo_queries")}
        return {**counts, **values.pop("route"), **values}


@dataclass(frozen=True)
class SecondOrderEvidence(JsonDataclass):
    """Measurements for a second-order head, and its reasons in words."""

    strengths: dict[str, SpectralStrengths]  # by representation; used by the adaptive carrier
    reasons: dict[str, str]


AnyEvidence = DatabaseEvidence | TargetEvidence | SecondOrderEvidence

"""What a controller decides, every number it looked at, and how both are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from tfa.method.carriers import SIGMAS, KernelTerm, carrier_terms
from tfa.method.evidence import Candidate, penalize_dispersion
from tfa.method.residuals import HARD, SOFT

MIXTURE = "mixture"


class JsonDataclass:
    """A frozen dataclass that goes to JSON and, if it holds nothing but plain values, back; tuples are lists there."""

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
    """The fitted choices that make a head."""

    assignment: str  # "hard" | "soft"
    carrier: str  # "original" | "partial" | "adaptive"
    admit_cls: bool
    c: float  # strength of spectral shaping
    beta: float  # strength of centring
    sigma_local: tuple[float, ...]  # median row spread of the local adaptive score, per construction
    sigma_cls: tuple[float, ...]  # the same of the global-token cosine; zeros where there is none

    @property
    def branch_weights(self) -> dict[str, float]:
        """Assignments in use and their share of the local score."""
        return {self.assignment: 1.0}

    @property
    def strengths(self) -> dict[str, dict[str, float]]:
        return {self.assignment: {"c": self.c, "beta": self.beta}}

    @property
    def local_weight(self) -> float:
        """Share of the local score where the global token is used."""
        return 0.5

    def kernel(self, assignment: str, construction: int) -> tuple[KernelTerm, ...]:
        """The terms of the score of an assignment; here the same under every construction."""
        return carrier_terms(self.carrier, self.strengths[assignment]["c"], self.strengths[assignment]["beta"])


@dataclass(frozen=True, kw_only=True)
class TargetDecisions(JsonDataclass):
    """The fitted choices of a head that was calibrated on target photos."""

    route: str  # "hard" | "soft" | "mixture"
    soft_weight: float  # w_S: share of the soft branch; 0 on the hard route, 1 on the soft one
    strengths: dict[str, dict[str, float]]  # {"soft": {"c": …, "beta": …}} of the branches in use
    carrier: str
    admit_cls: bool
    local_weight: float  # share of the local score where the global token is used
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
        """The terms of the score of an assignment; here the same under every construction."""
        return carrier_terms(self.carrier, self.strengths[assignment]["c"], self.strengths[assignment]["beta"])


@dataclass(frozen=True, kw_only=True)
class SecondOrderDecisions(JsonDataclass):
    """The fitted choices of a second-order head."""

    representation: str  # "second_order"; of a head that the benchmark's judge chose also "hard" or "soft"
    carrier: str
    centring: bool = False  # are queries centred on the target photos?
    score_calibrated: bool = False
    c: float = 0.0
    beta: float = 0.0
    # Spreads of each construction, by the names of `carriers.SIGMAS`; in JSON they are fields of their own.
    sigmas: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    # It has no global token, and one representation.
    admit_cls = False
    local_weight = 1.0

    @property
    def branch_weights(self) -> dict[str, float]:
        return {self.representation: 1.0}

    def kernel(self, representation: str, construction: int) -> tuple[KernelTerm, ...]:
        """The terms of the score under one construction."""
        sigmas = {name: each[construction] for name, each in self.sigmas.items() if each}
        return carrier_terms(self.carrier, self.c, self.beta, sigmas)

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        sigmas = plain.pop("sigmas")
        return {**plain, **{name: list(sigmas.get(name, ())) for name in SIGMAS}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        rest = {key: value for key, value in values.items() if key not in SIGMAS}
        return cls(**rest, sigmas={name: tuple(values[name]) for name in SIGMAS if values.get(name)})

    @property
    def name(self) -> str:
        """The head in one word: second_order/partial+centring+score."""
        more = "+centring" * self.centring + "+score" * self.score_calibrated
        return f"{self.representation}/{self.carrier}{more}"


AnyDecisions = Decisions | TargetDecisions | SecondOrderDecisions


# --- evidence --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpectralStrengths(JsonDataclass):
    """Split-database spectral statistics of one assignment, one value per construction, and what follows."""

    rho: tuple[float, ...]
    alpha: tuple[float, ...]
    participation: tuple[float, ...]
    displacement: tuple[float, ...]
    c: float
    beta: float

    @classmethod
    def of(cls, rho: list[float], participation: list[float], displacement: list[float]) -> SpectralStrengths:
        """c and β from what the constructions say of energy (ρ), spectral width (PR^u) and the mean's displacement."""
        # α = clip(ρ)^{2·PR^u}: the wider the spectrum, the closer to 1 the correlation must be.
        alpha = [float(np.clip(r, 0, 1) ** (2 * p)) for r, p in zip(rho, participation, strict=True)]
        beta = float(np.clip(np.median(displacement) * (1 - penalize_dispersion(rho)), 0, 1))
        values = (tuple(rho), tuple(alpha), tuple(participation), tuple(displacement))
        return cls(*values, penalize_dispersion(alpha), beta)


@dataclass(frozen=True)
class DatabaseEvidence(JsonDataclass):
    """Every number the database-only controller looked at, and its reasons in words."""

    pseudo_queries: int
    assignments: dict[str, SpectralStrengths]
    candidates: dict[str, Candidate]
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RouteEvidence(JsonDataclass):
    """Information and relation of both assignments on target photos, against the database's own."""

    information_target: dict[str, float]  # mean I of the calibration images, per assignment
    information_database: dict[str, float]  # of the pseudo queries
    capacity: dict[str, float]  # C: their ratio
    interval_capacity: tuple[float, float]  # of log(C_S / C_H)
    m_A: float  # median of J_S − J_H in the anchor-mass view
    m_G: float  # and in the view of whole descriptors
    interval_A: tuple[float, float]
    interval_G: tuple[float, float]


@dataclass(frozen=True)
class BranchQuality(JsonDataclass):
    """How much a score branch (local or global) keeps on target photos."""

    B: float  # information kept by both target and database rows
    J: float  # relation
    H: float  # extreme support
    Q: float  # (B J H)^{1/3}
    T: float  # top-1 z-score of target rows over that of pseudo queries


@dataclass(frozen=True)
class GlobalEvidence(JsonDataclass):
    """The global token against the local score."""

    local: BranchQuality
    cls: BranchQuality
    r_T: float
    r_C: float
    r_J: float
    corr: tuple[float, ...]  # of row spreads, per construction


@dataclass(frozen=True)
class TargetEvidence(JsonDataclass):
    """Every number the target-calibrated controller looked at, and its reasons in words."""

    target_images: int
    pseudo_queries: int
    route: RouteEvidence
    assignments: dict[str, SpectralStrengths]  # of the branches in use, database against target
    candidates: dict[str, Candidate]
    global_token: GlobalEvidence | None
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The numbers of the route stand beside the others, not below them."""
        values = super().to_dict()
        counts = {name: values.pop(name) for name in ("target_images", "pseudo_queries")}
        return {**counts, **values.pop("route"), **values}


@dataclass(frozen=True)
class SecondOrderEvidence(JsonDataclass):
    """What was measured for a second-order head, and why it is as it is, in words."""

    strengths: dict[str, SpectralStrengths]  # by representation; the adaptive carrier uses them
    reasons: dict[str, str]


AnyEvidence = DatabaseEvidence | TargetEvidence | SecondOrderEvidence

"""What a controller decides, and how it is written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from tfa.method.evidence import Candidate, dispersion_penalised


class Listed:
    """A frozen dataclass that goes to JSON and back; tuples are lists there."""

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)  # type: ignore[call-overload]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


@dataclass(frozen=True, kw_only=True)
class Decisions(Listed):
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


@dataclass(frozen=True)
class SpectralStrengths(Listed):
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
        beta = float(np.clip(np.median(displacement) * (1 - dispersion_penalised(rho)), 0, 1))
        values = (tuple(rho), tuple(alpha), tuple(participation), tuple(displacement))
        return cls(*values, dispersion_penalised(alpha), beta)


@dataclass(frozen=True)
class DatabaseEvidence:
    """Every number the database-only controller looked at, and its reasons in words."""

    pseudo_queries: int
    assignments: dict[str, SpectralStrengths]
    candidates: dict[str, Candidate]
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pseudo_queries": self.pseudo_queries,
            "assignments": {name: strengths.to_dict() for name, strengths in self.assignments.items()},
            "candidates": {name: candidate.to_dict() for name, candidate in self.candidates.items()},
            "reasons": dict(self.reasons),
        }

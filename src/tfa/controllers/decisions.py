"""What a controller decides, and how it is written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tfa.evidence import Candidate


@dataclass(frozen=True, kw_only=True)
class Decisions:
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
        """Share of the local score where the global token joins in."""
        return 0.5

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        frozen: dict[str, Any] = dict(values)
        frozen.update({key: tuple(value) for key, value in values.items() if isinstance(value, list)})
        return cls(**frozen)


@dataclass(frozen=True)
class SpectralStrengths:
    """Split-database spectral statistics of one assignment, one value per construction, and what follows."""

    rho: tuple[float, ...]
    alpha: tuple[float, ...]
    participation: tuple[float, ...]
    displacement: tuple[float, ...]
    c: float
    beta: float

    def to_dict(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


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

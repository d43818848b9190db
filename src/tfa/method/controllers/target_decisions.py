"""What the target-calibrated controller decides, and every number it looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tfa.method.controllers.decisions import Listed, SpectralStrengths
from tfa.method.evidence import Candidate
from tfa.method.residuals import HARD, SOFT

MIXTURE = "mixture"


@dataclass(frozen=True, kw_only=True)
class TargetDecisions(Listed):
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


@dataclass(frozen=True)
class RouteEvidence:
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
class BranchQuality:
    """How much a score branch (local or global) keeps on target photos."""

    B: float  # information kept by both target and database rows
    J: float  # relation
    H: float  # extreme support
    Q: float  # (B J H)^{1/3}
    T: float  # top-1 z-score of target rows over that of pseudo queries


@dataclass(frozen=True)
class GlobalEvidence:
    """The global token against the local score."""

    local: BranchQuality
    cls: BranchQuality
    r_T: float
    r_C: float
    r_J: float
    corr: tuple[float, ...]  # of row spreads, per construction


@dataclass(frozen=True)
class TargetEvidence:
    """Every number the target-calibrated controller looked at, and its reasons in words."""

    target_images: int
    pseudo_queries: int
    route: RouteEvidence
    assignments: dict[str, SpectralStrengths]  # of the branches in use, database against target
    candidates: dict[str, Candidate]
    global_token: GlobalEvidence | None
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target_images": self.target_images,
            "pseudo_queries": self.pseudo_queries,
            **_listed(asdict(self.route)),
            "assignments": {name: strengths.to_dict() for name, strengths in self.assignments.items()},
            "candidates": {name: candidate.to_dict() for name, candidate in self.candidates.items()},
            "global_token": None if self.global_token is None else _listed(asdict(self.global_token)),
            "reasons": dict(self.reasons),
        }


def _listed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

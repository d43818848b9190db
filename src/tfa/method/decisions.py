"""Decisions of the controllers, the evidence behind them, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfa.core.plain import Value, opt, req
from tfa.method.carriers import CARRIER_KERNELS, SIGMAS, KernelTerm, carrier_terms
from tfa.method.evidence import Candidate, penalize_dispersion
from tfa.method.residuals import HARD, SOFT

MIXTURE = "mixture"
_CARRIERS = "|".join(CARRIER_KERNELS)


def gather_sigmas(values: dict[str, Any]) -> dict[str, Any]:
    """Collect the spreads, which are fields of their own in JSON."""
    rest = {key: value for key, value in values.items() if key not in SIGMAS}
    return {**rest, "sigmas": {key: value for key, value in values.items() if key in SIGMAS}}


class Decisions(Value):
    """Decisions of the published head."""

    assignment: str = req("Assignment of patches to words.", pattern=f"{HARD}|{SOFT}")
    carrier: str = req("Carrier of the score.", pattern=_CARRIERS)
    admit_cls: bool = req("Whether the global token is used.")
    c: float = req("Strength of spectral shaping.", ge=0, le=1)
    beta: float = req("Strength of centering.", ge=0, le=1)
    sigma_local: tuple[float, ...] = req("Median row spread of the local score.", min_length=3, max_length=3)
    sigma_cls: tuple[float, ...] = req("Median row spread of the global token.", min_length=3, max_length=3)

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


class TargetDecisions(Value):
    """Decisions of the published head, calibrated on target photos."""

    route: str = req("Assignment of patches to words.", pattern=f"{HARD}|{SOFT}|{MIXTURE}")
    soft_weight: float = req("w_S: share of the soft branch.", ge=0, le=1)
    strengths: dict[str, dict[str, float]] = req("c and beta of each branch in use.", ge=0, le=1)
    carrier: str = req("Carrier of the score.", pattern=_CARRIERS)
    admit_cls: bool = req("Whether the global token is used.")
    local_weight: float = req("Share of the local score if the global token is used.", ge=0, le=1)
    sigma_local: tuple[float, ...] = req("Median row spread of the local score.", min_length=3, max_length=3)
    sigma_cls: tuple[float, ...] = req("Median row spread of the global token.", min_length=3, max_length=3)
    score_calibrated: bool = opt(False, "Whether scores are calibrated.")

    @property
    def branch_weights(self) -> dict[str, float]:
        """Assignments in use and their share of the local score."""
        if self.route != MIXTURE:
            return {self.route: 1.0}
        return {HARD: 1 - self.soft_weight, SOFT: self.soft_weight}

    def kernel(self, assignment: str, construction: int) -> tuple[KernelTerm, ...]:
        """Return the terms of the score of an assignment, equal for every construction."""
        return carrier_terms(self.carrier, self.strengths[assignment]["c"], self.strengths[assignment]["beta"])


class SecondOrderDecisions(Value):
    """Decisions of a second-order head."""

    # A head that the benchmark's judge chose may also be hard or soft.
    representation: str = req("Representation of an image.", pattern=f"second_order|{HARD}|{SOFT}")
    carrier: str = req("Carrier of the score.", pattern=_CARRIERS)
    centring: bool = opt(False, "Whether queries are centered on the target photos.")
    score_calibrated: bool = opt(False, "Whether scores are calibrated.")
    c: float = opt(0.0, "Strength of spectral shaping.", ge=0, le=1)
    beta: float = opt(0.0, "Strength of centering.", ge=0, le=1)
    # In JSON, spreads are fields of their own.
    sigmas: Mapping[str, tuple[float, ...]] = opt({}, "Row spreads of each construction, by the names of `SIGMAS`.")

    # A second-order head has no global token and one representation.
    admit_cls = False
    local_weight = 1.0

    @property
    def branch_weights(self) -> dict[str, float]:
        return {self.representation: 1.0}

    def kernel(self, representation: str, construction: int) -> tuple[KernelTerm, ...]:
        """Return the terms of the score under one construction."""
        sigmas = {name: each[construction] for name, each in self.sigmas.items() if each}
        return carrier_terms(self.carrier, self.c, self.beta, sigmas)

    def to_dict(self) -> dict[str, Any]:
        plain = super().to_dict()
        sigmas = plain.pop("sigmas")
        return {**plain, **{name: list(sigmas.get(name, ())) for name in SIGMAS}}

    @classmethod
    def gather(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Collect the spreads."""
        return gather_sigmas({key: value for key, value in values.items() if key not in SIGMAS or value != []})

    @property
    def name(self) -> str:
        """Name of the head: representation, carrier and calibration, such as `second_order/partial+score`."""
        more = "+centring" * self.centring + "+score" * self.score_calibrated
        return f"{self.representation}/{self.carrier}{more}"


AnyDecisions = Decisions | TargetDecisions | SecondOrderDecisions


class SpectralStrengths(Value, kw_only=False):
    """Spectral statistics of one assignment, per construction, and the strengths c and β."""

    rho: tuple[float, ...] = req("Correlation of spectral energy.", min_length=1, max_length=3)
    alpha: tuple[float, ...] = req("Reliability of the spectrum.", min_length=1, max_length=3)
    participation: tuple[float, ...] = req("Spectral width.", min_length=1, max_length=3)
    displacement: tuple[float, ...] = req("Displacement of the mean.", min_length=1, max_length=3)
    c: float = req("Strength of spectral shaping.")
    beta: float = req("Strength of centering.")

    @classmethod
    def of(cls, rho: list[float], participation: list[float], displacement: list[float]) -> SpectralStrengths:
        """Compute c and β from energy correlation (ρ), spectral width (PR^u) and displacement of the mean."""
        # α = clip(ρ)^{2·PR^u}: the wider the spectrum, the closer to 1 the correlation must be.
        alpha = [float(np.clip(r, 0, 1) ** (2 * p)) for r, p in zip(rho, participation, strict=True)]
        beta = float(np.clip(np.median(displacement) * (1 - penalize_dispersion(rho)), 0, 1))
        values = (tuple(rho), tuple(alpha), tuple(participation), tuple(displacement))
        return cls(*values, penalize_dispersion(alpha), beta)


class Flip(Value, kw_only=False):
    """The smallest change of a number that gives a decision another outcome."""

    change: float = req("Size of the change.")
    choice: str = req("Outcome after the change.")


_MARGINS = "Smallest change that flips each decision, by decision and unit (photos, relation, …)."
# Units in photos: change of support, of agreement, of both at a time.
SUPPORT_PHOTOS, AGREEMENT_PHOTOS, JOINT_PHOTOS = "photos", "photos of agreement", "photos of both"


def list_close_decisions(margins: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """List the decisions that a change of less than one photo flips, with their flips, the closest first."""
    close = []
    for name, units in margins.items():
        flips = [units[unit] for unit in (SUPPORT_PHOTOS, AGREEMENT_PHOTOS, JOINT_PHOTOS) if unit in units]
        # Older evidence has agreement as a share, which is a known number of photos only if it is 0.
        flips += [flip for unit, flip in units.items() if unit == "agreement" and flip["change"] == 0]
        close += [(name, flip) for flip in sorted(flips, key=_photos)[:1] if _photos(flip) < 1]
    return sorted(close, key=lambda one: _photos(one[1]))


def _photos(flip: Mapping[str, Any]) -> float:
    """Return the photos of a flip, without the rounding errors of differences."""
    return round(flip["change"], 9)


class DatabaseEvidence(Value, kw_only=False, extras=True):
    """Evidence of the database-only controller, and its reasons in words."""

    pseudo_queries: int = req("Map images used as queries.", ge=0)
    assignments: dict[str, SpectralStrengths] = req("Spectral statistics by assignment.")
    candidates: dict[str, Candidate] = req("Ways to score that were compared.")
    reasons: dict[str, str] = opt({}, "Why.")
    margins: dict[str, dict[str, Flip]] = opt({}, _MARGINS)


class RouteEvidence(Value, kw_only=False):
    """Information and relation of both assignments on target photos, relative to the database."""

    information_target: dict[str, float] = req("Mean I of the calibration images, by assignment.")
    information_database: dict[str, float] = req("Mean I of the pseudo queries, by assignment.")
    capacity: dict[str, float] = req("C: ratio of the two.")
    interval_capacity: tuple[float, float] = req("Interval of log(C_S / C_H).")
    m_A: float = req("Median of J_S − J_H in the anchor-mass view.")
    m_G: float = req("Median of J_S − J_H in the view of whole descriptors.")
    interval_A: tuple[float, float] = req("Interval of m_A.")
    interval_G: tuple[float, float] = req("Interval of m_G.")


class BranchQuality(Value, kw_only=False):
    """Quality of a score branch (local or global) on target photos."""

    B: float = req("Information kept by both target and database rows.")
    J: float = req("Relation.")
    H: float = req("Extreme support.")
    Q: float = req("(B J H)^{1/3}.")
    T: float = req("Top-1 z-score of target rows over that of pseudo queries.")


class GlobalEvidence(Value, kw_only=False):
    """Comparison of the global token with the local score."""

    local: BranchQuality = req("Quality of the local score.")
    cls: BranchQuality = req("Quality of the global token.")
    r_T: float = req("Ratio of T.")
    r_C: float = req("Ratio of B.")
    r_J: float = req("Ratio of J.")
    corr: tuple[float, ...] = req("Correlation of row spreads, by construction.")


class TargetEvidence(Value, kw_only=False):
    """Evidence of the target-calibrated controller, and its reasons in words."""

    target_images: int = req("Calibration photos.")
    pseudo_queries: int = req("Map images used as queries.")
    route: RouteEvidence = req("Evidence for the assignment.")
    assignments: dict[str, SpectralStrengths] = req("Statistics of the branches in use, database against target.")
    candidates: dict[str, Candidate] = req("Ways to score that were compared.")
    global_token: GlobalEvidence | None = req("The global token; null without one.")
    reasons: dict[str, str] = opt({}, "Why.")
    margins: dict[str, dict[str, Flip]] = opt({}, _MARGINS)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the values of `route` at the top level."""
        values = super().to_dict()
        counts = {name: values.pop(name) for name in ("target_images", "pseudo_queries")}
        return {**counts, **values.pop("route"), **values}


class SecondOrderEvidence(Value, kw_only=False, extras=True):
    """Measurements for a second-order head, and its reasons in words."""

    strengths: dict[str, SpectralStrengths] = req("Statistics by representation; the adaptive carrier uses them.")
    reasons: dict[str, str] = req("Why.")


AnyEvidence = DatabaseEvidence | TargetEvidence | SecondOrderEvidence

"""The second-order head, the default: scores from fitted spaces and decisions.

database only    the carrier `tempered`
target photos    the carrier `partial`, queries centered on the photos, scores calibrated from 8 photos on
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.core.arrays import Backend, Spill
from tfa.core.progress import Progress, SilentProgress, track_progress
from tfa.core.tokens import Tokens
from tfa.method.branch import DatabaseSplit, ScoreBlock
from tfa.method.carriers import CARRIER_WORDS, SIGMAS, KernelTerm
from tfa.method.decisions import SecondOrderDecisions, SecondOrderEvidence, SpectralStrengths
from tfa.method.head import ENSEMBLE, BaseHead, ReplicaName
from tfa.method.pseudo_queries import pseudo_facts, take_median_spread
from tfa.method.scorer import Scorer, calibrate_scorer, check_token_channels, join_scorers
from tfa.method.second_order import SECOND_ORDER, describe_second_order, fit_directions
from tfa.method.second_order_space import MAX_PSEUDO, SecondOrderSpace, fit_space
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import HeadSpec

DATABASE_CARRIER, TARGET_CARRIER = "tempered", "partial"  # defaults without and with target photos
SCORE_FROM = 8  # number of target photos from which scores are calibrated; with fewer, only centering is better
_PSEUDO_COUNTS = 8  # weight of the database mean, in photos, when target photos are averaged
_REPRESENTATION = "default: describes how the patches of an image vary together"


@dataclass(frozen=True)
class FittedSpaces:
    """Spaces fitted to the database, before any decision. A calibration reuses them."""

    spec: HeadSpec
    spaces: tuple[SecondOrderSpace, ...]  # one per fitted construction; a map may keep only the first
    strengths: SpectralStrengths
    sigmas: Mapping[str, tuple[float, ...]]  # spreads of each construction, by the names of `carriers.SIGMAS`
    dtype: str

    def decisions(self, carrier: str, *, centring: bool = False, score: bool = False) -> SecondOrderDecisions:
        """Return the decisions for a second-order head with this carrier."""
        return SecondOrderDecisions(
            representation=SECOND_ORDER,
            carrier=carrier,
            centring=centring,
            score_calibrated=score,
            c=self.strengths.c,
            beta=self.strengths.beta,
            sigmas=self.sigmas,
        )

    def check(self, tokens: Tokens) -> None:
        """Raise if `tokens` do not fit the encoder of this head."""
        check_token_channels(tokens, self.spaces[0].side.channels, None)


@dataclass(frozen=True)
class SecondOrderHead(BaseHead):
    """A fitted head. Immutable; every construction is a complete retriever (a replica)."""

    fitted: FittedSpaces
    decisions: SecondOrderDecisions
    evidence: SecondOrderEvidence
    scorers: Mapping[ReplicaName, Scorer]
    data_used: str = "database"

    @property
    def spec(self) -> HeadSpec:
        return self.fitted.spec


def fit_spaces(
    tokens: Tokens,
    spec: HeadSpec,
    backend: Backend,
    dtype: str,
    progress: Progress | None = None,
    constructions: int = len(CONSTRUCTIONS),
) -> FittedSpaces:
    """Fit directions, descriptors and PCA of the first constructions, which do not depend on their number."""
    spill, progress = Spill(), progress or SilentProgress()
    directions = fit_directions(tokens, spec.max_patches, constructions=constructions, dtype=dtype)
    described = describe_second_order(tokens, directions, dtype=dtype, spill=spill, progress=progress)
    split = DatabaseSplit.of(len(tokens), limit_pseudo_queries(spec))
    keys = track_progress(range(constructions), constructions, "spectra", progress)
    grid = tokens.grid if tokens.depths > 1 else None
    spaces = tuple(fit_space(described[s], directions[s], split, spec.max_rank, backend, spill, grid) for s in keys)
    return measure_spaces(spec, spaces, dtype)


def limit_pseudo_queries(spec: HeadSpec) -> HeadSpec:
    """Limit the number of pseudo queries to `MAX_PSEUDO`."""
    return replace(spec, max_pseudo=min(spec.max_pseudo, MAX_PSEUDO))


def measure_spaces(spec: HeadSpec, spaces: tuple[SecondOrderSpace, ...], dtype: str) -> FittedSpaces:
    """Measure strengths and spreads of fitted spaces."""
    facts = [space.facts for space in spaces if space.facts is not None]
    strengths = SpectralStrengths.of(
        [one.correlation for one in facts], [one.participation for one in facts], [one.displacement for one in facts]
    )
    sigmas = {
        name: tuple(measure_spread(space.pseudo_scores([KernelTerm(1.0, sigma.gamma)]), space) for space in spaces)
        for name, sigma in SIGMAS.items()
    }
    return FittedSpaces(spec, spaces, strengths, sigmas, dtype)


def measure_spread(block: ScoreBlock, space: SecondOrderSpace) -> float:
    """Return σ: the median spread of a pseudo query's row; 1 if all scores are equal."""
    return take_median_spread(pseudo_facts(block, len(space.pseudo), space.mask, len(space))) or 1.0


def carrier_spread(
    carrier: str, block: ScoreBlock, space: SecondOrderSpace, target_scores: Callable[[], np.ndarray]
) -> float:
    """Return σ, by which scores are divided before calibration.

    Full whitening makes the descriptors it was fitted on orthogonal, so their scores have no meaningful spread. Scores
    (c, m) of target photos are used instead.
    """
    if carrier != "full":
        return measure_spread(block, space)
    return float(np.median(target_scores().std(axis=1))) or 1.0


def target_shift(coordinates: np.ndarray) -> np.ndarray:
    """Return Uᵀ(μ' − μ), (r,), from target coordinates (c, r); the database mean weighs as much as 8 photos."""
    return coordinates.sum(axis=0, dtype=np.float64) / (len(coordinates) + _PSEUDO_COUNTS)


def decide_carrier(fitted: FittedSpaces, carrier: str) -> tuple[SecondOrderDecisions, SecondOrderEvidence]:
    """Decide a head without target photos: only its carrier."""
    how = "default" if carrier == DATABASE_CARRIER else "set when the head was fitted"
    reasons = {
        "representation": _REPRESENTATION,
        "carrier": f"{how}: {CARRIER_WORDS[carrier]}",
        "centring": "default: needs calibration photos",
        "score": "default: needs calibration photos",
    }
    return fitted.decisions(carrier), SecondOrderEvidence({SECOND_ORDER: fitted.strengths}, reasons)


def decide_calibration(
    fitted: FittedSpaces, photos: int, score: bool | None = None
) -> tuple[SecondOrderDecisions, SecondOrderEvidence]:
    """Decide a head for a number of target photos; `score` overrides whether scores are calibrated."""
    decisions = fitted.decisions(TARGET_CARRIER, centring=True, score=photos >= SCORE_FROM if score is None else score)
    reasons = {
        "representation": _REPRESENTATION,
        "carrier": f"default with calibration photos: {CARRIER_WORDS[TARGET_CARRIER]}",
        "centring": "default with calibration photos",
        "score": "set by the caller" if score is not None else f"default from {SCORE_FROM} photos on; {photos} used",
    }
    return decisions, SecondOrderEvidence({SECOND_ORDER: fitted.strengths}, reasons)


def assemble_second_order(
    fitted: FittedSpaces, decisions: SecondOrderDecisions, evidence: SecondOrderEvidence, target: Tokens | None = None
) -> SecondOrderHead:
    """Build a head from its decisions. `target` are the photos for centering and score calibration."""
    spill = Spill()
    scorers: dict[ReplicaName, Scorer] = {}
    for s, space in enumerate(fitted.spaces):
        kernel = decisions.kernel(SECOND_ORDER, s)
        scorer = space.scorer(kernel, fitted.dtype, spill)
        scorers[s] = calibrated_scorer(scorer, decisions, target, kernel, space)
    scorers[ENSEMBLE] = join_scorers([scorers[s] for s in range(len(fitted.spaces))])
    data_used = "database" if target is None else "target"
    return SecondOrderHead(fitted, decisions, evidence, scorers, data_used)


def calibrated_scorer(
    scorer: Scorer,
    decisions: SecondOrderDecisions,
    target: Tokens | None,
    kernel: Sequence[KernelTerm],
    space: SecondOrderSpace,
) -> Scorer:
    """Center the scorer on target photos and subtract their mean scores, as decided."""
    if target is None or not (decisions.centring or decisions.score_calibrated):
        return scorer
    [view] = scorer.describe(target)
    if decisions.centring:
        assert view.coordinates is not None
        side = replace(scorer.sides[0], shift=target_shift(view.coordinates))
        scorer = replace(scorer, sides=(side,))
    if not decisions.score_calibrated:
        return scorer
    sigma = carrier_spread(decisions.carrier, space.pseudo_scores(kernel), space, lambda: scorer.scores(target))
    return calibrate_scorer(scorer, sigma, target)

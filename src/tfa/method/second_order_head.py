"""The second-order head (ours, beyond the paper): spaces and decisions, turned into scores.

database alone   the carrier `tempered`
target photos    the carrier `partial`, queries centered on them, scores calibrated from 8 photos on
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
from tfa.method.evidence import Mask
from tfa.method.head import ENSEMBLE, BaseHead, ReplicaName, shifted
from tfa.method.pseudo_queries import pseudo_facts, take_median_spread
from tfa.method.scorer import Scorer, calibrate_scorer, check_token_channels, join_scorers
from tfa.method.second_order import SECOND_ORDER, describe_second_order, fit_directions
from tfa.method.second_order_space import MAX_PSEUDO, SecondOrderSpace, fit_space
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import HeadSpec

DATABASE_CARRIER, TARGET_CARRIER = "tempered", "partial"  # defaults without and with target photos
SCORE_FROM = 8  # target photos from which scores are calibrated: with fewer, centering alone does better
_PSEUDO_COUNTS = 8  # photos at the database's mean that target photos are averaged with
_REPRESENTATION = "default: how the patches of an image vary together, see the documentation"


@dataclass(frozen=True)
class FittedSpaces:
    """What is fitted to the database before anything is decided, and what a calibration keeps of a head."""

    spec: HeadSpec
    spaces: tuple[SecondOrderSpace, ...]  # of each construction that was fitted; a map may keep the first alone
    strengths: SpectralStrengths
    sigmas: Mapping[str, tuple[float, ...]]  # spreads of each construction, by the names of `carriers.SIGMAS`
    dtype: str

    def decisions(self, carrier: str, *, centring: bool = False, score: bool = False) -> SecondOrderDecisions:
        """The second-order head of that carrier."""
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
        """Raise if `tokens` do not come from the encoder this was fitted with."""
        check_token_channels(tokens, self.spaces[0].side.channels, None)


@dataclass(frozen=True)
class SecondOrderHead(BaseHead):
    """A fitted retriever. Immutable; every construction is a complete retriever of its own (a replica)."""

    fitted: FittedSpaces
    decisions: SecondOrderDecisions
    evidence: SecondOrderEvidence
    scorers: Mapping[ReplicaName, Scorer]
    data_used: str = "database"

    @property
    def spec(self) -> HeadSpec:
        return self.fitted.spec

    def pseudo_scores(self, construction: int) -> tuple[ScoreBlock, Mask]:
        """Scores of the pseudo queries under one construction, and what they may not answer."""
        space, scorer = self.fitted.spaces[construction], self.scorers[construction]
        block = space.pseudo_scores(self.decisions.kernel(SECOND_ORDER, construction))
        if self.decisions.score_calibrated:
            block = shifted(block, measure_spread(block, space), scorer.bias)
        return block, space.mask


def fit_spaces(
    tokens: Tokens,
    spec: HeadSpec,
    backend: Backend,
    dtype: str,
    progress: Progress | None = None,
    constructions: int = len(CONSTRUCTIONS),
) -> FittedSpaces:
    """Fit directions, descriptors and PCA of the first constructions; each is the same however many are fitted."""
    spill, progress = Spill(), progress or SilentProgress()
    directions = fit_directions(tokens, spec.max_patches, constructions=constructions, dtype=dtype)
    described = describe_second_order(tokens, directions, dtype=dtype, spill=spill, progress=progress)
    split = DatabaseSplit.of(len(tokens), limit_pseudo_queries(spec))
    keys = track_progress(range(constructions), constructions, "spectra", progress)
    spaces = tuple(fit_space(described[s], directions[s], split, spec.max_rank, backend, spill) for s in keys)
    return measure_spaces(spec, spaces, dtype)


def limit_pseudo_queries(spec: HeadSpec) -> HeadSpec:
    """Limit pseudo queries to as many as second-order spaces have."""
    return replace(spec, max_pseudo=min(spec.max_pseudo, MAX_PSEUDO))


def measure_spaces(spec: HeadSpec, spaces: tuple[SecondOrderSpace, ...], dtype: str) -> FittedSpaces:
    """Spaces that were just fitted, with the strengths and spreads that follow from them."""
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
    """σ: median over pseudo queries of a row's spread; 1 where all scores are equal and there is nothing to scale."""
    return take_median_spread(pseudo_facts(block, len(space.pseudo), space.mask, len(space))) or 1.0


def carrier_spread(
    carrier: str, block: ScoreBlock, space: SecondOrderSpace, target_scores: Callable[[], np.ndarray]
) -> float:
    """σ that scores are divided by before they are calibrated.

    Descriptors that a full whitening was fitted to are orthogonal to each other: their scores say nothing of its
    spread, those of target photos `c m` do.
    """
    if carrier != "full":
        return measure_spread(block, space)
    return float(np.median(target_scores().std(axis=1))) or 1.0


def target_shift(coordinates: np.ndarray) -> np.ndarray:
    """Uᵀ(μ' − μ) `r` of target photos' coordinates `c r`: their mean, with 8 photos more at the database's mean."""
    return coordinates.sum(axis=0, dtype=np.float64) / (len(coordinates) + _PSEUDO_COUNTS)


def decide_carrier(fitted: FittedSpaces, carrier: str) -> tuple[SecondOrderDecisions, SecondOrderEvidence]:
    """Decide a head from the database alone: its carrier, and nothing else."""
    how = "default" if carrier == DATABASE_CARRIER else "set when the head was fitted"
    reasons = {
        "representation": _REPRESENTATION,
        "carrier": f"{how}: {CARRIER_WORDS[carrier]}",
        "centring": "default without calibration photos",
        "score": "default without calibration photos",
    }
    return fitted.decisions(carrier), SecondOrderEvidence({SECOND_ORDER: fitted.strengths}, reasons)


def decide_calibration(
    fitted: FittedSpaces, photos: int, score: bool | None = None
) -> tuple[SecondOrderDecisions, SecondOrderEvidence]:
    """Decide a head for so many target photos; `score` overrides whether scores are calibrated."""
    decisions = fitted.decisions(TARGET_CARRIER, centring=True, score=photos >= SCORE_FROM if score is None else score)
    reasons = {
        "representation": _REPRESENTATION,
        "carrier": f"default with calibration photos: {CARRIER_WORDS[TARGET_CARRIER]}",
        "centring": "default with calibration photos",
        "score": "set by the caller" if score is not None else f"default from {SCORE_FROM} photos on, {photos} used",
    }
    return decisions, SecondOrderEvidence({SECOND_ORDER: fitted.strengths}, reasons)


def assemble_second_order(
    fitted: FittedSpaces, decisions: SecondOrderDecisions, evidence: SecondOrderEvidence, target: Tokens | None = None
) -> SecondOrderHead:
    """A head from its decisions. `target` are the photos that centring and score calibration learn from."""
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
    """The scorer as decided: centred on target photos, their mean scores taken off."""
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

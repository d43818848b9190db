"""A head with two vocabularies: a small source vocabulary from elsewhere (or of the map), and the map's.

    x_b(q, d) = S_P(q, d) / σ_b          branch b ∈ {source, map}: soft, partial whitening, unit row spread
    score     = Σ_b x_b(q, d)                                            uncalibrated
    score     = Σ_b x_b(q, d) − log mean_{q'} exp x_b(q', d)             calibrated on target photos q'

The calibration subtracts a constant per database image, so a dual head is also one vector and a bias per image. The
paper names target-score calibration without defining it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa.core.arrays import Backend, Spill, backend_for, l2_normalize
from tfa.core.plain import Value, opt, req
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.method.branch import DatabaseSplit, fit_branch
from tfa.method.carriers import carrier_terms
from tfa.method.head import ENSEMBLE, BaseHead, ReplicaName, replica_scorer
from tfa.method.pseudo_queries import pseudo_facts, score_pseudo_queries, take_median_spread
from tfa.method.residuals import SOFT, describe_residuals
from tfa.method.scorer import Scorer, calibrate_scorer, join_scorers
from tfa.method.vocabulary import CONSTRUCTIONS, Vocabulary, fit_vocabularies, sample_patches
from tfa.types import HeadSpec

_SOURCE, _MAP = "source", "map"
_BRANCHES = (_SOURCE, _MAP)
_CARRIER = "partial"


class DualDecisions(Value):
    """Settings of a dual head; assignment, carrier and weights are fixed."""

    source: str = req('Source of the words: "given" or "database".')
    source_words: int = req("Source words.")
    words: int = req("Map words.")
    sigma_source: tuple[float, ...] = req("Median row spread of S_P in each construction, source words.")
    sigma_map: tuple[float, ...] = req("Median row spread of S_P in each construction, map words.")
    calibration: str = opt("none", '"none", "log mean exp" or "robust".')
    calibration_images: int = opt(0, "Calibration photos.")
    assignment: str = opt(SOFT, "Assignment of patches to words.")
    carrier: str = opt(_CARRIER, "Carrier of the score.")


@dataclass(frozen=True)
class DualHead(BaseHead):
    """A fitted retriever of two vocabularies, with the interface of `Head`. Immutable."""

    spec: HeadSpec  # `words` is the size of the map vocabulary
    decisions: DualDecisions
    vocabularies: Mapping[str, tuple[Vocabulary, ...]]  # three constructions per branch
    members: Mapping[tuple[str, int], Scorer]  # x_b of each branch and construction, never calibrated
    scorers: Mapping[ReplicaName, Scorer]
    data_used: str = "database"

    def calibrate(self, target: Tokens, *, robust: bool = False) -> DualHead:
        """Subtract each database image's mean score (log mean exp) on unlabeled target photos.

        Replaces an earlier calibration.

        Args:
            target: Tokens of the target photos, at least 2.
            robust: Leave out the largest scores of each image, as `scorer.usual_scores` does.

        Returns:
            The calibrated head.
        """
        if not isinstance(target, Tokens) or len(target) < 2:
            given = f"{len(target)} images" if isinstance(target, Tokens) else type(target).__name__
            raise BadTokens(f"calibration takes tfa.Tokens of at least 2 images, got {given}")
        # A supplied source vocabulary has one scorer for all constructions, so it is calibrated once.
        fresh = {id(member): _less_usual_scores(member, target, robust) for member in self.members.values()}
        members = {key: fresh[id(member)] for key, member in self.members.items()}
        decisions = replace(
            self.decisions, calibration="robust" if robust else "log mean exp", calibration_images=len(target)
        )
        return replace(self, decisions=decisions, scorers=_replicas(members), data_used="target")


def fit_dual_head(
    tokens: Tokens,
    source: np.ndarray | None = None,
    *,
    source_words: int = 32,
    words: int | None = None,
    spec: HeadSpec | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool | Progress | None = None,
) -> DualHead:
    """Fit an uncalibrated dual head.

    Args:
        tokens: Database tokens.
        source: Source vocabulary (words, channels), normalized by row; None fits `source_words` words instead.
        source_words: Size of a fitted source vocabulary.
        words: Size of the map vocabulary [default: from `spec`].
        spec: Head options.
        device: Device to fit on.
        dtype: Dtype of descriptors and scores.
        progress: Whether to show progress, or a listener.

    Returns:
        The head.
    """
    if not isinstance(tokens, Tokens):
        raise BadTokens(f"fit_dual takes tfa.Tokens, got {type(tokens).__name__}; wrap it: tfa.Tokens(patches)")
    if len(tokens) < 2:
        raise BadTokens(f"{len(tokens)} images are too few to fit a head; use at least 2")
    if dtype not in ("float32", "float64"):
        raise BadSpec(f"dtype={dtype!r} is unknown; use float32 or float64")
    spec = spec or HeadSpec()
    spec = spec if words is None else replace(spec, words=words)
    sizes = {_SOURCE: replace(spec, words=source_words).words, _MAP: spec.words}  # HeadSpec checks both
    backend, bars = backend_for(device), as_progress(progress)

    # Words: both vocabularies from one sample of database patches, unless the source is supplied.
    given = None if source is None else Vocabulary(l2_normalize(source), None, 0, float("nan"), data_used="nothing")
    patches = sample_patches(tokens, spec.max_patches, dtype)
    vocabularies = {
        name: (given,)
        if name == _SOURCE and given is not None
        else tuple(fit_vocabularies(patches, sizes[name], backend, progress=bars))
        for name in _BRANCHES
    }
    del patches

    # Branches: descriptors, spectrum and spread of each vocabulary, and the scorer they make.
    split = DatabaseSplit.of(len(tokens), spec)
    members: dict[tuple[str, int], Scorer] = {}
    sigma: dict[str, tuple[float, ...]] = {}
    for name, fitted in vocabularies.items():
        made = _fit_members(tokens, fitted, split, spec, backend, dtype, bars)
        times = len(CONSTRUCTIONS) // len(fitted)  # a supplied vocabulary serves every construction
        sigma[name] = tuple(spread for spread, _ in made * times)
        members.update({(name, s): scorer for s, (_, scorer) in enumerate(made * times)})
        vocabularies[name] = fitted * times
    decisions = DualDecisions(
        source="database" if given is None else "given",
        source_words=len(vocabularies[_SOURCE][0].centers),
        words=spec.words,
        sigma_source=sigma[_SOURCE],
        sigma_map=sigma[_MAP],
    )
    return DualHead(spec, decisions, vocabularies, members, _replicas(members))


def _fit_members(
    tokens: Tokens,
    vocabularies: Sequence[Vocabulary],
    split: DatabaseSplit,
    spec: HeadSpec,
    backend: Backend,
    dtype: str,
    progress: Progress,
) -> list[tuple[float, Scorer]]:
    """Return σ_b and the scorer of x_b for each vocabulary."""
    spill = Spill()
    centers = [vocabulary.centers for vocabulary in vocabularies]
    described = describe_residuals(
        tokens, centers, [SOFT], spec.temperature, backend, dtype=dtype, spill=spill, progress=progress
    )
    made, terms = [], carrier_terms(_CARRIER)
    for s, words in track_progress(enumerate(centers), len(centers), "spectra", progress):
        branch = fit_branch(SOFT, s, words, described[SOFT, s], split, spec, backend, spill)
        block = score_pseudo_queries(branch, terms, backend)
        sigma = take_median_spread(pseudo_facts(block, len(split.pseudo), branch.mask))
        # Scores without spread are not scaled.
        made.append((sigma, replica_scorer([(1 / (sigma or 1.0), branch, terms)], spec, dtype, spill)))
        branch.release()
    return made


def _less_usual_scores(member: Scorer, target: Tokens, robust: bool) -> Scorer:
    if robust:
        return calibrate_scorer(member, 1.0, target)  # x has unit spread already
    scores = member.scores(target).astype(np.float64)
    return replace(member, bias=member.bias - (np.logaddexp.reduce(scores, axis=0) - np.log(len(scores))))


def _replicas(members: Mapping[tuple[str, int], Scorer]) -> dict[ReplicaName, Scorer]:
    """Join the two branches of each construction, and all six for the ensemble."""
    pairs = [[members[name, s] for name in _BRANCHES] for s in CONSTRUCTIONS]
    scorers: dict[ReplicaName, Scorer] = {s: join_scorers(pair) for s, pair in enumerate(pairs)}
    # Six members instead of three sums, so that each branch keeps its calibration for images added later.
    scorers[ENSEMBLE] = join_scorers([member for pair in pairs for member in pair])
    return scorers

"""A head with two vocabularies: a small source vocabulary from elsewhere (or of the map), and the map's.

    x_b(q, d) = S_P(q, d) / σ_b          branch b ∈ {source, map}: soft, partial whitening, unit row spread
    score     = Σ_b x_b(q, d)                                            uncalibrated
    score     = Σ_b x_b(q, d) − log mean_{q'} exp x_b(q', d)             calibrated on target photos q'

The calibration subtracts a constant per database image, so a dual head is also one vector and a bias per image. The
paper names target-score calibration without defining it. The formulas, soft branches, the scaling by σ_b and the
absence of a global token are our reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

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
from tfa.method.scorer import Scorer, calibrate_scorer, join_scorers, split_scorer
from tfa.method.vocabulary import CONSTRUCTIONS, Vocabulary, fit_vocabularies, grid_patches, sample_patches
from tfa.types import HeadSpec

_SOURCE, _MAP = "source", "map"
_BRANCHES = (_SOURCE, _MAP)
_GIVEN, _DATABASE = "given", "database"
_CARRIER = "partial"


@dataclass(frozen=True)
class SourceWords:
    """A source vocabulary from elsewhere."""

    words: np.ndarray  # (k, d), as given
    name: str | None = None  # file

    @property
    def digest(self) -> str:
        """Digest of the words in float64."""
        return hashlib.blake2b(self.words.astype(np.float64).tobytes(), digest_size=16).hexdigest()


class DualDecisions(Value):
    """Settings of a dual head; assignment, carrier and weights are fixed."""

    OMITTED: ClassVar = frozenset({"vocabulary", "vocabulary_blake2b"})

    source: str = req('Source of the words: "given" or "database".', pattern=f"{_GIVEN}|{_DATABASE}")
    source_words: int = req("Source words.", ge=1)
    words: int = req("Map words.", ge=1)
    sigma_source: tuple[float, ...] = req(
        "Median row spread of S_P in each construction, source words.", min_length=3, max_length=3
    )
    sigma_map: tuple[float, ...] = req(
        "Median row spread of S_P in each construction, map words.", min_length=3, max_length=3
    )
    calibration: str = opt("none", '"none", "log mean exp" or "robust".', pattern="none|log mean exp|robust")
    calibration_images: int = opt(0, "Calibration photos.", ge=0)
    assignment: str = opt(SOFT, "Assignment of patches to words.", pattern=SOFT)
    carrier: str = opt(_CARRIER, "Carrier of the score.", pattern=_CARRIER)
    vocabulary: str | None = opt(None, "File of the source words.")
    vocabulary_blake2b: str | None = opt(None, "Digest of the source words in float64.")

    @property
    def score_calibrated(self) -> bool:
        return self.calibration != "none"


class DualEvidence(Value):
    """Words and spread of each branch, and reasons in words."""

    branches: dict[str, dict[str, float | tuple[float, ...]]] = req("Words and row spreads of each branch.")
    reasons: dict[str, str] = req("Why.")

    @classmethod
    def of(cls, made: DualDecisions) -> DualEvidence:
        """Describe decisions."""
        source = f"{made.source_words} words " + (
            f"of {made.vocabulary or 'the caller'}" if made.source == _GIVEN else "fitted on the map, without a file"
        )
        score = "no calibration photos"
        if made.score_calibrated:
            score = f"{made.calibration} of the scores of {made.calibration_images} photos is subtracted; our reading"
        return cls(
            branches={
                _SOURCE: {"words": made.source_words, "sigma": made.sigma_source},
                _MAP: {"words": made.words, "sigma": made.sigma_map},
            },
            reasons={
                "source": source,
                "assignment": "soft in both branches; our reading, the paper does not say",
                "carrier": "partial whitening and equal weights, as in the paper; scores are divided by their spread",
                "score": score,
            },
        )


@dataclass(frozen=True)
class DualHead(BaseHead):
    """A fitted retriever of two vocabularies, with the interface of `Head`. Immutable."""

    spec: HeadSpec  # `words` is the size of the map vocabulary
    decisions: DualDecisions
    vocabularies: Mapping[str, tuple[Vocabulary, ...]]  # three constructions per branch
    members: Mapping[tuple[str, int], Scorer]  # x_b of each branch and construction, never calibrated
    scorers: Mapping[ReplicaName, Scorer]
    data_used: str = "database"
    source: SourceWords | None = None  # None if its words are fitted on the database

    @classmethod
    def of_scorer(cls, spec: HeadSpec, decisions: DualDecisions, scorer: Scorer) -> DualHead:
        """Make an uncalibrated head, as a map stores it, from the scorer of a replica or of the ensemble."""
        members = {(_BRANCHES[i % 2], i // 2): one for i, one in enumerate(split_scorer(scorer))}
        return cls(spec, decisions, {}, members, _replicas(members))

    @property
    def evidence(self) -> DualEvidence:
        """Words, spreads and reasons, which follow from the decisions."""
        return DualEvidence.of(self.decisions)

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
        calibration = "robust" if robust else "log mean exp"
        decisions = replace(self.decisions, calibration=calibration, calibration_images=len(target))
        return replace(self, decisions=decisions, scorers=_replicas(members), data_used="target")


def fit_dual_head(
    tokens: Tokens,
    source: SourceWords | None = None,
    *,
    source_words: int = 32,
    words: int | None = None,
    spec: HeadSpec | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: bool | Progress | None = None,
) -> DualHead:
    """Fit an uncalibrated dual head.

    Rows of `source` are normalized; without it, `source_words` words are fitted. `words` overrides those of `spec`.
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
    given = None
    if source is not None:
        given = Vocabulary(l2_normalize(source.words), None, 0, float("nan"), data_used="nothing")
    patches = sample_patches(tokens, spec.max_patches, dtype, grid_patches)
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
        source=_DATABASE if source is None else _GIVEN,
        source_words=len(vocabularies[_SOURCE][0].centers),
        words=spec.words,
        sigma_source=sigma[_SOURCE],
        sigma_map=sigma[_MAP],
        vocabulary=None if source is None else source.name,
        vocabulary_blake2b=None if source is None else source.digest,
    )
    return DualHead(spec, decisions, vocabularies, members, _replicas(members), source=source)


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
    bias = member.bias - (np.logaddexp.reduce(scores, axis=0) - np.log(len(scores)))
    return replace(member, bias=bias, calibrators=member.query_vectors(target).terms, trimmed=0.0)


def _replicas(members: Mapping[tuple[str, int], Scorer]) -> dict[ReplicaName, Scorer]:
    """Join the branches of each construction, and all of them for the ensemble."""
    constructions = sorted({s for _, s in members})
    pairs = [[members[name, s] for name in _BRANCHES if (name, s) in members] for s in constructions]
    scorers: dict[ReplicaName, Scorer] = {s: join_scorers(pair) for s, pair in enumerate(pairs)}
    # All members instead of three sums, so that each branch keeps its calibration for images added later.
    scorers[ENSEMBLE] = join_scorers([member for pair in pairs for member in pair])
    return scorers

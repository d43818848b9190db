"""Benchmark heads of the second-order and judged families (ours, beyond the paper).

    second-order                        the head of `tfa build`: one construction, rows as stored in a map
    second-order-c64                    the same after `tfa calibrate` with 64 unlabeled queries (any number)
    second-order-1  second-order-1-c64  the same; if reranked, as maps were before patches were centered on their cell
    second-order-one-window  …          the same; if reranked, with one window of 5 × 5 displacements (ablation)
    second-order-no-pooling  …          the same for two depths, the later one not averaged over cells (ablation)
    second-original  second-partial  …  this carrier, without a judge
    judged                              the head that map images judge best
    judged-c64                          judged and calibrated with 64 unlabeled queries (any number)
    judged[-c64]-no-judge               the default, without evidence
    judged[-c64]-support                decided by the number of distinct top answers instead of evidence
    judged-c64-no-score  …              one of the two calibrations (scores, centering) does not compete
    …-ensemble                          the sum of the three replicas' scores

All heads of a database share one fit of its spaces, of the challengers and of its compact tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tfa import pipeline
from tfa.core.arrays import Spill, backend_for
from tfa.core.tokens import Tokens
from tfa.maps.stored_head import StoredHead, StoredSpaces, make_partial_scorer
from tfa.method.branch import DatabaseSplit
from tfa.method.carriers import CARRIER_KERNELS, CARRIER_WORDS
from tfa.method.evidence import measure_support
from tfa.method.head import ENSEMBLE, BaseHead, Head, ReplicaName, assemble
from tfa.method.residuals import DescribedTokens
from tfa.method.scorer import SecondOrderSide, SideView
from tfa.method.second_order import SECOND_ORDER, describe_second_order, fit_directions
from tfa.method.second_order_head import (
    TARGET_CARRIER,
    FittedSpaces,
    SecondOrderHead,
    assemble_second_order,
    decide_carrier,
    fit_spaces,
    limit_pseudo_queries,
    measure_spaces,
)
from tfa.method.second_order_space import fit_space
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import BuildOptions
from tfa.verification.usual_evidence import PairEvidence
from tfa_bench.heads.contract import Fit, HeadCard, Photos, Shared
from tfa_bench.heads.judge import (
    CALIBRATIONS,
    Competition,
    HeadJudgment,
    Judged,
    JudgedEvidence,
    ResidualChallengers,
    compete_on_database,
    compete_on_target,
    describe_judged,
    filter_calibrations,
    make_unjudged_evidence,
    select_by_evidence,
    select_on_described_target,
)
from tfa_bench.heads.tfa_heads import BEYOND_PAPER, Calibrate, PatchPairs, RetrieverHead, fitted_tfa, patch_pairs
from tfa_bench.protocols import NO_CALIBRATION, budget

DTYPE = "float32"
DEFAULT_IN_RECORDS = "incumbent"  # word in stored records
SECOND_STAGES = ("spectrum", "second_order")
_TARGET_STAGES = (*SECOND_STAGES, "score_calibration", "verification", "judge")
_DATABASE_STAGES = ("kmeans", "residuals", "evidence", *SECOND_STAGES, "verification", "judge")
Choose = Callable[[FittedSpaces, Competition, PairEvidence | None], Judged]


# --- what decides ----------------------------------------------------------------------------------------------


def by_evidence(fitted: FittedSpaces, competition: Competition, evidence: PairEvidence | None) -> Judged:
    """Judge by evidence; the default if patches cannot be compared."""
    if evidence is None:
        return competition.incumbent, make_unjudged_evidence(fitted, competition.incumbent)
    return select_by_evidence(fitted, competition, evidence)


def by_rank(fitted: FittedSpaces, competition: Competition, evidence: PairEvidence | None) -> Judged:
    """Choose the default."""
    return competition.incumbent, make_unjudged_evidence(
        fitted, competition.incumbent, f"it is the {DEFAULT_IN_RECORDS}"
    )


def by_support(fitted: FittedSpaces, competition: Competition, evidence: PairEvidence | None) -> Judged:
    """Choose the candidate with the most distinct top answers; ties go to the default, then to the earlier one."""
    incumbent = competition.incumbent.name
    distinct = {name: measure_support(tops[None]) for name, tops in competition.answers.items()}
    winner = max((incumbent, *distinct), key=distinct.__getitem__)
    found = {name: HeadJudgment(value, 0.0, value - distinct[incumbent], 0.0) for name, value in distinct.items()}
    words = {"judge": f"{describe_judged(competition.heads[winner])}: {distinct[winner]:.0f} distinct first answers"}
    count = len(competition.photos)
    seen = JudgedEvidence(
        {SECOND_ORDER: fitted.strengths},
        words,
        photos=count,
        kind=competition.kind,
        incumbent=incumbent,
        candidates=found,
    )
    return competition.heads[winner], seen


@dataclass(frozen=True)
class Rule:
    """Rule that decides a judged head."""

    title: str
    choose: Choose = by_evidence
    calibrations: Sequence[tuple[bool, bool]] = CALIBRATIONS  # (centering, scores) pairs that compete


RULES: Mapping[str, Rule] = {
    "": Rule(""),
    "no-judge": Rule("no judge", by_rank),
    "support": Rule("support in place of the judge", by_support),
    "no-centring": Rule("no centering", calibrations=((False, False), (False, True))),
    "no-score": Rule("no score calibration", calibrations=((False, False), (True, False))),
}
_OF_TARGET_ALONE = ("no-centring", "no-score")


# --- fits that heads share -------------------------------------------------------------------------------------


def fitted_spaces(database: Photos, shared: Shared) -> FittedSpaces:
    backend = backend_for(shared.device)
    return shared.once(
        "second order", lambda: fit_spaces(database.tokens, shared.spec, backend, DTYPE, shared.progress)
    )


def fitted_second_order(database: Photos, shared: Shared, carrier: str) -> SecondOrderHead:
    """Fit a second-order head with one carrier."""
    fitted = fitted_spaces(database, shared)
    decisions = fitted.decisions(carrier)
    evidence = make_unjudged_evidence(fitted, decisions, "the carrier was given")
    return shared.once(f"second-{carrier}", lambda: assemble_second_order(fitted, decisions, evidence))


def fitted_challengers(database: Photos, shared: Shared) -> ResidualChallengers | None:
    """Fit residual heads, if patches can judge them."""
    if database.tokens.grid is None:
        return None
    backend = backend_for(shared.device)
    return shared.once(
        "challengers", lambda: ResidualChallengers.fit(database.tokens, shared.spec, backend, DTYPE, shared.progress)
    )


def competition_on_database(database: Photos, shared: Shared) -> Competition:
    """Return every head that map images judge."""
    fitted, challengers = fitted_spaces(database, shared), fitted_challengers(database, shared)
    backend = backend_for(shared.device)
    return shared.once("competition", lambda: compete_on_database(fitted, challengers, backend))


def fitted_judged(database: Photos, shared: Shared, rule: str = "") -> SecondOrderHead | Head:
    """Return the head decided with the database only."""

    def make() -> SecondOrderHead | Head:
        fitted, pairs = fitted_spaces(database, shared), patch_pairs(database, shared)
        evidence_between = None if pairs is None else pairs.evidence_between
        decisions, evidence = RULES[rule].choose(fitted, competition_on_database(database, shared), evidence_between)
        if decisions.representation == SECOND_ORDER:
            return assemble_second_order(fitted, decisions, evidence)
        return assemble(fitted_tfa(database, shared), decisions, evidence, backend_for(shared.device))

    return shared.once(f"judged {rule}", make)


def calibration_by(rule: Rule, pairs: PatchPairs | None) -> Calibrate:
    """Return `judge.calibrate_judged` under a rule; photos are compared once for all heads and splits."""

    def calibrate(head: SecondOrderHead, target: Tokens) -> BaseHead:
        pipeline.check_target_count(len(target))
        fitted, space = head.fitted, head.fitted.spaces[0]
        fitted.check(target)
        view = space.side.describe(target, True, fitted.dtype)
        evidence = None
        if pairs is not None and target.grid is not None:
            compared = pairs.of(target)
            evidence = lambda row, images: compared.with_queries([row], [images])[0].evidence  # noqa: E731
        if rule.choose is by_evidence and evidence is not None:
            decided = select_on_described_target(fitted, space, view, evidence, calibrations=rule.calibrations)
        else:
            competition = compete_on_target(fitted, space, view, filter_calibrations(len(target), rule.calibrations))
            decided = rule.choose(fitted, competition, evidence)
        return assemble_second_order(fitted, *decided, target)

    return calibrate


# --- heads of maps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapHead:
    """The default head of a map, as fitted and as stored."""

    fitted: SecondOrderHead
    spaces: StoredSpaces

    @property
    def duplicates(self) -> np.ndarray | None:
        """First equal image of each image, like equal files in maps; None if all differ."""
        return self.fitted.fitted.spaces[0].duplicates

    def store(self, head: SecondOrderHead) -> SecondOrderHead:
        """Replace the rows of a head by the rows that a map stores."""
        stored = StoredHead.of(head, 0, self.spaces.storage, self.spaces).scorer
        return replace(head, scorers={0: replace(stored, duplicates=self.duplicates)})

    def calibrate(self, target: Tokens) -> SecondOrderHead:
        """Calibrate as `tfa calibrate` does: from the stored rows."""
        images = len(self.fitted)
        return self.store(pipeline.calibrate(self.spaces.fitted(images, self.fitted.spec, self.duplicates), target))

    @property
    def adapting(self) -> SecondOrderHead:
        """Return the head that a camera's photos adapt (`tfa.maps.tracker`)."""
        scorer = make_partial_scorer(self.spaces, self.duplicates)
        return replace(self.fitted, scorers={0: scorer}, decisions=self.fitted.fitted.decisions(TARGET_CARRIER))


def fitted_map_head(database: Photos, shared: Shared, *, pooled: bool = True) -> MapHead:
    """Fit the head of `tfa build` with its default options; without `pooled`, two depths as the encoder gives them."""

    def make() -> MapHead:
        options = BuildOptions()
        if pooled:
            head = pipeline.fit_second_order(
                database.tokens,
                options.carrier,
                constructions=1,
                spec=shared.spec,
                device=shared.device,
                progress=shared.progress,
            )
        else:
            head = fit_unpooled(database.tokens, options.carrier, shared)
        return MapHead(head, StoredSpaces.of(head.fitted, 0, options.storage))

    return shared.once(f"map head {pooled}", make)


class UnpooledTokens(DescribedTokens):
    """Tokens of two depths whose descriptors do not average the later block over cells."""

    def described_second_order(self, directions: Sequence[np.ndarray], dtype: str) -> list[np.ndarray]:
        parts = [
            describe_second_order(self.block(depth), [one[depth] for one in directions], dtype=dtype)
            for depth in (0, 1)
        ]
        return [np.concatenate(both, axis=1) * 0.5**0.5 for both in zip(*parts, strict=True)]


class UnpooledSide(SecondOrderSide):
    """Query side of `UnpooledTokens`."""

    def describe(self, tokens: Tokens, spectral: bool, dtype: str) -> SideView:
        plain = UnpooledTokens(tokens.patches, names=tokens.names, grid=tokens.grid, depths=tokens.depths)
        return super().describe(plain, spectral, dtype)


def fit_unpooled(tokens: Tokens, carrier: str, shared: Shared) -> SecondOrderHead:
    """Fit one construction like `pipeline.fit_second_order`, without averaging the later block over cells."""
    spec, backend = shared.spec, backend_for(shared.device)
    parts = [fit_directions(tokens.block(depth), spec.max_patches, constructions=1, dtype=DTYPE) for depth in (0, 1)]
    directions = np.stack([own for [own] in parts])
    plain = UnpooledTokens(tokens.patches, names=tokens.names, grid=tokens.grid, depths=tokens.depths)
    [described] = plain.described_second_order([directions], DTYPE)
    split = DatabaseSplit.of(len(tokens), limit_pseudo_queries(spec))
    space = fit_space(described, directions, split, spec.max_rank, backend, Spill(), tokens.grid)
    side = UnpooledSide(directions, space.side.mean, space.side.axes, space.side.eigenvalues, grid=tokens.grid)
    fitted = measure_spaces(spec, (replace(space, side=side),), DTYPE)
    return assemble_second_order(fitted, *decide_carrier(fitted, carrier))


# --- cards -----------------------------------------------------------------------------------------------------

MAP_HEAD = "second-order"
EARLIER = f"{MAP_HEAD}-1"  # maps before patches were centered on their cell
ABLATED = f"{MAP_HEAD}-one-window"
UNPOOLED = f"{MAP_HEAD}-no-pooling"
MAP_TITLES = {
    EARLIER: "Second-order head, earlier",
    ABLATED: "Second-order head, one window",
    UNPOOLED: "Second-order head, no pooling",
    MAP_HEAD: "Second-order head",
}
_MAP = re.compile(rf"({'|'.join(MAP_TITLES)})(?:-c([1-9][0-9]{{0,5}}))?")
_SECOND = re.compile(rf"second-({'|'.join(CARRIER_KERNELS)})(-ensemble)?")
_JUDGED = re.compile(rf"judged(?:-c([1-9][0-9]{{0,5}}))?(?:-({'|'.join(filter(None, RULES))}))?(-ensemble)?")


def second_order_card(name: str) -> HeadCard | None:
    """Return the card of a name of the family above; None for other names."""
    stored, second, judged = _MAP.fullmatch(name), _SECOND.fullmatch(name), _JUDGED.fullmatch(name)
    if stored is not None:
        return _map_card(name, stored[1], int(stored[2] or 0))
    if second is not None:
        return _second_card(name, second[1], bool(second[2]))
    if judged is None or (judged[2] in _OF_TARGET_ALONE and not judged[1]):  # there is nothing to leave out
        return None
    return _judged_card(name, int(judged[1] or 0), judged[2] or "", bool(judged[3]))


def uses_cells(name: str) -> bool:
    """True if a head of this name reranks by patches centered on their cell."""
    return name.startswith(MAP_HEAD) and not name.startswith(EARLIER)


def _map_card(name: str, system: str, photos: int) -> HeadCard:
    options, pooled = BuildOptions(), system != UNPOOLED

    def fit(database: Photos, shared: Shared) -> RetrieverHead:
        head = fitted_map_head(database, shared, pooled=pooled)
        how = (lambda _, target: head.calibrate(target)) if photos else None
        return RetrieverHead(head.store(head.fitted), (0,), how, device=shared.device if pooled else "cpu")

    return HeadCard(
        name=name,
        title=MAP_TITLES[system] + (f", calibrated on {photos} photos" if photos else ""),
        sees="target" if photos else "database",
        fit=fit,
        plan=budget(photos) if photos else NO_CALIBRATION,
        settings={
            "system": "map",
            "head": options.head,
            "carrier": TARGET_CARRIER if photos else options.carrier,
            "storage": options.storage,
            **({} if pooled else {"pooled": False}),
        },
        stages=(*SECOND_STAGES, *(("score_calibration",) if photos else ())),
        note="ablation" if system in (ABLATED, UNPOOLED) else BEYOND_PAPER,
        needs_depths=not pooled,
    )


def _second_card(name: str, carrier: str, ensemble: bool) -> HeadCard:
    return HeadCard(
        name=name,
        title=f"Second order, {CARRIER_WORDS[carrier]}" + " ensemble" * ensemble,
        sees="database",
        fit=_fit(lambda database, shared: fitted_second_order(database, shared, carrier), ensemble),
        settings={"system": "second-order", "carrier": carrier, "ensemble": ensemble},
        stages=SECOND_STAGES,
        note=BEYOND_PAPER,
    )


def _judged_card(name: str, photos: int, rule: str, ensemble: bool) -> HeadCard:
    title = "Judged" + (f"-C{photos}" if photos else "") + (f", {RULES[rule].title}" if rule else "")

    def fit(database: Photos, shared: Shared) -> RetrieverHead:
        how = calibration_by(RULES[rule], patch_pairs(database, shared))
        return _of(fitted_second_order(database, shared, TARGET_CARRIER), ensemble, shared, how)

    return HeadCard(
        name=name,
        title=title + " ensemble" * ensemble,
        sees="target" if photos else "database",
        fit=fit if photos else _fit(lambda database, shared: fitted_judged(database, shared, rule), ensemble),
        plan=budget(photos) if photos else NO_CALIBRATION,
        settings={"system": "judged", "rule": rule or "judge", "ensemble": ensemble},
        stages=_TARGET_STAGES if photos else _DATABASE_STAGES,
        note="ablation" if rule else BEYOND_PAPER,
    )


def _fit(fit: Callable[[Photos, Shared], BaseHead], ensemble: bool) -> Fit:
    return lambda database, shared: _of(fit(database, shared), ensemble, shared)


def _of(head: BaseHead, ensemble: bool, shared: Shared, how: Calibrate | None = None) -> RetrieverHead:
    replicas: tuple[ReplicaName, ...] = (ENSEMBLE,) if ensemble else CONSTRUCTIONS
    return RetrieverHead(head, replicas, how, device=shared.device)

"""Benchmark heads of TFA and the dual-vocabulary system, calibrated or not.

All heads of one database share one fit. The names say what follows:

    tfa           dual           as fitted on the database
    tfa-c64       dual-c64       calibrated on 64 unlabeled queries (any number), evaluated on the others
    tfa-fullq     dual-fullq     calibrated on all queries
    tfa-crossfit                 each half of the queries evaluated by a head calibrated on the other
    …+                           with robust score calibration (ours, beyond the paper)
    …-ensemble                   sum of the three replicas' scores instead of mean recall (ours)

Patches of query and database pairs are compared once, for all heads that need them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfa import pipeline
from tfa.core.arrays import Spill, backend_for
from tfa.core.plain import to_plain
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens, FewPhotos
from tfa.method.database import METHOD_RULES, decide_from_database
from tfa.method.decisions import list_close_decisions
from tfa.method.described_queries import DescribedQueries
from tfa.method.device_scorer import DeviceScorer
from tfa.method.dual_vocabulary import DualHead
from tfa.method.head import ENSEMBLE, BaseHead, Head, ReplicaName, assemble
from tfa.method.second_order_head import SecondOrderHead
from tfa.method.vocabulary import CONSTRUCTIONS
from tfa.types import RerankSpec
from tfa.verification.matching import ONE_WINDOW
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa.verification.reranking import Compared, Comparison
from tfa.verification.usual_evidence import cache_evidence
from tfa_bench.heads.contract import Fit, Fitted, HeadCard, Photos, Shared, read_vocabulary
from tfa_bench.heads.judge import JudgedEvidence
from tfa_bench.protocols import FULL_QUERY, NO_CALIBRATION, Plan, budget, cross_fit

# --- patch pairs ---------------------------------------------------------------------------------------------------


class OneWindow(CompactTokens):
    """Compact tokens whose votes are counted in one window (ablation)."""

    windows = ONE_WINDOW


class PatchPairs:
    """The patches of a database, and every pair compared so far; with `cells`, patches are centered on their cell."""

    def __init__(
        self, database: Tokens, spec: RerankSpec | None = None, *, cells: bool = False, one_window: bool = False
    ) -> None:
        require_grid(database)
        self.store = (OneWindow if one_window else CompactTokens).fit(database, spec, cells=cells)
        self.evidence_between = cache_evidence(self.store.evidence_between)
        self._queries: dict[Tokens, ComparedQueries] = {}  # by the set that queries belong to

    @property
    def spec(self) -> RerankSpec:
        return self.store.spec

    def of(self, queries: Tokens) -> Comparison:
        """Return the comparison of queries with the database, kept for the queries of a dataset."""
        if not isinstance(queries, DescribedQueries):
            return ComparedQueries(self, queries)
        if queries.whole not in self._queries:
            self._queries[queries.whole] = ComparedQueries(self, queries.whole)
        return Selected(self._queries[queries.whole], queries.rows)

    def in_order(self, queries: Tokens, patches: Mapping[int, np.ndarray] | None = None) -> Comparison:
        """Return the comparison of a stream, whose cell means differ between heads; `patches` (n, r) by query."""
        if self.store.compaction.cells is None:
            return self.of(queries)
        return PhotoPairs(self.store, queries, require_grid(queries), np.arange(len(self.store)), patches)


class ComparedQueries(PhotoPairs):
    """A set of queries compared with the database; results are cached."""

    def __init__(self, pairs: PatchPairs, queries: Tokens) -> None:
        store, grid = pairs.store, require_grid(queries)
        super().__init__(store, queries, grid, np.arange(len(store)))
        self._compared: dict[tuple[int, int], tuple[float, int]] = {}
        # Every head may add candidates of a query, which need its patches again, so they are kept in a file.
        self._patches = Spill().empty((len(queries), grid[0] * grid[1], store.compaction.dimensions), np.float32)
        self._made = np.zeros(len(queries), bool)

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        wanted = list(zip(rows, [own.tolist() for own in images], strict=True))
        missing = [(row, [image for image in own if (row, image) not in self._compared]) for row, own in wanted]
        fresh = [(row, np.array(own)) for row, own in missing if own]
        for (row, own), compared in zip(fresh, super().with_queries(*_columns(fresh)), strict=True):
            pairs = zip(own.tolist(), compared.evidence.tolist(), compared.inliers.tolist(), strict=True)
            self._compared.update({(row, image): (evidence, matches) for image, evidence, matches in pairs})
        weight = self.store.compaction.weight
        tables = [[self._compared[row, image] for image in own] for row, own in wanted]
        return [
            Compared(np.array([e for e, _ in table], np.float64), np.array([m for _, m in table], np.int64), weight)
            for table in tables
        ]

    def patches(self, row: int) -> np.ndarray:
        if not self._made[row]:
            self._patches[row], self._made[row] = super().patches(row), True
        return np.asarray(self._patches[row])


class Selected:
    """Some `rows` of compared queries."""

    def __init__(self, whole: ComparedQueries, rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows

    def with_queries(self, rows: Sequence[int], images: Sequence[np.ndarray]) -> list[Compared]:
        return self.whole.with_queries(self.rows[list(rows)].tolist(), images)


def _columns(pairs: Sequence[tuple[int, np.ndarray]]) -> tuple[list[int], list[np.ndarray]]:
    return [row for row, _ in pairs], [images for _, images in pairs]


def require_grid(tokens: Tokens) -> tuple[int, int]:
    if tokens.grid is None:
        raise BadTokens(
            "reranking needs the patch grid, which these tokens do not have; "
            "use tfa.Tokens(patches, cls, grid=(rows, columns))"
        )
    return tokens.grid


# --- heads ---------------------------------------------------------------------------------------------------------


Calibrate = Callable[[Any, Tokens], BaseHead]  # a fitted head and target tokens in, a calibrated head out
BEYOND_PAPER = "ours, beyond the paper"
OUR_READING = (
    "our reading of a system that the paper names without a formula: score calibration x − log mean exp x, both "
    "branches soft, scores divided by their spread before they are added, no global token"
)


@dataclass(frozen=True)
class RetrieverHead:
    """A fitted head of the package and its calibration."""

    retriever: BaseHead
    scored_replicas: tuple[ReplicaName, ...] = CONSTRUCTIONS
    how: Calibrate | None = None
    two_sided: bool = False  # whether to rank with the closest decision flipped, too
    device: str = "cpu"  # device that scores queries
    _on_device: dict[ReplicaName, DeviceScorer] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(str(replica) for replica in self.scored_replicas)

    @property
    def data_used(self) -> str:
        return str(self.retriever.data_used)  # type: ignore[attr-defined]

    @property
    def decisions(self) -> dict[str, Any]:
        """Return its decisions, with the evidence of every candidate if available."""
        decisions = dict(self.retriever.decisions.to_dict())  # type: ignore[attr-defined]
        if isinstance(self.retriever, (Head, SecondOrderHead)):
            evidence = self.retriever.evidence
            candidates = getattr(evidence, "candidates", {})  # a second-order head without a judge has none
            decisions["candidates"] = {name: candidate.to_dict() for name, candidate in candidates.items()}
            decisions["margins"] = to_plain(getattr(evidence, "margins", {}))
            if isinstance(evidence, JudgedEvidence):
                decisions |= {"incumbent": evidence.incumbent, "photos": evidence.photos, **evidence.reasons}
        return decisions

    def scores(self, queries: Photos, replica: str) -> np.ndarray:
        name: ReplicaName = ENSEMBLE if replica == ENSEMBLE else int(replica)
        if self.device == "cpu":
            return self.retriever.scores(queries.tokens, name)
        if name not in self._on_device:
            backend = backend_for(self.device, double=False)
            self._on_device[name] = DeviceScorer(self.retriever.scorer(name), backend)
        return self._on_device[name].scores(queries.tokens)

    def calibrate(self, target: Photos) -> Fitted:
        assert self.how is not None, "a head without a calibration was given a plan that calibrates"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewPhotos)  # the benchmark chooses a budget of 4 deliberately
            return replace(self, retriever=self.how(self.retriever, target.tokens), how=None)

    def other_side(self) -> tuple[dict[str, Any], Fitted] | None:
        head = self.retriever
        close = list_close_decisions(self.decisions["margins"]) if self.two_sided and isinstance(head, Head) else []
        if not close or not isinstance(head, Head):
            return None
        name, flip = close[0]
        other = flip_decision(head, name, flip["choice"])
        return {"decision": name, **flip}, replace(self, retriever=other, two_sided=False)


def flip_decision(head: Head, name: str, choice: str) -> Head:
    """Return the head with another outcome of one decision; later decisions follow from it."""
    backend, decisions, evidence = backend_for("cpu"), head.decisions, head.evidence
    if name == "assignment":
        rules = replace(METHOD_RULES, assignment=lambda hard, soft: choice)
        decisions, evidence = decide_from_database(head.branches, head.cls, backend, rules=rules)
    else:
        flipped: dict[str, Any] = {"carrier": choice} if name == "carrier" else {"admit_cls": choice == "used"}
        decisions = replace(decisions, **flipped)
    return assemble(head, decisions, evidence, backend, data_used=head.data_used)


def fitted_tfa(database: Photos, shared: Shared) -> Head:
    """Return the database-only head, fitted once for all heads that use it."""
    make = lambda: pipeline.fit(database.tokens, shared.spec, device=shared.device, progress=shared.progress)  # noqa: E731
    return shared.once("tfa", make)


def fitted_dual(database: Photos, shared: Shared, vocabulary: Path | None = None) -> DualHead:
    """Return the dual head; `vocabulary` is the file of its source words, which are fitted on the database without."""
    make = lambda: pipeline.fit_dual(  # noqa: E731
        database.tokens, vocabulary, spec=shared.spec, device=shared.device, progress=shared.progress
    )
    return shared.once(f"dual {vocabulary}", make)


def patch_pairs(
    database: Photos, shared: Shared, *, cells: bool = False, one_window: bool = False
) -> PatchPairs | None:
    """Return database patches and compared pairs, shared by all heads; None if the patch grid is unknown."""
    if database.tokens.grid is None:
        return None
    return shared.once(
        f"patch pairs {cells} {one_window}", lambda: PatchPairs(database.tokens, cells=cells, one_window=one_window)
    )


def _calibrate_tfa(head: Head, target: Tokens) -> BaseHead:
    return pipeline.calibrate(head, target)


def _calibrate_tfa_scores(head: Head, target: Tokens) -> BaseHead:
    return pipeline.calibrate(head, target, score=True)


def _calibrate_dual(head: DualHead, target: Tokens) -> BaseHead:
    return head.calibrate(target)


def _calibrate_dual_robustly(head: DualHead, target: Tokens) -> BaseHead:
    return head.calibrate(target, robust=True)


_SYSTEMS: Mapping[str, tuple[str, Callable[[Photos, Shared], BaseHead], Calibrate, Calibrate]] = {
    "tfa": ("TFA", fitted_tfa, _calibrate_tfa, _calibrate_tfa_scores),
    "dual": ("TFA dual", fitted_dual, _calibrate_dual, _calibrate_dual_robustly),
}
_PLANS: Mapping[str, tuple[str, Plan]] = {
    "": ("", NO_CALIBRATION),
    "-fullq": ("-FullQ", FULL_QUERY),
    "-crossfit": ("-FullQ (cross-fit)", cross_fit()),
    "-crossfit-contiguous": ("-FullQ (cross-fit, contiguous halves)", cross_fit("contiguous")),
}
_NAME = re.compile(r"(tfa|dual)(-c([1-9][0-9]{0,5})|-fullq|-crossfit|-crossfit-contiguous)?(\+)?(-ensemble)?")


def retriever_card(name: str, vocabulary: Path | None = None) -> HeadCard | None:
    """Return the card of a name of the family above; None for other names. `vocabulary` is for dual heads."""
    match = _NAME.fullmatch(name)
    if match is None or (match[4] and not match[2]):  # there are no photos to calibrate scores on
        return None
    title, fit, plain, scored = _SYSTEMS[match[1]]
    suffix, plan = (f"-C{match[3]}", budget(int(match[3]))) if match[3] else _PLANS[match[2] or ""]
    scored_replicas: tuple[ReplicaName, ...] = (ENSEMBLE,) if match[5] else CONSTRUCTIONS
    how = None if not plan.calibrates else scored if match[4] else plain
    settings: dict[str, Any] = {"system": match[1], "score_calibration": bool(match[4]), "ensemble": bool(match[5])}
    note = ""
    if match[1] == "dual":
        note = OUR_READING if vocabulary is not None else f"{OUR_READING}, source words fitted on the database"
    if vocabulary is not None:
        settings |= read_vocabulary(vocabulary)[1]
        fit = partial(fitted_dual, vocabulary=vocabulary)
    return HeadCard(
        name=name,
        title=title + suffix + ("+" if match[4] else "") + (" ensemble" if match[5] else ""),
        sees="target" if plan.calibrates else "database",
        fit=_fit(fit, scored_replicas, how, two_sided=match[1] == "tfa" and not match[4]),
        plan=plan,
        settings=settings,
        note=BEYOND_PAPER if match[4] or match[5] else note,
        budget_per_condition=match[1] == "dual",
    )


def _fit(
    fit: Callable[[Photos, Shared], BaseHead],
    scored_replicas: tuple[ReplicaName, ...],
    how: Calibrate | None,
    two_sided: bool,
) -> Fit:
    return lambda database, shared: RetrieverHead(fit(database, shared), scored_replicas, how, two_sided, shared.device)

"""Value of every candidate for the judge, and its recall by labels.

Both use the first construction, like the judge. Database only: pseudo queries judge, all queries are evaluated. C64:
the 64 queries of the first split judge by cross-fitting; a head calibrated on all 64 is evaluated on the other queries.
Like rows named `judged`, the judge compares patches centered on one mean; `--cells` centers them on their cell.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from studies.options import load_datasets, make_parser, open_encoder, open_progress, read_study, run_script
from tfa.cli.console import delivered, print_text
from tfa.core.arrays import Spill
from tfa.core.progress import Progress, as_progress, track_progress
from tfa.errors import BadTokens
from tfa.method.decisions import SecondOrderDecisions
from tfa.method.head import replica_scorer
from tfa.method.scorer import Scorer
from tfa.method.second_order import SECOND_ORDER
from tfa.method.second_order_head import calibrated_scorer
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.judge import Competition, Judged, compete_on_target, select_by_evidence
from tfa_bench.heads.second_order import DTYPE, competition_on_database, fitted_challengers, fitted_spaces
from tfa_bench.heads.tfa_heads import PatchPairs, patch_pairs
from tfa_bench.measures import recall_at
from tfa_bench.protocols import budget
from tfa_bench.rank import QUERIES_AT_ONCE, ranked
from tfa_bench.run import Bench, prepare

BUDGET = 64  # number of judging queries


@dataclass(frozen=True)
class JudgedCandidate:
    """One head before the judge."""

    name: str
    value: float
    error: float
    difference: float  # to the default
    difference_error: float
    recall: float  # R@1 as a fraction


@dataclass(frozen=True)
class JudgeTable:
    """Competing candidates."""

    photos: str  # description of the judging photos
    incumbent: str
    chosen: str
    candidates: tuple[JudgedCandidate, ...]  # largest value first

    @property
    def rank_correlation(self) -> float | None:
        """Spearman correlation of value and recall; None if one of them is constant."""
        ranks = [rankdata([getattr(one, key) for one in self.candidates]) for key in ("value", "recall")]
        if any(len(set(rank.tolist())) < 2 for rank in ranks):
            return None
        return float(np.corrcoef(*ranks)[0, 1])

    @property
    def loss(self) -> float:
        """Lead of the best candidate by labels over the chosen one."""
        recall = {one.name: one.recall for one in self.candidates}
        return max(recall.values()) - recall[self.chosen]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rank_correlation": self.rank_correlation, "loss": self.loss}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> JudgeTable:
        """The inverse."""
        candidates = tuple(JudgedCandidate(**one) for one in facts["candidates"])
        photos = facts["photos"].replace("photos of the map itself", "map images")  # as older files say
        return cls(photos, facts["incumbent"], facts["chosen"], candidates)


@dataclass(frozen=True)
class JudgeStudy:
    dataset: str
    title: str
    encoder: str
    database: JudgeTable
    target: JudgeTable | None  # None with too few queries

    def to_dict(self) -> dict[str, Any]:
        tables = {"database": self.database.to_dict(), "target": self.target and self.target.to_dict()}
        return {"dataset": self.dataset, "title": self.title, "encoder": self.encoder, **tables}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> JudgeStudy:
        """The inverse."""
        database, target = (facts[kind] and JudgeTable.from_dict(facts[kind]) for kind in ("database", "target"))
        return cls(facts["dataset"], facts["title"], facts["encoder"], database, target)


def study_judge(
    bench: Bench, shared: Shared | None = None, progress: bool | Progress | None = None, *, cells: bool = False
) -> JudgeStudy:
    """Compute both tables of one dataset; with `cells`, evidence is of patches centered on their cell."""
    bars = as_progress(progress)
    shared = shared or Shared(spec=bench.spec, progress=bars)
    pairs = patch_pairs(bench.database, shared, cells=cells)
    if pairs is None:
        raise BadTokens("the judge needs the patch grid, which these tokens do not have; use an encoder with a grid")
    target = _by_target(bench, shared, pairs, bars) if len(bench.queries) > BUDGET else None
    database = _by_database(bench, shared, pairs, bars)
    return JudgeStudy(bench.truth.name, bench.truth.title, bench.encoder.id, database, target)


def _by_database(bench: Bench, shared: Shared, pairs: PatchPairs, progress: Progress) -> JudgeTable:
    fitted, challengers = fitted_spaces(bench.database, shared), fitted_challengers(bench.database, shared)
    assert challengers is not None
    competition = competition_on_database(bench.database, shared)

    def scorer(head: SecondOrderDecisions) -> Scorer:
        kernel = head.kernel(head.representation, 0)
        if head.representation == SECOND_ORDER:
            return fitted.spaces[0].scorer(kernel, DTYPE, Spill())
        return replica_scorer([(1.0, challengers.branches[head.representation], kernel)], shared.spec, DTYPE, Spill())

    decided = select_by_evidence(fitted, competition, pairs.evidence_between, progress)
    return _table(competition, decided, scorer, bench, np.arange(len(bench.queries)), progress)


def _by_target(bench: Bench, shared: Shared, pairs: PatchPairs, progress: Progress) -> JudgeTable:
    fitted = fitted_spaces(bench.database, shared)
    [fold] = budget(BUDGET, splits=1).splits(len(bench.queries))[0].folds
    target, space = bench.queries.select(fold.calibration).tokens, fitted.spaces[0]
    compared = pairs.of(target)
    competition = compete_on_target(fitted, space, space.side.describe(target, True, fitted.dtype))

    def scorer(head: SecondOrderDecisions) -> Scorer:
        kernel = head.kernel(SECOND_ORDER, 0)
        plain = space.scorer(kernel, DTYPE, Spill())
        return calibrated_scorer(plain, head, target, kernel, space)

    evidence = lambda row, images: compared.with_queries([row], [images])[0].evidence  # noqa: E731
    decided = select_by_evidence(fitted, competition, evidence, progress)
    return _table(competition, decided, scorer, bench, fold.evaluated, progress)


def _table(
    competition: Competition,
    decided: Judged,
    scorer: Callable[[SecondOrderDecisions], Scorer],
    bench: Bench,
    evaluated: np.ndarray,
    progress: Progress,
) -> JudgeTable:
    chosen, evidence = decided
    heads = track_progress(competition.heads.items(), len(competition.heads), "evaluating", progress, "heads")
    recall = {name: _recall(scorer(head), bench, evaluated) for name, head in heads}
    found = [
        JudgedCandidate(name, one.value, one.error, one.difference, one.difference_error, recall[name])
        for name, one in evidence.candidates.items()
    ]
    ordered = sorted(found, key=lambda one: -one.value)  # ties keep their order
    return JudgeTable(competition.kind, evidence.incumbent, chosen.name, tuple(ordered))


def _recall(scorer: Scorer, bench: Bench, evaluated: np.ndarray) -> float:
    """Return R@1 of some queries."""
    first = np.concatenate([_first_answers(scorer, bench.queries.select(rows)) for rows in _some_at_a_time(evaluated)])
    [recall] = recall_at(first, [bench.truth.positives[query] for query in evaluated], (1,))
    return recall


def _first_answers(scorer: Scorer, queries: Photos) -> np.ndarray:
    return ranked(scorer.scores(queries.tokens), 1, np.dtype(np.uint32))[0]


def _some_at_a_time(rows: np.ndarray) -> Sequence[np.ndarray]:
    return [rows[start : start + QUERIES_AT_ONCE] for start in range(0, len(rows), QUERIES_AT_ONCE)]


# --- tables ----------------------------------------------------------------------------------------------------


def page(studies: Sequence[JudgeStudy]) -> str:
    """Return Markdown: the judge's choice on every dataset, and every candidate."""
    lines = [
        "| dataset | photos | chosen | R@1 | default | R@1 | best by labels | R@1 | rank correlation |",
        "|---|---|---|--:|---|--:|---|--:|--:|",
        *(_choice(study.title, table) for study in studies for table in (study.database, study.target) if table),
    ]
    return "\n".join([*lines, "", *map(markdown, studies)])


def _choice(title: str, table: JudgeTable) -> str:
    recall = {one.name: 100 * one.recall for one in table.candidates}
    best = max(recall, key=lambda name: recall[name])  # ties go to the higher value
    heads = " | ".join(f"{name} | {recall[name]:.1f}" for name in (table.chosen, table.incumbent, best))
    heads = heads.replace("centring", "centering")
    return f"| {title} | {table.photos} | {heads} | {_format_correlation(table.rank_correlation)} |"


def markdown(study: JudgeStudy) -> str:
    """Return one table of a dataset: candidates of both kinds, chosen ones in bold, defaults marked."""
    lines = [
        f"### {study.title}\n",
        "| photos | head | value | difference to the default | R@1 |",
        "|---|---|--:|--:|--:|",
    ]
    for table in (study.database, study.target):
        if table is None:
            continue
        for one in table.candidates:
            name = f"**{one.name}**" if one.name == table.chosen else one.name
            incumbent = one.name == table.incumbent
            ahead = "default" if incumbent else f"{one.difference:+.3f} ± {one.difference_error:.3f}"
            value = f"{one.value:.3f} ± {one.error:.3f}"
            lines.append(f"| {table.photos} | {name} | {value} | {ahead} | {100 * one.recall:.1f} |")
    return "\n".join([*lines, "", *(_summary(table) for table in (study.database, study.target) if table)])


def _summary(table: JudgeTable) -> str:
    return (
        f"By {table.photos}: rank correlation of value and R@1 {_format_correlation(table.rank_correlation)}; "
        f"the head chosen is {100 * table.loss:.1f} points below the best.\n"
    )


def _format_correlation(correlation: float | None) -> str:
    return "not defined" if correlation is None else f"{correlation:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Value ± error and true R@1 of every head before the judge: database only, and by 64 queries. Markdown."""
    parser = make_parser(main.__doc__ or "", "", stored=True)
    parser.add_argument("--cells", action="store_true", help="compare patches centered on their cell, as maps do")
    return run_script(parser, _study, argv)


def _study(arguments: Namespace) -> None:
    if arguments.show is not None:
        print_text(page([JudgeStudy.from_dict(one) for one in read_study(arguments.show)]) + "\n")
        return
    loaded = load_datasets(arguments)
    bars, model = open_progress(arguments), open_encoder(arguments)
    studies = []
    for data in loaded:
        bench = prepare(data, model, progress=bars)
        shared = Shared(spec=bench.spec, device=arguments.device, progress=bars)
        studies.append(study_judge(bench, shared, bars, cells=arguments.cells))
    if not delivered([study.to_dict() for study in studies], out=arguments.out, json=arguments.json):
        print_text(page(studies) + "\n")


if __name__ == "__main__":
    sys.exit(main())

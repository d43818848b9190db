"""The numbers of a judgement in words and rows, the same on the terminal and on the page."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tfa.report.html import Table, TableRow
from tfa_bench.evaluation.judgement import Judgement, Run
from tfa_bench.evaluation.metres import Metres
from tfa_bench.evaluation.numbers import RunNumbers


def facts_of(judgement: Judgement) -> list[str]:
    """What was asked, and what counts as right."""
    facts = [
        f"{len(judgement.images):,} images, {len(judgement.queries):,} queries; an answer is right: {judgement.rule}."
    ]
    if judgement.not_in_map:
        facts.append(f"{judgement.not_in_map:,} queries have no true place in the map; they count as missed.")
    return facts


def row_of(run: Run, numbers: RunNumbers, active: bool = False) -> dict[str, str]:
    """A row of the table on the terminal, by column."""
    low, high = numbers.interval.low, numbers.interval.high
    recalls = {f"R@{k}": f"{100 * recall:.1f}" for k, recall in numbers.recalls.items()}
    recalls["R@1"] += f" [{100 * low:.1f}, {100 * high:.1f}]"
    return {
        "head": run.name + (" *" if active else ""),
        "queries": f"{numbers.evaluated:,}",
        **recalls,
        "PR area": f"{100 * numbers.curve.area:.1f}",
        "R at 99 % P": f"{100 * numbers.curve.recall_at_precision(0.99):.1f}",
        **_in_words(numbers),
    }


def _in_words(numbers: RunNumbers) -> dict[str, str]:
    sure = "–" if not numbers.sure else f"{numbers.sure_and_right:,} of {numbers.sure:,}"
    words = {"sure and right": sure}
    expected = numbers.expected
    if expected is None:
        return {}
    holds = "holds" if numbers.expectation_holds else "does not hold"
    words["expected recall"] = (
        f"{100 * expected.share:.0f} ({100 * expected.low:.0f}–{100 * expected.high:.0f}), {holds}"
    )
    return words


def metres_row(run: Run, metres: Metres) -> dict[str, str]:
    """A row of the table of distances on the terminal, by column."""
    row = {"head": run.name, "placed": f"{metres.placed:,} of {metres.queries:,}"}
    every = metres.best_of_all if metres.placed < metres.queries else None  # else it is that of the placed
    for name, spread in (("place", metres.fused), ("best answer", metres.best), ("every best answer", every)):
        if spread is not None:
            row |= {f"{name}: median": f"{spread.median:,.1f}", f"{name}: 90 %": f"{spread.ninety:,.1f}"}
    if metres.within_radius is not None:
        row["within radius"] = f"{100 * metres.within_radius:.0f} %"
    if metres.fused_agreed is not None:
        sharp = metres.fused_agreed
        row |= {"agreed": f"{metres.agreed:,}", "agreed: median": f"{sharp.median:,.1f}"}
        row["agreed: 90 %"] = f"{sharp.ninety:,.1f}"
    return row


def table_of(runs: Sequence[tuple[Run, RunNumbers]]) -> Table:
    """The table at the top of the page."""
    rows = []
    for run, numbers in runs:
        percent: dict[str, tuple[float, float | None]] = {
            f"R@{k}": (100 * recall, None) for k, recall in numbers.recalls.items()
        }
        percent["PR area"] = (100 * numbers.curve.area, None)
        percent["R at 99 % P"] = (100 * numbers.curve.recall_at_precision(0.99), None)
        rows.append(TableRow(run.title, percent, _in_words(numbers), run.name))
    return Table(rows)


def short_names(paths: Sequence[str]) -> list[str]:
    """Paths below what all have in common."""
    folders = {os.path.dirname(path) for path in paths}
    common = os.path.commonpath(folders) if folders and len({os.path.isabs(one) for one in folders}) == 1 else ""
    return [os.path.relpath(path, common) if common else path for path in paths]

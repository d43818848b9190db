"""Rows of a page's table from what records come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfa.report.html import Table, TableRow
from tfa_bench.metrics.estimates import Estimate, Scored


def row_of_scores(scored: Scored, numbers: Mapping[str, Estimate]) -> TableRow:
    """A head with its numbers in percent, and their deviation where it has several splits."""
    splits = len(scored.seeds)
    protocol = scored.plan if splits == 1 else f"{scored.plan}, {splits} splits"
    percent = {name: (100 * v.mean, 100 * v.sd if splits > 1 else None) for name, v in numbers.items()}
    title = scored.title + (f" ({scored.note})" if scored.note else "")
    return TableRow(title, percent, {"protocol": protocol, "sees": scored.sees}, scored.head)


def table_of_scores(scored: Sequence[Scored], names: Sequence[str]) -> Table:
    """Recalls and acceptance of each record, called by the names given."""
    rows = []
    for one, name in zip(scored, names, strict=True):
        accepted = {"PR area": one.acceptance.area, "R at 99 % P": one.acceptance.recall_at_99}
        recalls = {f"R@{k}": recall for k, recall in one.recalls.items()}
        rows.append(replace(row_of_scores(one, {**recalls, **accepted}), name=name))
    return Table(rows)

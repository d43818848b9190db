"""Cells of tables, made by hand: SPED under the default encoder unless said otherwise."""

from __future__ import annotations

from typing import Any

from tfa_bench.tables.table import Cell

PAPERS, OWN = "dinov2-b14@322", "dinov2-s14-focus@322"


def cell(head: str, recall: float, **changed: Any) -> Cell:
    values: dict[str, Any] = {
        "dataset": "sped", "dataset_title": "SPED", "paper_row": "SPED", "group": "Condition shift", "encoder": OWN,
        "queries": 607, "declared": 607, "sees": "database", "title": head.upper(),
        "recalls": {k: recall + k - 1 for k in (1, 5, 10, 20)},
    }  # fmt: skip
    return Cell(head=head, **{**values, **changed})


def elsewhere(name: str, row: str = "", group: str = "Other") -> dict[str, Any]:
    return {"dataset": name, "dataset_title": row or name, "paper_row": row, "group": group}

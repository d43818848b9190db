"""The paper's figures as printed in its tables: one JSON file per table, in `bench/paper/`.

Rows are datasets and columns are heads in every file, even if the paper prints them transposed. A row has one name in
all tables; `printed` is its spelling in that table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tfa.errors import BadSpec

PAPER_TABLES = ("primary", "aerial", "native", "spectral", "ground-backbones", "full-query", "aerial-access")

# The paper does not state an input size for DINOv3; 336 is the catalogue's. Its native systems use photos of
# 640x480, which AnyLoc center-crops to whole patches.
BACKBONES = {
    "dinov2-b14@322": "DINOv2-B",
    "dinov2-b14@336": "DINOv2-B 336",  # TF-VPR's own size
    "dinov3-b16@336": "DINOv3-B",
    "dinov2-g14@640x480c/l31-value": "DINOv2-G L31",
}  # encoder id → its name in the paper


@dataclass(frozen=True)
class Figure:
    """One printed number, in percent."""

    value: float
    sd: float | None = None
    mark: str = ""  # "p" published, "r" inference of a checkpoint, "d" reconstruction, "l" author log
    digits: int = 2  # printed decimals


@dataclass(frozen=True)
class PaperColumn:
    """A head or trained reference, under our name."""

    name: str
    title: str
    supervised: bool = False
    mark: str = ""  # applies to all its figures
    backbone: str = ""  # set if the column, not the row, determines it
    group: str = ""


@dataclass(frozen=True)
class PaperRow:
    row: str
    printed: str
    group: str
    backbone: str  # "" if each column has its own
    values: Mapping[str, tuple[Figure, ...]]  # column → one figure per metric


@dataclass(frozen=True)
class PaperTable:
    name: str
    source: str
    title: str
    metrics: tuple[str, ...]  # "R@1", …
    marks: Mapping[str, str]
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]

    def column(self, name: str) -> PaperColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@cache
def paper_table(name: str) -> PaperTable:
    if name not in PAPER_TABLES:
        raise BadSpec(f"{name!r} is not a table of the paper; use one of {', '.join(PAPER_TABLES)}")
    values = json.loads(files("tfa_bench.tables").joinpath("paper", f"{name}.json").read_text("utf-8"))
    columns = tuple(PaperColumn(**column) for column in values["columns"])
    marks = {column.name: column.mark for column in columns}
    return PaperTable(
        name=name,
        source=values["source"],
        title=values["title"],
        metrics=tuple(values["metrics"]),
        marks=values["marks"],
        columns=columns,
        rows=tuple(_row(row, marks) for row in values["rows"]),
    )


def paper_value(
    table: str, row: str, column: str, metric: str = "R@1", *, backbone: str | None = None
) -> Figure | None:
    """Return a figure of a table. If a row has two backbones, the first unless one is named."""
    printed, row = paper_table(table), row_named(row)
    if metric not in printed.metrics:
        return None
    for own in printed.rows:
        if own.row == row and column in own.values and backbone in (None, _backbone(printed, own, column)):
            return own.values[column][printed.metrics.index(metric)]
    return None


def row_named(name: str) -> str:
    """Return the row name used in every file for any printed name: `4S City Loop`, `SVOX-5 macro`, …"""
    return _spellings().get(name, name)


@cache
def _spellings() -> dict[str, str]:
    return {row.printed: row.row for table in PAPER_TABLES for row in paper_table(table).rows}


def _backbone(table: PaperTable, row: PaperRow, column: str) -> str:
    if row.backbone:
        return row.backbone
    own = table.column(column)
    return own.backbone if own else ""


def _row(values: Mapping[str, Any], marks: Mapping[str, str]) -> PaperRow:
    return PaperRow(
        row=values["row"],
        printed=values.get("printed", values["row"]),
        group=values.get("group", ""),
        backbone=values.get("backbone", ""),
        values={
            column: tuple(Figure(**{"mark": marks[column], **figure}) for figure in figures)
            for column, figures in values["values"].items()
        },
    )

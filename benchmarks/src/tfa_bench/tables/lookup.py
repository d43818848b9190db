"""Cells by dataset, encoder and head, with titles and in the order tables show them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from tfa_bench.records import LABELS
from tfa_bench.tables.paper_figures import PAPER_TABLES, paper_table
from tfa_bench.tables.table import OTHER, Cell, raised

_MARKED_NOTES = {"reconstruction": "d", "ours": "o"}  # a note that begins so gives the title this mark


class Lookup:
    """What the records hold. Datasets stand in the paper's order, others after them by title."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = tuple(cells)
        self._found = {(cell.dataset, cell.encoder, cell.head): cell for cell in self.cells}
        self._datasets = {cell.dataset: cell for cell in self.cells}
        self._heads = {cell.head: cell for cell in self.cells}
        order = paper_order()
        self.datasets = sorted(
            self._datasets,
            key=lambda name: (order.get(self.paper_row(name), len(order)), self.dataset_title(name), name),
        )
        self.encoders = sorted({cell.encoder for cell in self.cells})

    def cell(self, dataset: str, encoder: str, head: str) -> Cell | None:
        return self._found.get((dataset, encoder, head))

    def of_head(self, head: str) -> Cell | None:
        """Any record of a head: its title, note and plan."""
        return self._heads.get(head)

    @property
    def trained(self) -> list[str]:
        """Heads that labels trained, in the order found: supervised references."""
        return list(dict.fromkeys(cell.head for cell in self.cells if cell.sees == LABELS))

    def reference(self, dataset: str, head: str) -> Cell | None:
        """The record of a supervised reference, whose encoder is its own."""
        return next((c for c in self.cells if (c.dataset, c.head, c.sees) == (dataset, head, LABELS)), None)

    def saw(self, head: str) -> str:
        """The most a head has seen before it was queried; "" where there is no record."""
        return self._heads[head].sees if head in self._heads else ""

    def encoders_of(self, dataset: str) -> list[str]:
        return [encoder for encoder in self.encoders if any((dataset, encoder) == key[:2] for key in self._found)]

    def paper_row(self, dataset: str) -> str:
        return self._datasets[dataset].paper_row

    def group(self, dataset: str) -> str:
        return self._datasets[dataset].group or OTHER

    def dataset_title(self, dataset: str) -> str:
        return self._datasets[dataset].dataset_title or dataset

    def queries(self, dataset: str) -> tuple[int, int | None]:
        """Queries recorded, and those the published protocol declares."""
        own = self._datasets[dataset]
        return own.queries, own.declared

    def head_title(self, head: str) -> str:
        """The record's title with the mark of its note; the paper's where there is no record."""
        cell = self._heads.get(head)
        if cell is None:
            return paper_title(head) or head
        title = cell.title or head
        for word, mark in _MARKED_NOTES.items():
            if cell.note.startswith(word) and word not in title:
                return title + raised(mark)
        return title


@cache
def paper_order() -> dict[str, int]:
    rows = [row.row for name in ("primary", "native", "aerial") for row in paper_table(name).rows]
    return {row: i for i, row in enumerate(dict.fromkeys(rows))}


@cache
def paper_title(head: str) -> str:
    for name in PAPER_TABLES:
        column = paper_table(name).column(head)
        if column is not None:
            return column.title
    return ""

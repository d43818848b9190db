"""Footnotes: what a table's numbers are, which queries they stand for, what its marks mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tfa_bench.records import LABELS
from tfa_bench.tables.lookup import Lookup
from tfa_bench.tables.paper_figures import PAPER_TABLES, paper_table
from tfa_bench.tables.table import Cell, Number, Table, raised

SEES = ("nothing", "database", "target")
_BUDGET = re.compile(r"C\d+")


def footnotes(
    table: Table,
    look: Lookup,
    heads: Sequence[str],
    ranked_within: str,
    *,
    references: Sequence[str] = (),
    extra: Sequence[str] = (),
    tell_seen: bool = True,
) -> tuple[str, ...]:
    shown = [cell for cell in look.cells if cell.head in heads]
    numbers = [n for row in table.rows for one in row.shown for n in (one.number, one.beside) if n is not None]
    notes = ["Recall in percent: queries with a positive among the first k answers.", *_protocol_notes(look, shown)]
    if any(number.rank for number in numbers):
        notes.append(f"Best and second best training-free number of a {ranked_within} are marked; ties share the mark.")
    if any(_BUDGET.match(cell.plan) for cell in shown):
        notes.append(
            "C-N: N unlabelled queries calibrate and the others are evaluated, mean±sd over splits; "
            "other heads are evaluated on all queries."
        )
    if references:
        titles = ", ".join(look.head_title(name) for name in references)
        whose = "ours from their checkpoints, in parentheses those" if look.trained else "figures"
        notes.append(f"{titles}: supervised references, {whose} of the paper, not ranked.")
    notes += [*extra, *(_what_was_seen(look, heads) if tell_seen else ()), *_notes_of_heads(look, heads)]
    return (*notes, *_of_paper(numbers))


def _protocol_notes(look: Lookup, shown: Sequence[Cell]) -> list[str]:
    encoders = sorted({cell.encoder for cell in shown})
    datasets = [name for name in look.datasets if any(cell.dataset == name for cell in shown)]
    counts = [f"{look.dataset_title(name)} {look.queries(name)[0]:,}" for name in datasets]
    notes = [
        f"Encoder{'s' if len(encoders) > 1 else ''} of the records: {', '.join(encoders)}.",
        f"Queries: {', '.join(counts)}.",
    ]
    for name in datasets:
        here, declared = look.queries(name)
        if declared is not None and here != declared:
            notes.append(f"{look.dataset_title(name)}: {here:,} queries here, {declared:,} in its published protocol.")
    return notes


def _what_was_seen(look: Lookup, heads: Sequence[str]) -> list[str]:
    """The most each head has seen before it answered; what labels trained is named apart."""
    seers: dict[str, list[str]] = {}
    for head in heads:
        cell = look.of_head(head)
        if cell is not None and cell.sees:
            seers.setdefault(cell.sees, []).append(look.head_title(head))
    seen = [f"{sees} by {', '.join(seers[sees])}" for sees in SEES if sees in seers]
    trained = [f"Trained with labels: {', '.join(seers[LABELS])}."] if LABELS in seers else []
    return [*([f"Seen, without labels: {'; '.join(seen)}."] if seen else []), *trained]


def _notes_of_heads(look: Lookup, heads: Sequence[str]) -> list[str]:
    """The notes of records, each once, with the heads that carry it."""
    carriers: dict[str, list[str]] = {}
    for head in heads:
        cell = look.of_head(head)
        if cell is not None and cell.note not in ("", "ablation"):  # an ablation's title says it
            carriers.setdefault(cell.note, []).append(look.head_title(head))
    return [f"{', '.join(titles)}: {note.rstrip('.')}." for note, titles in carriers.items()]


def _of_paper(numbers: Sequence[Number]) -> list[str]:
    """Where the paper's figures are from and what their marks mean there."""
    used = [name for name in PAPER_TABLES if any(number.origin == name for number in numbers)]
    if not used:
        return []
    work, _ = paper_table(used[0]).source.rsplit(", Table ", 1)
    which = ", ".join(paper_table(name).source.rsplit(", Table ", 1)[1] for name in used)
    notes = [f"In parentheses, and in rows named paper: {work}, Table{'s' if len(used) > 1 else ''} {which}."]
    marks = dict.fromkeys(
        f"{raised(mark)} {meaning}"
        for name in used
        for mark, meaning in paper_table(name).marks.items()
        if any(number.origin == name and number.mark == mark for number in numbers)
    )
    return [*notes, f"Marks of the paper: {'; '.join(marks)}."] if marks else notes

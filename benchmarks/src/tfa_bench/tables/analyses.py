"""Layouts of the paper's analyses: paired calibration, comparisons over datasets, and decisions over splits.

    paired        a head calibrated on N queries, and references, on the same queries in every split
    comparisons   wins, ties and losses of one head against others; every dataset and encoder counts as one cell
    decisions     what each calibrated head decided, and the range of its strengths

Definitions that the paper leaves open, by its numbers: retention and net-gain recovery are ratios of means over splits;
the full-query reference of the dual system is the cross-fit (99.26 / 99.50 is the 99.76 % of St-Lucia).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tfa.method.carriers import smooth_step
from tfa_bench.records import Record, RecordPath, Truth, find_records, truth_of
from tfa_bench.scores import check_revisions, evaluate_like, score
from tfa_bench.tables.paper_figures import BACKBONES
from tfa_bench.tables.table import Cell, Column, Lookup, Number, Row, RowGroup, Shown, Table, cells

# --- paired calibration --------------------------------------------------------------------------------------------


_BUDGET = re.compile(r"(tfa|dual)-c(\d+)")
_REFERENCES: Mapping[str, tuple[str, ...]] = {"tfa": ("tfa-fullq",), "dual": ("dual-crossfit", "dual-fullq")}
# Figures of the paper's text: calibrated, its deviation and the reference; then net-gain recovery.
_PAPER_PAIRS: Mapping[tuple[str, str], tuple[float, float, float]] = {
    ("DINOv2-B", "Pitts30k"): (84.58, 1.39, 86.35),
    ("DINOv2-B", "SPED"): (83.79, 0.63, 84.64),
    ("DINOv2-B", "St-Lucia"): (95.72, 2.87, 98.04),
    ("DINOv2-B", "AmsterTime"): (51.99, 1.75, 52.41),
    ("DINOv2-B", "Baidu-Mall"): (63.55, 1.71, 62.37),
}
_PAPER_RECOVERY: Mapping[str, float] = {
    "Pitts30k": 85.1, "SPED": 50.3, "St-Lucia": 21.9, "VPAIR-full": 80.3, "SVOX-5": 89.6,
}  # fmt: skip
_TEXT = "text"  # origin of figures that the paper gives outside its tables


def read_paired(results: Path, *, encoder: str | None = None) -> list[Cell]:
    """Return cells of references, each evaluated on the queries of a head calibrated on N, split by split."""
    groups: dict[Path, dict[str, RecordPath]] = {}
    for path in find_records(results):
        groups.setdefault(path.archive, {})[path.head] = path
    made: list[Cell] = []
    for paths in groups.values():
        for head, path in paths.items():
            match = _BUDGET.fullmatch(head)
            others = [name for name in (match[1], *_REFERENCES[match[1]]) if name in paths] if match else []
            if not others:
                continue
            calibrated, truth = Record.read(path), truth_of(path)
            if encoder not in (None, calibrated.encoder["id"]):
                continue
            made += _pair(calibrated, [Record.read(paths[name]) for name in others], truth)
    return made


def _pair(calibrated: Record, others: Sequence[Record], truth: Truth) -> list[Cell]:
    scored = [score(evaluate_like(other, calibrated), truth, ks=[1]) for other in others]
    check_revisions([score(calibrated, truth, ks=[1]), *scored])
    return [replace(cell, on=calibrated.name) for cell in cells(scored)]


def tabulate_pairs(shown: Sequence[Cell], paper: bool = True) -> Table:
    look = Lookup(cell for cell in shown if not cell.on and _BUDGET.fullmatch(cell.head))
    heads, by_key = Lookup(shown), {(c.dataset, c.encoder, c.on, c.head): c for c in shown if c.on}
    rows: dict[str, list[Row]] = {}
    for dataset in look.datasets:
        own = [cell for cell in look.cells if cell.dataset == dataset]
        for cell in sorted(own, key=lambda cell: (cell.encoder, _size(cell.head))):
            system = cell.head.partition("-")[0]
            for name in _REFERENCES[system]:
                reference = by_key.get((dataset, cell.encoder, cell.head, name))
                plain = by_key.get((dataset, cell.encoder, cell.head, system))
                if reference is not None:
                    stubs = (look.dataset_title(dataset), *map(heads.head_title, (cell.head, name)), cell.encoder)
                    shown_pair = _pair_row(cell, reference, plain, _paper_pair(cell, name) if paper else {})
                    rows.setdefault(look.group(dataset), []).append(Row(stubs, shown_pair))
    titles = ("Calibrated", "Reference", "Difference", "Uncalibrated", "Retention %", "Recovery %")
    notes = [
        "R@1 in percent. In each split, all heads of a row are evaluated on the queries that did not calibrate; "
        "mean±sd over splits.",
        "Retention: calibrated over reference. Recovery: gain over the uncalibrated head, as a share of the gain of "
        "the reference. Both are ratios of means over splits (our reading).",
    ]
    if any(one.beside for own in rows.values() for row in own for one in row.shown):
        notes.append("In parentheses: figures of the paper's text. Its reference of the dual system is the cross-fit.")
    return Table(
        "paired",
        "Calibration on N queries and on all, on the same queries",
        ("Dataset", "Calibrated head", "Reference head", "Encoder"),
        tuple(map(Column, titles)),
        tuple(RowGroup(title, tuple(own)) for title, own in rows.items()),
        tuple(notes),
    )


def _pair_row(cell: Cell, reference: Cell, plain: Cell | None, figures: Mapping[str, Number]) -> tuple[Shown, ...]:
    ours, theirs = _splits(cell), _splits(reference)
    base = None if plain is None else _splits(plain)
    gain = 0.0 if base is None else fmean(theirs) - fmean(base)
    numbers = {
        "calibrated": _over_splits(ours),
        "reference": _over_splits(theirs),
        "difference": _over_splits([one - other for one, other in zip(ours, theirs, strict=True)]),
        "uncalibrated": None if base is None else _over_splits(base),
        "retention": Number(100 * fmean(ours) / fmean(theirs)) if fmean(theirs) else None,
        # Without a gain of the reference there is nothing to recover.
        "recovery": Number(100 * (fmean(ours) - fmean(base)) / gain, digits=1) if base and gain > 0 else None,
    }
    return tuple(Shown(number, figures.get(name)) for name, number in numbers.items())


def _paper_pair(cell: Cell, reference: str) -> dict[str, Number]:
    backbone = BACKBONES.get(cell.encoder, "")
    figures: dict[str, Number] = {}
    known = _PAPER_PAIRS.get((backbone, cell.paper_row))
    if known is not None and (cell.head, reference) == ("tfa-c64", "tfa-fullq"):
        figures = {"calibrated": Number(known[0], known[1], origin=_TEXT), "reference": Number(known[2], origin=_TEXT)}
    recovery = _PAPER_RECOVERY.get(cell.paper_row)
    if recovery is not None and backbone == "DINOv2-G L31" and (cell.head, reference) == ("dual-c64", "dual-crossfit"):
        figures = {"recovery": Number(recovery, digits=1, origin=_TEXT)}
    return figures


def _splits(cell: Cell) -> tuple[float, ...]:
    return cell.splits.get(1, (cell.recalls[1],))


def _over_splits(values: Sequence[float]) -> Number:
    return Number(fmean(values), stdev(values) if len(values) > 1 else None)


def _size(head: str) -> tuple[str, int]:
    match = _BUDGET.fullmatch(head)
    return (match[1], int(match[2])) if match else (head, 0)


# --- comparisons ---------------------------------------------------------------------------------------------------


_PEERS = ("anyloc", "tfvpr", "ria")


@dataclass(frozen=True)
class Comparison:
    """A head against the best of others, on the datasets where all are recorded."""

    head: str
    others: tuple[str, ...]
    printed: str  # the paper's result
    aerial: bool | None = None  # only aerial datasets, only others, or all


COMPARISONS = (
    Comparison("tfa", _PEERS, "9/1/10 (20 ground protocols)", False),
    Comparison("tfa", _PEERS, "14 wins (16 aerial cells)", True),
    Comparison("tfa-fullq", ("tfa-fullq-forced-partial",), "3/7/0, mean +0.82"),
    Comparison("tfa-fullq", ("tfa-fullq-forced-adaptive",), "7/2/1, mean +2.22, worst -0.43 (our reading)"),
    Comparison("tfa-fullq", ("tfa-fullq-ties-partial",), "+2.57 on MSLS-val"),
    Comparison("tfa-fullq", ("tfa-fullq-support-contraction",), "+5.18 on Tokyo24/7"),
    Comparison("tfa-fullq", ("tfa-fullq-forced-hard", "tfa-fullq-forced-soft"), "3 ties of 4, worst -0.56"),
    Comparison("tfa-fullq-always-cls", ("tfa-fullq-no-cls",), "8 losses of 17, mean +0.64, worst -7.51"),
    Comparison("tfa-fullq", ("tfa-fullq-no-cls",), "4/13/0, mean +2.17"),
    Comparison("dual-crossfit", ("dual-k32", "dual-k64"), "27 wins of 28 (our reading)"),
    Comparison("dual-crossfit", ("dual-k32-crossfit", "dual-k64-crossfit"), "27 wins of 28 (our reading)"),
    Comparison("dual-crossfit", ("tfa-fullq",), "19 wins of 23"),
)


def compare_cells(shown: Sequence[Cell], comparison: Comparison, aerial: frozenset[str]) -> list[float]:
    """Return the difference in R@1 (points, as printed with two decimals) of each dataset and encoder."""
    by_key = {(cell.dataset, cell.encoder, cell.head): cell.recalls.get(1) for cell in shown}
    differences = []
    for dataset, encoder, head in by_key:
        own = by_key[dataset, encoder, head]
        others = [by_key.get((dataset, encoder, other)) for other in comparison.others]
        best = max((other for other in others if other is not None), default=None)
        fits = comparison.aerial in (None, dataset in aerial)
        if head == comparison.head and fits and own is not None and best is not None and None not in others:
            differences.append(round(round(own, 2) - round(best, 2), 2))
    return differences


def tabulate_comparisons(shown: Sequence[Cell], aerial: frozenset[str], paper: bool = True) -> Table:
    look, rows = Lookup(shown), []
    for comparison in COMPARISONS:
        found = compare_cells(shown, comparison, aerial)
        if found:
            counts = (len(found), sum(d > 0 for d in found), sum(d == 0 for d in found), sum(d < 0 for d in found))
            numbers = [
                *(Number(count, digits=0) for count in counts),
                *map(Number, (fmean(found), min(found), max(found))),
            ]
            others = "; ".join(look.head_title(other) for other in comparison.others)
            where = {None: "", False: " (ground)", True: " (aerial)"}[comparison.aerial]
            stubs = (look.head_title(comparison.head) + where, others, *([comparison.printed] if paper else []))
            rows.append(Row(stubs, tuple(map(Shown, numbers))))
    return Table(
        "comparisons",
        "Wins, ties and losses in R@1",
        ("Head", "Best of", *(["In the paper"] if paper else [])),
        tuple(map(Column, ("Cells", "Wins", "Ties", "Losses", "Mean gain", "Worst", "Best"))),
        (RowGroup("", tuple(rows)),),
        (
            "A cell is a dataset under an encoder with records of all heads of the row; every cell weighs the same.",
            "Gains are in points of R@1. A tie: equal to two decimals.",
            "TFA-FullQ with a forced adaptive kernel is our reading of the paper's earlier adaptive complete head; the "
            "paper does not say whether the single branches of the dual head were calibrated.",
        ),
    )


# --- decisions -----------------------------------------------------------------------------------------------------


_DECIDERS = ("tfa", "tfa-c64", "tfa-fullq")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "Assignment": ("hard", "soft", "mixture"),
    "Carrier": ("original", "partial", "adaptive"),
}


def tabulate_decisions(shown: Sequence[Cell]) -> Table:
    look, rows = Lookup(cell for cell in shown if cell.head in _DECIDERS and _strengths(cell)), []
    for dataset in look.datasets:
        for encoder in look.encoders_of(dataset):
            for head in _DECIDERS:
                cell = look.cell(dataset, encoder, head)
                if cell is not None:
                    stubs = (look.dataset_title(dataset), look.head_title(head), encoder)
                    rows.append(Row(stubs, tuple(Shown(number) for number in _decision_row(cell))))
    choices = [Column(choice, group) for group, several in _CHOICES.items() for choice in several]
    ranges = [Column(f"{name} {end}", name) for name in ("c", "weight %") for end in ("min", "max")]
    return Table(
        "decisions",
        "Decisions of TFA",
        ("Dataset", "Head", "Encoder"),
        (Column("splits"), *choices, Column("CLS"), *ranges),
        (RowGroup("", tuple(rows)),),
        (
            "Number of splits for each assignment and carrier, and with the global token (CLS).",
            "c: strength of spectral shaping of the assignments in use. Weight: sin²(πc/2), the share of the whitened "
            "kernel in the adaptive carrier.",
        ),
    )


def _decision_row(cell: Cell) -> list[Number]:
    chosen = Counter(made.get("route") or made["assignment"] for made in cell.decisions)
    chosen += Counter(made["carrier"] for made in cell.decisions)
    counts = [chosen[choice] for several in _CHOICES.values() for choice in several]
    token = sum(bool(made["admit_cls"]) for made in cell.decisions)
    strengths = _strengths(cell)
    ends = [min(strengths), max(strengths)]
    return [
        *(Number(count, digits=0) for count in (len(cell.decisions), *counts, token)),
        *(Number(c, digits=3) for c in ends),
        *(Number(100 * smooth_step(c)) for c in ends),
    ]


def _strengths(cell: Cell) -> list[float]:
    """Return c of every assignment in use, over all splits."""
    made: list[Mapping[str, Any]] = [one for one in cell.decisions if "carrier" in one]
    return [
        own["c"] for one in made for own in (one["strengths"].values() if "strengths" in one else [one]) if "c" in own
    ]

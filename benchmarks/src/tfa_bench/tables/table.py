"""Tables as values (columns, groups of rows, cells, footnotes) and their Markdown, CSV and LaTeX renderers.

Numbers are percent. A `Cell` holds the data of one record that layouts need; a `Number` is shown in a table.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from tfa.core.files import write_atomically
from tfa.errors import TfaError
from tfa_bench.datasets.card import cards
from tfa_bench.records import LABELS, Record, Truth, find_records, truth_of
from tfa_bench.scores import KS, check_revisions, score
from tfa_bench.tables.paper_figures import PAPER_TABLES, Figure, paper_table, row_named

if TYPE_CHECKING:
    from tfa_bench.scores import Scored


OTHER = "Other"
MISSING = "–"
BEST, SECOND = 1, 2
PLAIN_MARKS, RAISED_MARKS = "prdlok", "ᵖʳᵈˡᵒᵏ"  # published, inference, reconstruction, log; ours; knife edge
KNIFE_EDGE = "k"  # a decision rests on less than one photo


class NoTable(TfaError):
    """The records have no data for a table, or the table name is unknown."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One head on one dataset under one encoder."""

    dataset: str
    encoder: str
    head: str
    recalls: Mapping[int, float]  # k → mean, percent
    sds: Mapping[int, float] = field(default_factory=dict)  # k → deviation over splits; {} with one split
    queries: int = 0  # number of queries of the dataset
    title: str = ""  # title of the head
    note: str = ""  # "reconstruction", "ours, …"
    plan: str = ""
    sees: str = ""  # nothing < database < target < labels
    dataset_title: str = ""
    group: str = OTHER  # the paper's heading for the dataset
    paper_row: str = ""  # "" if the paper does not have it
    declared: int | None = None  # queries in the dataset's published protocol
    route: str | None = None  # "hard" | "soft" | "mixture": the chosen assignment, if it is one
    splits: Mapping[int, tuple[float, ...]] = field(default_factory=dict)  # k → recall of each split, percent
    first_replica: Mapping[int, float] = field(default_factory=dict)  # k → recall of the first seed, percent
    decisions: tuple[Mapping[str, Any], ...] = ()  # of each fitted head
    on: str = ""  # head with whose queries it was evaluated, split by split; "" for its own
    other_side: float | None = None  # R@1 with the closest decision of each head flipped, percent; None if not ranked
    flips: str = ""  # decisions that rest on less than one photo, after a flip


def cells(scored: Sequence[Scored]) -> list[Cell]:
    """Convert scored records to cells. Headings and paper rows come from the dataset catalogue."""
    known = cards()
    made = []
    for one in scored:
        card = known.get(one.dataset)
        made.append(
            Cell(
                dataset=one.dataset,
                encoder=one.encoder,
                head=one.head,
                recalls={k: 100 * estimate.mean for k, estimate in one.recalls.items()},
                sds={k: 100 * e.sd for k, e in one.recalls.items()} if len(one.seeds) > 1 else {},
                queries=one.queries,
                title=one.title,
                note=one.note,
                plan=one.plan,
                sees=one.sees,
                dataset_title=one.dataset_title,
                group=card.group if card else OTHER,
                paper_row=row_named(card.paper_row) if card else "",
                declared=card.counts.queries if card else None,
                route=_route(one),
                splits={k: tuple(100 * split[i] for split in one.splits) for i, k in enumerate(one.ks)},
                first_replica={k: 100 * estimate.mean for k, estimate in one.first_replica.items()},
                decisions=tuple(fold["decisions"] for folds in one.decisions for fold in folds),
                other_side=None if one.other_side is None else 100 * one.other_side.mean,
                flips=_flips(one),
            )
        )
    return made


def average_cells(cells: Iterable[Cell], member: Callable[[Cell], str | None], count: int, **named: Any) -> list[Cell]:
    """Return cells of the mean over `count` datasets, for each encoder and head recorded on all of them.

    Datasets are averaged within each split; the deviation is over splits. `member` names the dataset of a cell that
    belongs to the mean.
    """
    groups: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        name = member(cell)
        if name is not None:
            groups.setdefault((cell.encoder, cell.head), {})[name] = cell
    made = []
    for own in groups.values():
        if len(own) == count:
            several = list(own.values())
            ks = [k for k in several[0].recalls if all(k in cell.recalls for cell in several)]
            splits = {k: _average_splits([cell.splits.get(k, (cell.recalls[k],)) for cell in several]) for k in ks}
            others = [cell.other_side for cell in several if cell.other_side is not None]
            mean = replace(
                several[0],
                recalls={k: fmean(values) for k, values in splits.items()},
                sds={k: stdev(values) for k, values in splits.items() if len(values) > 1},
                splits=splits,
                queries=sum(cell.queries for cell in several),
                declared=None,
                route=None,
                first_replica={},
                decisions=(),
                other_side=fmean(others) if len(others) == count else None,
                flips="the closest decision in every dataset" if len(others) == count else "",
            )
            made.append(replace(mean, **named))
    return made


def _average_splits(by_dataset: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(fmean(values) for values in zip(*by_dataset, strict=True))


def read_scored(results: Path, *, encoder: str | None = None, precision_depth: int | None = None) -> list[Scored]:
    """Score the records below a folder, of all encoders or one. A shallow record lacks the deep recalls.

    Trained systems have their own encoders and are always included.
    """
    truths: dict[Path, Truth] = {}
    made: list[Scored] = []
    encoders: set[str] = set()
    for path in find_records(results):
        record, folder = Record.read(path), path.dataset_folder
        encoders.add(record.encoder["id"])
        if encoder not in (None, record.encoder["id"]) and record.head["data_used"] != LABELS:
            continue
        if folder not in truths:
            truths[folder] = truth_of(path)
        ks = [k for k in KS if k <= record.depth]
        made.append(score(record, truths[folder], ks=ks, precision_depth=precision_depth))
    if not encoders:
        raise NoTable(f"{results} holds no records; write them with: tfa bench run --out {results}")
    if encoder is not None and encoder not in encoders:
        raise NoTable(f"{results} holds no record of encoder {encoder!r}; it has {', '.join(sorted(encoders))}")
    for one in encoders:  # tables compare records of one encoder
        check_revisions([scored for scored in made if scored.encoder == one])
    return made


def read_cells(results: Path, *, encoder: str | None = None) -> list[Cell]:
    """Read the cells of the records below a folder."""
    return cells(read_scored(results, encoder=encoder))


def _route(scored: Scored) -> str | None:
    """Return a record's assignment; None if its heads have none or different ones."""
    decided = [fold["decisions"] for folds in scored.decisions for fold in folds]
    routes = {decisions["route"] for decisions in decided if "route" in decisions}
    return routes.pop() if len(routes) == 1 else None


def _flips(scored: Scored) -> str:
    """Return the close decisions in words, those ranked with their other side first."""
    from tfa.method.decisions import list_close_decisions  # loads scipy

    flipped, others = Counter[str](), Counter[str]()
    decided = [fold["decisions"] for folds in scored.decisions for fold in folds]
    for one in decided:
        ranked = one.get("other_side")
        close = {name: flip["choice"] for name, flip in list_close_decisions(one.get("margins", {}))}
        if ranked is not None:
            flipped[f"{_DECISIONS[ranked['decision']]} {ranked['choice']}"] += 1
            close.pop(ranked["decision"], None)
        others.update(f"{_DECISIONS[name]} {choice}" for name, choice in close.items())
    words = [
        ", ".join(name if len(decided) == 1 else f"{name} in {n} of {len(decided)} heads" for name, n in found.items())
        for found in (flipped, others)
    ]
    return "; also close: ".join(filter(None, words))


_DECISIONS = {"assignment": "assignment", "carrier": "carrier", "admit_cls": "global token"}


@dataclass(frozen=True)
class Number:
    """A printed number. `rank` is BEST or SECOND among the training-free ones it is compared with, else 0."""

    value: float
    sd: float | None = None
    mark: str = ""
    digits: int = 2
    rank: int = 0
    origin: str = ""  # the paper's table; "" for our numbers

    @property
    def printed_sd(self) -> str:
        """Standard deviation as text: with our number's decimals, or two next to the paper's figure."""
        return "" if self.sd is None else f"{self.sd:.{2 if self.origin else self.digits}f}"


@dataclass(frozen=True)
class Shown:
    """A table cell: our number with the paper's in parentheses, a number of the paper, or nothing."""

    number: Number | None = None
    beside: Number | None = None


@dataclass(frozen=True)
class Column:
    title: str
    group: str = ""  # a heading over neighboring columns
    label: str = ""  # its name with a single heading line [default: title]

    @property
    def full(self) -> str:
        return self.label or self.title


@dataclass(frozen=True)
class Row:
    stubs: tuple[str, ...]
    shown: tuple[Shown, ...]


@dataclass(frozen=True)
class RowGroup:
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    stubs: tuple[str, ...]  # headings of the columns that name a row
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    footnotes: tuple[str, ...]

    @property
    def rows(self) -> Iterable[Row]:
        return (row for group in self.groups for row in group.rows)


def raised(mark: str) -> str:
    """Return a mark as a superscript letter."""
    return mark.translate(str.maketrans(PLAIN_MARKS, RAISED_MARKS))


def number_of(cell: Cell | None, k: int, digits: int = 2) -> Number | None:
    if cell is None or k not in cell.recalls:
        return None
    mark = KNIFE_EDGE if cell.flips else ""
    return Number(cell.recalls[k], cell.sds.get(k), mark, digits)


def number_of_figure(figure: Figure, table: str) -> Number:
    return Number(figure.value, figure.sd, figure.mark, figure.digits, origin=table)


def rank_numbers(numbers: Sequence[Number | None]) -> list[Number | None]:
    """Mark the best and the second best. Numbers that print equal share a rank; the next value is second."""
    printed = [None if number is None else round(number.value, min(number.digits, 2)) for number in numbers]
    order = sorted({value for value in printed if value is not None}, reverse=True)
    ranks = dict(zip(order, (BEST, SECOND), strict=False))
    return [
        None if number is None or value is None else replace(number, rank=ranks.get(value, 0))
        for number, value in zip(numbers, printed, strict=True)
    ]


_MARKED_NOTES = {
    "reconstruction": "d",
    "our reading": "d",
    "ours": "o",
}  # a note with this beginning adds this mark to the title


class Lookup:
    """Index of the recorded cells. Datasets are in the paper's order, others after them by title."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = tuple(cells)
        self._by_key = {(cell.dataset, cell.encoder, cell.head): cell for cell in self.cells}
        self._datasets = {cell.dataset: cell for cell in self.cells}
        self._heads = {cell.head: cell for cell in self.cells}
        order = paper_order()
        self.datasets = sorted(
            self._datasets,
            key=lambda name: (order.get(self.paper_row(name), len(order)), self.dataset_title(name), name),
        )
        self.encoders = sorted({cell.encoder for cell in self.cells})

    def cell(self, dataset: str, encoder: str, head: str) -> Cell | None:
        return self._by_key.get((dataset, encoder, head))

    def of_head(self, head: str) -> Cell | None:
        """Return any record of a head, for its title, note and plan."""
        return self._heads.get(head)

    @property
    def trained(self) -> list[str]:
        """Heads trained with labels, in recorded order: supervised references."""
        return list(dict.fromkeys(cell.head for cell in self.cells if cell.sees == LABELS))

    def reference(self, dataset: str, head: str) -> Cell | None:
        """Return the record of a supervised reference under its own encoder."""
        return next((c for c in self.cells if (c.dataset, c.head, c.sees) == (dataset, head, LABELS)), None)

    def data_used(self, head: str) -> str:
        """Return the most data a head used before it was queried; "" without a record."""
        return self._heads[head].sees if head in self._heads else ""

    def encoders_of(self, dataset: str) -> list[str]:
        return [encoder for encoder in self.encoders if any((dataset, encoder) == key[:2] for key in self._by_key)]

    def paper_row(self, dataset: str) -> str:
        return self._datasets[dataset].paper_row

    def group(self, dataset: str) -> str:
        return self._datasets[dataset].group or OTHER

    def dataset_title(self, dataset: str) -> str:
        return self._datasets[dataset].dataset_title or dataset

    def queries(self, dataset: str) -> tuple[int, int | None]:
        """Return the number of recorded queries and of those the published protocol declares."""
        own = self._datasets[dataset]
        return own.queries, own.declared

    def head_title(self, head: str) -> str:
        """Return the record's title with the mark of its note; the paper's title without a record."""
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


# --- text ----------------------------------------------------------------------------------------------------------


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "→": r"$\to$",
    "–": "--", "…": r"\dots{}", "×": r"$\times$", "−": "$-$",
} | {raised: f"$^{{{plain}}}$" for plain, raised in zip(PLAIN_MARKS, RAISED_MARKS, strict=True)}  # fmt: skip

_CODE = re.compile(r"`([A-Za-z0-9_@ -]+)`")


def markdown(table: Table) -> str:
    heads = [*table.stubs, *(column.full for column in table.columns)]
    lines = [[_plain(text) for text in heads]]
    for group in table.groups:
        if group.title:
            lines.append([f"**{_plain(group.title)}**"] + [""] * (len(heads) - 1))
        for row in group.rows:
            lines.append([_plain(stub) for stub in row.stubs] + [_shown(one, _markdown_number) for one in row.shown])
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(heads))]
    left = len(table.stubs)
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    padded = [_padded(line, widths, left) for line in lines]
    body = "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
    notes = "\n".join(f"- {_plain(note)}" for note in table.footnotes)
    return f"## {_plain(table.title)}\n\n{body}\n" + (f"\n{notes}\n" if notes else "")


def _padded(line: Sequence[str], widths: Sequence[int], left: int) -> list[str]:
    return [
        text.ljust(width) if i < left else text.rjust(width)
        for i, (text, width) in enumerate(zip(line, widths, strict=True))
    ]


def _plain(text: str) -> str:
    """Escape Markdown, except for `code`."""
    parts = _CODE.split(text.replace("\n", " "))
    return "".join(f"`{part}`" if at % 2 else _escape_markdown(part) for at, part in enumerate(parts))


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\|*_<`[]" else letter for letter in text)


def _markdown_number(number: Number) -> str:
    around = {BEST: "**", SECOND: "_"}.get(number.rank, "")
    sd = "" if number.sd is None else f"±{number.printed_sd}"
    return f"{around}{number.value:.{number.digits}f}{around}{sd}{raised(number.mark)}"


def _shown(one: Shown, write: Callable[[Number], str], missing: str = MISSING) -> str:
    beside = "" if one.beside is None else f"({write(one.beside)})"
    if one.number is None:
        return f"{missing} {beside}".rstrip()
    return f"{write(one.number)} {beside}".rstrip()


def comma_separated(table: Table) -> str:
    """Render as CSV, one line per row; deviations, marks and the paper's figures have columns of their own.

    Footnotes and ranks are omitted: every field is a name or a number.
    """
    parts = [
        (column.full, i, part)
        for i, column in enumerate(table.columns)
        for part in ("value", "sd", "mark", "paper", "paper sd")
        if part == "value" or any(_part(row.shown[i], part) for row in table.rows)
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [_unmarked(name) if part == "value" else f"{_unmarked(name)} {part}" for name, _, part in parts]
    writer.writerow(["group", *(stub.lower() for stub in table.stubs), *names])
    for group in table.groups:
        for row in group.rows:
            writer.writerow(
                [group.title, *map(_unmarked, row.stubs), *(_part(row.shown[i], part) for _, i, part in parts)]
            )
    return text.getvalue()


def _unmarked(text: str) -> str:
    return "".join(letter for letter in _CODE.sub(r"\1", text) if letter not in RAISED_MARKS)


def _part(one: Shown, part: str) -> str:
    number = one.beside if part.startswith("paper") else one.number
    if number is None:
        return ""
    if part == "mark":
        return number.mark
    if part.endswith("sd"):
        return number.printed_sd
    return f"{number.value:.{number.digits}f}"


def latex(table: Table) -> str:
    """Render as a floating LaTeX table for booktabs."""
    left = len(table.stubs)
    width = left + len(table.columns)
    lines = [r"\begin{table}", r"\centering\footnotesize", rf"\caption{{{escaped(table.title)}}}"]
    lines += [rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{@{{}}{'l' * left}{'r' * len(table.columns)}@{{}}}}"]
    lines += [r"\toprule", *_latex_headings(table.columns, left)]
    lines.append(_latex_line(escaped(text) for text in [*table.stubs, *(column.title for column in table.columns)]))
    for group in table.groups:
        lines.append(r"\midrule")
        if group.title:
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textbf{{{escaped(group.title)}}}}} \\")
        for row in group.rows:
            numbers = (_shown(one, _latex_number, "--") for one in row.shown)
            lines.append(_latex_line([*map(escaped, row.stubs), *numbers]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\raggedright\scriptsize {escaped(note)}" for note in table.footnotes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _latex_headings(columns: Sequence[Column], left: int) -> list[str]:
    """Return the line of spanning headings, with the rules below them."""
    if not any(column.group for column in columns):
        return []
    fields, rules, at = [""] * left, "", left + 1
    for title, spanned in groupby(columns, key=lambda column: column.group):
        count = len(list(spanned))
        fields.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(title)}}}")
        rules += rf"\cmidrule(lr){{{at}-{at + count - 1}}}" if title else ""
        at += count
    return [_latex_line(fields), rules]


def _latex_line(fields: Iterable[str]) -> str:
    return " & ".join(fields) + r" \\"


def _latex_number(number: Number) -> str:
    value = f"{number.value:.{number.digits}f}"
    value = {BEST: rf"\textbf{{{value}}}", SECOND: rf"\underline{{{value}}}"}.get(number.rank, value)
    sd = "" if number.sd is None else rf"$\pm${number.printed_sd}"
    return value + sd + (f"$^{{{number.mark}}}$" if number.mark else "")


def escaped(text: str) -> str:
    """Escape text for LaTeX; `code` is set in a typewriter face."""
    parts = ["".join(_LATEX.get(letter, letter) for letter in part) for part in _CODE.split(text.replace("\n", " "))]
    return "".join(rf"\texttt{{{part}}}" if at % 2 else part for at, part in enumerate(parts))


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "markdown": ("md", markdown),
    "csv": ("csv", comma_separated),
    "latex": ("tex", latex),
}  # name on the command line → file extension, renderer


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex, each atomically."""
    written = []
    for ending, render in FORMATS.values():
        path, content = folder / f"{table.name}.{ending}", render(table).encode("utf-8")
        write_atomically(path, partial(_write, content=content))
        written.append(path)
    return written


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)

"""Build tables: datasets as rows and heads as columns, or heads as rows and datasets as columns.

The paper's figures are next to ours if the encoder is the paper's; otherwise they have their own row, named
`paper (backbone)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tfa_bench.records import LABELS
from tfa_bench.tables.paper_figures import BACKBONES, PAPER_TABLES, paper_table, paper_value
from tfa_bench.tables.table import (
    KNIFE_EDGE,
    OTHER,
    Cell,
    Column,
    Lookup,
    Number,
    Row,
    RowGroup,
    Shown,
    Table,
    number_of,
    number_of_figure,
    raised,
    rank_numbers,
)

_DATA = ("nothing", "database", "target")
_BUDGET = re.compile(r"C\d+")


def footnotes(
    table: Table,
    look: Lookup,
    heads: Sequence[str],
    ranked_within: str,
    *,
    references: Sequence[str] = (),
    extra: Sequence[str] = (),
    list_data_used: bool = True,
    query_row: bool = False,
    titles: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    shown = [cell for cell in look.cells if cell.head in heads]
    numbers = [n for row in table.rows for one in row.shown for n in (one.number, one.beside) if n is not None]
    recall = "R@k (recall): share of queries with a correct image among the first k answers, in percent."
    notes = [recall, *_protocol_notes(look, shown, query_row)]
    if any(number.rank for number in numbers):
        notes.append(f"Bold and italic: best and second best training-free number of a {ranked_within}.")
    if not query_row and any(_BUDGET.match(cell.plan) for cell in shown):
        notes.append(
            "C64 and similar: this many unlabeled queries calibrate, and the others are evaluated (mean ± standard "
            "deviation over splits). Other heads are evaluated on all queries."
        )
    if references:
        systems = ", ".join(look.head_title(name) for name in references)
        source = "our runs, with the paper's numbers in parentheses" if look.trained else "the paper's numbers"
        notes.append(f"{systems}: supervised references ({source}), not ranked.")
    notes += [
        *extra,
        *(_data_used_notes(look, heads) if list_data_used else ()),
        *_notes_of_heads(look, heads, titles or {}),
    ]
    return (*notes, *_knife_edges(look, shown), *_of_paper(numbers))


def _knife_edges(look: Lookup, shown: Sequence[Cell]) -> list[str]:
    """Return the decisions that rest on less than one photo with R@1 on their other side, and heads without it."""
    close = [cell for cell in shown if cell.flips]
    if not close:
        return []
    sides = "; ".join(
        f"{look.dataset_title(cell.dataset)} {look.head_title(cell.head)} {cell.other_side:.2f} ({cell.flips})"
        for cell in close
        if cell.other_side is not None
    )
    without = "; ".join(dict.fromkeys(look.head_title(cell.head) for cell in close if cell.other_side is None))
    parts = [
        f"{raised(KNIFE_EDGE)} A decision rests on less than one photo.",
        *([f"R@1 on its other side: {sides}."] if sides else []),
        *([f"Not ranked on its other side: {without}."] if without else []),
    ]
    return [" ".join(parts)]


def _protocol_notes(look: Lookup, shown: Sequence[Cell], query_row: bool) -> list[str]:
    encoders = sorted({cell.encoder for cell in shown})
    datasets = [name for name in look.datasets if any(cell.dataset == name for cell in shown)]
    counts = [f"{look.dataset_title(name)} {look.queries(name)[0]:,}" for name in datasets]
    notes = [
        f"Encoder{'s' if len(encoders) > 1 else ''} of the records: {', '.join(encoders)}.",
        *(() if query_row else (f"Queries: {', '.join(counts)}.",)),
    ]
    for name in datasets:
        here, declared = look.queries(name)
        if declared is not None and here != declared:
            notes.append(f"{look.dataset_title(name)}: {here:,} queries here, {declared:,} in its published protocol.")
    return notes


def _data_used_notes(look: Lookup, heads: Sequence[str]) -> list[str]:
    """Return the data each head used before it answered; heads trained with labels are listed separately."""
    titles: dict[str, list[str]] = {}
    for head in heads:
        cell = look.of_head(head)
        if cell is not None and cell.sees:
            titles.setdefault(cell.sees, []).append(look.head_title(head))
    used = [f"{data} ({'; '.join(titles[data])})" for data in _DATA if data in titles]
    trained = [f"Trained with labels: {'; '.join(titles[LABELS])}."] if LABELS in titles else []
    return [*([f"Data used, without labels: {', '.join(used)}."] if used else []), *trained]


def _notes_of_heads(look: Lookup, heads: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    """Return each note of the records once, with the heads that have it."""
    carriers: dict[str, list[str]] = {}
    for head in heads:
        cell = look.of_head(head)
        if cell is not None and cell.note and not cell.note.startswith(("ablation", "ours")):  # title or mark says it
            title = renamed.get(head) or look.head_title(head)
            note = cell.note.removeprefix("reconstruction: ") if "reconstruction" in title else cell.note
            carriers.setdefault(note, []).append(title)
    notes = [f"{'; '.join(titles)}: {note.rstrip('.')}." for note, titles in carriers.items()]
    ours = any(look.head_title(head).endswith(raised("o")) and head not in renamed for head in heads)
    return [*([f"{raised('o')}: not in the paper."] if ours else []), *notes]


def _of_paper(numbers: Sequence[Number]) -> list[str]:
    """Return the source of the paper's figures and the meaning of their marks."""
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


_ANY_BACKBONE = "any"  # for trained systems, which have their own backbone
_SUPERVISED_ENCODERS = "their own"


@dataclass(frozen=True, kw_only=True)
class ByDataset:
    """Datasets as rows. `heads` maps a head to the heading over its column; with several `ks` a head is a heading."""

    name: str
    title: str
    heads: Mapping[str, str]
    ks: tuple[int, ...] = (1,)
    paper: tuple[str, ...]  # tables of the paper to search, in order
    backbones: tuple[str, ...] = ("DINOv2-B",)
    references: tuple[str, ...] = ()  # trained references: columns of paper[0]; others follow if recorded
    grouped: bool = True  # by the paper's headings; otherwise one group per dataset
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ByHead:
    """Heads as rows, in blocks; datasets as columns, or recalls of one dataset."""

    name: str
    title: str
    blocks: Mapping[str, tuple[str, ...]]
    ks: tuple[int, ...] = (1,)
    paper: tuple[str, ...]
    paper_rows: bool = False  # rows for figures of the paper without one of ours
    unranked: tuple[str, ...] = ()  # blocks whose numbers are not compared
    across_encoders: bool = False  # ranks compare systems, not heads of one encoder
    mean: bool = False  # a last column: the mean over all datasets, of heads that have a number for each
    titles: Mapping[str, str] = field(default_factory=dict)  # titles of heads that differ here
    digits: int = 2  # decimals of our numbers
    query_row: bool = False  # a first row with the number of queries per dataset; notes explain calibration
    notes: tuple[str, ...] = field(default=())


def by_dataset(sheet: ByDataset, look: Lookup, *, paper: bool = True) -> Table:
    references = tuple(dict.fromkeys([*(sheet.references if paper else ()), *look.trained]))
    columns = [
        _column(look.head_title(head), group, k, len(sheet.ks) > 1)
        for head, group in (dict.fromkeys(references, "Supervised references") | dict(sheet.heads)).items()
        for k in sheet.ks
    ]
    groups: dict[str, list[Row]] = {}
    for dataset in look.datasets:
        row, title = look.paper_row(dataset), look.dataset_title(dataset)
        heading = (look.group(dataset) if row else OTHER) if sheet.grouped else title
        lines = _lines_of_dataset(sheet, look, dataset, references, paper)
        stub = (title,) if sheet.grouped else ()
        groups.setdefault(heading, []).extend(Row((*stub, encoder), shown) for encoder, shown in lines)
    ordered = sorted(groups.items(), key=lambda item: item[0] == OTHER)  # stable: Other goes last
    made = Table(
        name=sheet.name,
        title=sheet.title,
        stubs=("Dataset", "Encoder") if sheet.grouped else ("Encoder",),
        columns=tuple(columns),
        groups=tuple(RowGroup(heading, tuple(rows)) for heading, rows in ordered),
        footnotes=(),
    )
    heads = [*references, *sheet.heads]
    notes = footnotes(made, look, heads, "row", references=references, extra=sheet.notes)
    return replace(made, footnotes=notes)


def without_one_encoder(table: Table) -> Table:
    """Remove the encoder column if all rows have the same encoder; a footnote names it."""
    encoders = {row.stubs[-1] for row in table.rows}
    if table.stubs[-1] != "Encoder" or len(table.stubs) == 1 or len(encoders) != 1:
        return table
    groups = (
        replace(group, rows=tuple(replace(row, stubs=row.stubs[:-1]) for row in group.rows)) for group in table.groups
    )
    return replace(table, stubs=table.stubs[:-1], groups=tuple(groups))


def _column(title: str, group: str, k: int, several: bool) -> Column:
    return Column(f"R@{k}", title, f"{title} R@{k}") if several else Column(title, group)


def _lines_of_dataset(
    sheet: ByDataset, look: Lookup, dataset: str, references: Sequence[str], paper: bool
) -> list[tuple[str, tuple[Shown, ...]]]:
    """Return encoder and cells of each line: ours, then the paper's under other backbones."""
    row, slots = look.paper_row(dataset), [(head, k) for head in sheet.heads for k in sheet.ks]
    trained = [(head, k) for head in references for k in sheet.ks]

    def printed(slots: Iterable[tuple[str, int]], backbone: str | None) -> list[Number | None]:
        if not paper or not row or backbone is None:
            return [None for _ in slots]
        return [figure(sheet.paper, row, head, k, backbone) for head, k in slots]

    recorded = [number_of(look.reference(dataset, head), k) for head, k in trained]

    def supervised(backbone: str | None) -> list[Shown]:
        """Return our number with the paper's on every line (trained systems have one encoder), or only the paper's."""
        theirs = printed(trained, backbone)
        beside = printed(trained, _ANY_BACKBONE)
        return [
            Shown(one) if own is None else Shown(own, other)
            for own, one, other in zip(recorded, theirs, beside, strict=True)
        ]

    lines: list[tuple[str, tuple[Shown, ...]]] = []
    beside_ours = set()
    for encoder in look.encoders_of(dataset):
        ours = [number_of(look.cell(dataset, encoder, head), k) for head, k in slots]
        if not any(ours):
            continue
        backbone = BACKBONES.get(encoder)
        beside_ours.add(backbone)
        cells = map(Shown, _ranked_by_k(ours, sheet.ks), printed(slots, backbone))
        lines.append((encoder, (*supervised(backbone), *cells)))
    if not lines and any(recorded):  # only trained systems are recorded
        lines.append((_SUPERVISED_ENCODERS, (*supervised(None), *(Shown() for _ in slots))))
    for backbone in sheet.backbones if lines else ():
        theirs = printed(slots, backbone)
        if backbone not in beside_ours and any(theirs):
            cells = map(Shown, _ranked_by_k(theirs, sheet.ks))
            lines.append((f"paper ({backbone})", (*map(Shown, printed(trained, backbone)), *cells)))
    return lines


def _ranked_by_k(numbers: Sequence[Number | None], ks: Sequence[int]) -> list[Number | None]:
    """Rank the numbers of a line (head by head, k by k within a head) separately for each k."""
    marked = list(numbers)
    for offset in range(len(ks)):
        marked[offset :: len(ks)] = rank_numbers(marked[offset :: len(ks)])
    return marked


def by_head(sheet: ByHead, look: Lookup, *, paper: bool = True) -> Table:
    slots = [(dataset, k) for dataset in look.datasets for k in sheet.ks]
    one = len(look.datasets) == 1
    columns = [Column(f"R@{k}") if len(sheet.ks) > 1 else Column(look.dataset_title(name)) for name, k in slots]
    if sheet.mean and not one:
        columns.append(Column("mean"))
    groups: list[RowGroup] = []
    for title, heads in sheet.blocks.items():
        ours = [line for head in heads for line in _lines_of_head(sheet, look, head, slots, paper)]
        if ours:
            rows = ours if title in sheet.unranked else _ranked_down(ours, sheet.across_encoders)
            groups.append(RowGroup(title, tuple(rows)))
    if sheet.query_row and groups:
        groups.insert(0, RowGroup("", (_query_row(sheet, look, slots, [row for own in groups for row in own.rows]),)))
    name = f"{sheet.title}: {look.dataset_title(look.datasets[0])}" if one else sheet.title
    made = Table(sheet.name, name, ("Head", "Data used", "Encoder"), tuple(columns), tuple(groups), ())
    listed = [head for block in sheet.blocks.values() for head in block]
    scope = "column" if sheet.across_encoders else "column, group and encoder"
    return replace(
        made,
        footnotes=footnotes(
            made,
            look,
            listed,
            scope,
            extra=sheet.notes,
            list_data_used=False,
            query_row=sheet.query_row,
            titles=sheet.titles,
        ),
    )


def _query_row(sheet: ByHead, look: Lookup, slots: Sequence[tuple[str, int]], rows: Sequence[Row]) -> Row:
    """Return a row with the number of queries per dataset, and the encoder if all rows share it."""
    encoders = {row.stubs[-1] for row in rows}
    counts = [Shown(Number(look.queries(dataset)[0], digits=0)) for dataset, _ in slots]
    mean = [Shown()] if sheet.mean and len(look.datasets) > 1 else []
    return Row(("Number of queries", "", encoders.pop() if len(encoders) == 1 else ""), (*counts, *mean))


def _lines_of_head(sheet: ByHead, look: Lookup, head: str, slots: Sequence[tuple[str, int]], paper: bool) -> list[Row]:
    def printed(backbone: str | None) -> list[Number | None]:
        if not paper or backbone is None:
            return [None for _ in slots]
        return [figure(sheet.paper, look.paper_row(dataset), head, k, backbone) for dataset, k in slots]

    title, data_used, lines, beside_ours = (
        sheet.titles.get(head) or look.head_title(head),
        look.data_used(head),
        [],
        set(),
    )
    trained = data_used == LABELS
    for encoder in look.encoders:
        ours = [number_of(look.cell(dataset, encoder, head), k, sheet.digits) for dataset, k in slots]
        if any(ours):
            backbone = _ANY_BACKBONE if trained else BACKBONES.get(encoder)
            beside_ours.add(backbone)
            mean = [Shown(_mean(ours))] if sheet.mean and len(look.datasets) > 1 else []
            lines.append(Row((title, data_used, encoder), (*map(Shown, ours, printed(backbone)), *mean)))
    for backbone in _paper_backbones(sheet.paper, head) if sheet.paper_rows else ():
        theirs = printed(backbone)
        if not beside_ours & {backbone, _ANY_BACKBONE} and any(theirs):
            lines.append(Row((title, data_used, f"paper ({backbone})"), tuple(map(Shown, theirs))))
    return lines


def _mean(numbers: Sequence[Number | None]) -> Number | None:
    known = [number.value for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    return Number(sum(known) / len(known), digits=next(number.digits for number in numbers if number is not None))


def _paper_backbones(tables: Sequence[str], head: str) -> list[str]:
    """Return the backbones the paper used for a head, from the first table that has it."""
    for name in tables:
        table = paper_table(name)
        column = table.column(head)
        if column is not None:
            return [column.backbone] if column.backbone else list(dict.fromkeys(row.backbone for row in table.rows))
    return []


def _ranked_down(rows: Sequence[Row], across_encoders: bool) -> list[Row]:
    """Rank each column: ours among ours (of one encoder, or all), the paper's among the paper's."""
    scopes: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        encoder = row.stubs[-1]
        theirs = encoder.startswith("paper (")
        scopes.setdefault("paper" if theirs else "ours" if across_encoders else encoder, []).append(i)
    marked = list(rows)
    for members in scopes.values():
        by_column = zip(*([one.number for one in rows[i].shown] for i in members), strict=True)
        by_row = zip(*map(rank_numbers, by_column), strict=True)
        for i, numbers in zip(members, by_row, strict=True):
            shown = tuple(Shown(number, one.beside) for number, one in zip(numbers, rows[i].shown, strict=True))
            marked[i] = replace(rows[i], shown=shown)
    return marked


def figure(tables: Sequence[str], row: str, head: str, k: int, backbone: str) -> Number | None:
    """Return the figure of the first table that has it."""
    wanted = None if backbone == _ANY_BACKBONE else backbone
    for table in tables:
        found = paper_value(table, row, head, f"R@{k}", backbone=wanted)
        if found is not None:
            return number_of_figure(found, table)
    return None

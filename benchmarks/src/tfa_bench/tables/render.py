"""Tables as text: Markdown for people, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from tfa.core.files import write_atomically
from tfa_bench.tables.table import (
    BEST,
    MISSING,
    PLAIN_MARKS,
    RAISED_MARKS,
    SECOND,
    Column,
    Number,
    Shown,
    Table,
    raised,
)

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "→": r"$\to$",
    "–": "--", "…": r"\dots{}", "×": r"$\times$", "−": "$-$",
} | {raised: f"$^{{{plain}}}$" for plain, raised in zip(PLAIN_MARKS, RAISED_MARKS, strict=True)}  # fmt: skip

_CODE = re.compile(r"`([A-Za-z0-9_ -]+)`")


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
    """One line a row; deviations, marks and the paper's figures in columns of their own, nothing where there is none.

    Footnotes and ranks stay out: every field is a name or a number.
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
    """A floating table for booktabs."""
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
    """The line of headings that span columns, with the rules below them."""
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
}  # name on the command line → ending of its file, renderer


def write_table(table: Table, folder: Path) -> list[Path]:
    """NAME.md, NAME.csv and NAME.tex, each whole or not at all."""
    written = []
    for ending, render in FORMATS.values():
        path, content = folder / f"{table.name}.{ending}", render(table).encode("utf-8")
        write_atomically(path, partial(_write, content=content))
        written.append(path)
    return written


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)

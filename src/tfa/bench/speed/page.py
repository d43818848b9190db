"""The page of performance: tables from the files that `tfa bench speed --out` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfa.bench.speed.result_line import COLUMNS, Line, cells, format_bytes
from tfa.bench.speed.suite import FORMAT, SUITE, VERSION
from tfa.core.files import BadFile, require_format

Result = Mapping[str, Any]


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Results from files, and from every JSON file of folders, in the order of their names."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        listed = ", ".join(map(str, paths))
        raise BadFile(f"{listed}: there is no JSON file; write one with tfa bench speed --out {paths[0]}/speed.json")
    return [
        require_format(file, FORMAT, VERSION, BadFile, f"; write it with tfa bench speed --out {file}")
        for file in files
    ]


def performance_page(results: Sequence[Result]) -> str:
    """Markdown: the targets and what was measured, then a table for each benchmark of each run."""
    machines = list(dict.fromkeys(format_machine(result) for result in results))
    sections = [_introduction(machines, results), _bars(results, machines)]
    for name in _names(results):
        sections.append(_section(name, results, machines))
    return "\n".join(section.rstrip() + "\n" for section in sections if section)


def _introduction(machines: Sequence[str], results: Sequence[Result]) -> str:
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(machines, 1))
    where = f"Measured on {machines[0]}." if len(machines) == 1 else f"Measured on\n\n{listed}"
    small = (
        "\n\nSome of it was measured at the small size, for trying out; it has no targets."
        if any(r["size"] == "small" for r in results)
        else ""
    )
    return f"""# Performance

Every figure is a ratio to a floor that was measured in the same run, so that a slower machine changes both. `tfa bench
performance` writes this page from the files of

```console
$ tfa bench speed --peers --out FILE
```

{where}{small}

Peak memory is what a call took beyond what the process held before it, unless it is said to be the process's. A dash:
does not apply, or was not measured. Words: [glossary](glossary.md).
"""


def _bars(results: Sequence[Result], machines: Sequence[str]) -> str:
    """Every line with a target, which holds at full size."""
    rows = []
    for result, entry in _entries(one for one in results if one["size"] == "full"):
        for line in map(Line.from_dict, entry["lines"]):
            if line.bar is not None:
                what, _, _, ratio, bar, met, _, _ = cells(line)
                place = [str(machines.index(format_machine(result)) + 1)] if len(machines) > 1 else []
                rows.append([f"[{entry['title']}](#{_anchor(entry['title'])})", what, *place, ratio, bar, met])
    if not rows:
        return ""
    place = ["machine"] if len(machines) > 1 else []
    return "## Targets\n\n" + _table(["benchmark", "", *place, "ratio", "target", "met"], rows, left=2)


def _section(name: str, results: Sequence[Result], machines: Sequence[str]) -> str:
    entries = [(result, entry) for result, entry in _entries(results) if entry["name"] == name]
    first = entries[0][1]
    parts = [f"## {first['title']}\n\n`{name}`. {first['floor']}"]
    for result, entry in entries:
        settings = ", ".join(f"{key.replace('_', ' ')} {_in_words(value)}" for key, value in entry["settings"].items())
        place = f"Machine {machines.index(format_machine(result)) + 1}; " if len(machines) > 1 else ""
        size = "" if result["size"] == "full" else ", small"
        threads = result["threads"]
        setup = f"{place}{threads} thread{'' if threads == 1 else 's'}{size}{': ' if settings else ''}{settings}."
        parts.append(setup[0].upper() + setup[1:])
        rows = [list(cells(Line.from_dict(line))) for line in entry["lines"]]
        parts.append(_table(COLUMNS, rows, left=1).rstrip())
    if name in SUITE and SUITE[name].limits:
        parts.append(SUITE[name].limits)
    return "\n\n".join(parts)


def format_machine(result: Result) -> str:
    """The machine in words, with the versions that decide about speed."""
    here, versions = result["machine"], result["versions"]
    memory = f", {format_bytes(here['memory_bytes'])} of memory" if "memory_bytes" in here else ""
    software = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{here['processor']} ({here['machine']}), {here['cores']} cores{memory}; {software}"


def _entries(results: Iterable[Result]) -> list[tuple[Result, Mapping[str, Any]]]:
    return [(result, entry) for result in results for entry in result["benchmarks"]]


def _names(results: Iterable[Result]) -> list[str]:
    """Benchmarks with results: in the order of the suite, then those it no longer has."""
    there = dict.fromkeys(entry["name"] for _, entry in _entries(results))
    return [*(name for name in SUITE if name in there), *(name for name in there if name not in SUITE)]


def _in_words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading of words."""
    return "".join(one for one in title.lower() if one.isalnum() or one in "- ").replace(" ", "-")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    lines = [head, ["---" if column < left else "--:" for column in range(len(head))], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)

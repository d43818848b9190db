"""The performance page: tables from the files that `speed/run.py --out` writes."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.options import read_result, run_script
from studies.speed.measure import COLUMNS, Line, cells, format_bytes
from studies.speed.run import FORMAT, SUITE, VERSION
from tfa.cli import options
from tfa.cli.console import note, print_text
from tfa.core.files import BadFile, write_text

Result = Mapping[str, Any]
# Lines of the summary: benchmark, start of the line, and its name in the summary.
SUMMARY = (
    ("cold", "tfa query", "one query from the shell"),
    ("cold", "tfa query --precision float32", "one query from the shell, `--precision float32`"),
    ("cold", "tfa query: encoding", "encode a photo"),
    ("cold", "tfa query --precision float32: encoding", "encode a photo, `--precision float32`"),
    ("query", "second-order, tempered, 1,000 images, one query", "search 1,000 images"),
    ("query", "second-order, tempered, 10,000 images, one query", "search 10,000 images"),
    ("verify", "one query", "rerank 20 candidates"),
    ("second-order", "second-order fit of 607 images", "fit 607 images, three constructions, tokens cached"),
    ("second-order", "calibration of a judged map by 64 photos", "calibrate with 64 photos, tokens cached"),
    ("second-order-growth", "50,000 images", "fit 50,000 images, descriptors computed"),
    ("map-size", "second-order, tempered, int7, 607 images", "map rows of 607 images, without patches"),
    ("map-size", "second-order, tempered, int7, 20,000 images", "map rows of 20,000 images, without patches"),
)


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read results from files and from all JSON files of folders, sorted by name."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        listed = ", ".join(map(str, paths))
        raise BadFile(f"{listed}: no JSON file; write one with speed/run.py --out")
    return [read_result(file, FORMAT, VERSION, "speed/run.py") for file in files]


def performance_page(results: Sequence[Result]) -> str:
    """Return Markdown: targets and measurements, then a table for each benchmark of each run."""
    machines = list(dict.fromkeys(format_machine(result) for result in results))
    sections = [_introduction(machines, results), _bars(results, machines)]
    for name in _names(results):
        sections.append(_section(name, results, machines))
    return "\n".join(section.rstrip() + "\n" for section in sections if section)


def summary_table(results: Sequence[Result]) -> str:
    """Return Markdown: the measured lines of `SUMMARY`."""
    rows = []
    for name, start, title in SUMMARY:
        lines = [line for _, entry in _entries(results) if entry["name"] == name for line in entry["lines"]]
        found = next((line for line in lines if line["what"] == start), None)
        found = found or next((line for line in lines if line["what"].startswith(start)), None)
        if found is not None:
            _, time, *_, peak, disk = cells(Line.from_dict(found))
            rows.append([title, time, peak, disk])
    return _table(["", "time", "peak memory", "on disk"], rows, left=1)


def _introduction(machines: Sequence[str], results: Sequence[Result]) -> str:
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(machines, 1))
    where = f"Measured on {machines[0]}." if len(machines) == 1 else f"Measured on\n\n{listed}"
    small = (
        "\n\nSome runs used the small size, which is a quick trial without targets."
        if any(r["size"] == "small" for r in results)
        else ""
    )
    return f"""# Performance

Every time is compared with a floor measured in the same run, so a slower machine changes both. The summary is
[docs/results/performance.md](../../docs/results/performance.md). These commands measure and write this page:

```console
$ python benchmarks/studies/speed/run.py --peers --out results/performance/FILE.json
$ python benchmarks/studies/speed/page.py results/performance --out results/performance/README.md
```

{where}{small}

Peak memory is the memory that a call adds to the process, unless the line names the whole process. A dash means that
the value does not apply or was not measured. Terms: [glossary](../../docs/reference/glossary.md).
"""


def _bars(results: Sequence[Result], machines: Sequence[str]) -> str:
    """Return every line with a target, which applies at full size."""
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
    """Describe the machine and the versions that affect speed."""
    here, versions = result["machine"], result["versions"]
    memory = f", {format_bytes(here['memory_bytes'])} of memory" if "memory_bytes" in here else ""
    software = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{here['processor']} ({here['machine']}), {here['cores']} cores{memory}; {software}"


def _entries(results: Iterable[Result]) -> list[tuple[Result, Mapping[str, Any]]]:
    return [(result, entry) for result in results for entry in result["benchmarks"]]


def _names(results: Iterable[Result]) -> list[str]:
    """Return benchmarks with results in the order of the suite, then those it no longer has."""
    there = dict.fromkeys(entry["name"] for _, entry in _entries(results))
    return [*(name for name in SUITE if name in there), *(name for name in there if name not in SUITE)]


def _in_words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " and ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _anchor(title: str) -> str:
    """Return the anchor that GitHub makes for a heading."""
    return "".join(one for one in title.lower() if one.isalnum() or one in "- ").replace(" ", "-")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    lines = [head, ["---" if column < left else "--:" for column in range(len(head))], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write recorded speeds as one Markdown page that names the machine. Nothing is timed."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="files or folders written by speed/run.py --out")
    parser.add_argument("--summary", action="store_true", help="print only the summary table")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.md", help="write the page to this file instead of printing it"
    )
    return run_script(parser, _write, argv)


def _write(arguments: Namespace) -> None:
    if arguments.out is not None:
        options.check_writable(arguments.out)
    results = read_results(arguments.results)
    page = summary_table(results) if arguments.summary else performance_page(results)
    if arguments.out is None:
        print_text(page)
        return
    write_text(arguments.out, page)
    note(f"wrote {arguments.out}")


if __name__ == "__main__":
    sys.exit(main())

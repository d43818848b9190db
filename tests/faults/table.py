"""The table of the fault campaign, or of the random histories: attempts and failures.

    python -m tests.faults.table FOLDER [--of histories] [--docs docs/explanation/reliability.md]

FOLDER holds the JSON lines that each test or place wrote. Exits with 1 if anything failed, or nothing was tried.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARKERS = {
    "faults": ("<!-- the campaign: written by make faults -->", "<!-- end of the campaign -->"),
    "histories": ("<!-- the histories: written by make histories -->", "<!-- end of the histories -->"),
}
HEADINGS = ("tried", "attempts", "failures", "seconds")


@dataclass(frozen=True)
class Row:
    """All counts of one name."""

    name: str
    attempts: int
    failures: int
    seconds: float

    @property
    def cells(self) -> tuple[str, str, str, str]:
        return self.name, f"{self.attempts:,}", f"{self.failures:,}", f"{self.seconds:,.0f}"


def collected(folder: Path) -> list[Row]:
    """The counts of every process, those of one name added up, in the order of names."""
    rows: dict[str, Row] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            one = Row(**json.loads(line))
            known = rows.get(one.name, Row(one.name, 0, 0, 0.0))
            rows[one.name] = Row(
                one.name, known.attempts + one.attempts, known.failures + one.failures, known.seconds + one.seconds
            )
    return [rows[name] for name in sorted(rows)]


def with_total(rows: Sequence[Row]) -> list[Row]:
    """The rows, and one for all."""
    sums = [sum(getattr(row, key) for row in rows) for key in ("attempts", "failures", "seconds")]
    return [*rows, Row("**all**", int(sums[0]), int(sums[1]), float(sums[2]))]


def markdown(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|--:|--:|--:|"]
    return "\n".join(lines + [f"| {' | '.join(row.cells)} |" for row in with_total(rows)]) + "\n"


def placed(page: str, table: str, begin: str, end: str) -> str:
    """The page with the table between its two markers."""
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise SystemExit(f"the page needs the lines {begin} and {end}, once each, where the table belongs")
    before, after = page[: page.index(begin) + len(begin)], page[page.index(end) :]
    return f"{before}\n\n{table}\n{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.table", description="The table of a fault campaign.")
    parser.add_argument("folder", type=Path, help="what TFA_FAULTS_OUT named")
    parser.add_argument("--of", choices=list(MARKERS), default="faults", help="what was tried")
    parser.add_argument("--docs", type=Path, help="a page whose table is replaced")
    given = parser.parse_args(arguments)
    rows = collected(given.folder)
    if not rows:
        print(f"{given.folder} holds no counts; run: make {given.of}", file=sys.stderr)
        return 1
    table = markdown(rows)
    print(table, end="")
    if given.docs is not None:
        given.docs.write_text(placed(given.docs.read_text("utf-8"), table, *MARKERS[given.of]), "utf-8")
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

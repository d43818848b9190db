"""What was measured so far, in a JSON file: a row that is there is not measured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfa.bench.speed.measure import library_versions, machine, thread_count
from tfa.core.files import BadFile, require_format, write_json

FORMAT, VERSION = "tfa-scale", 1
Row = Mapping[str, Any]


class KeptRows:
    """Rows by part and name. Without a file they are kept for this run alone."""

    def __init__(self, file: Path | None = None, *, again: bool = False) -> None:
        """`again` measures rows once more that are there already; a new row takes the place of the old one."""
        self._file, self._again, self._fresh = file, again, set[tuple[str, str]]()
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        if file is not None and file.exists():
            known = require_format(file, FORMAT, VERSION, BadFile, f"; write it with tfa bench scale --out {file}")
            self.rows = {(row["part"], row["name"]): row for row in known["rows"]}

    def has(self, part: str, name: str) -> bool:
        key = (part, name)
        return key in self.rows and (not self._again or key in self._fresh)

    def keep(self, part: str, name: str, facts: Row) -> dict[str, Any]:
        """Write a row down, at once."""
        row = {"part": part, "name": name, **facts, "threads": thread_count()}
        self.rows[part, name] = row
        self._fresh.add((part, name))
        if self._file is not None:
            write_json(self._file, self.to_dict())
        return row

    def of(self, part: str) -> Iterator[dict[str, Any]]:
        return (row for (own, _), row in self.rows.items() if own == part)

    def to_dict(self) -> dict[str, Any]:
        about = {"format": FORMAT, "version": VERSION, "machine": machine(), "versions": library_versions()}
        return {**about, "rows": list(self.rows.values())}

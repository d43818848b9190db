"""The commands of a page: those of blocks marked as part of the walk-through."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^<!-- walkthrough -->\n+```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNMARKED = re.compile(r"(?<!<!-- walkthrough -->\n)^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One command, or a whole block of Python."""

    language: str
    text: str

    @property
    def words(self) -> list[str]:
        """Of a command, without its comment and what it is redirected to."""
        return shlex.split(self.text, comments=True)[: self._end]

    @property
    def redirected(self) -> str | None:
        """The file that takes its output."""
        words = shlex.split(self.text, comments=True)
        return None if self._end is None else words[self._end + 1]

    @property
    def _end(self) -> int | None:
        words = shlex.split(self.text, comments=True)
        return words.index(">") if ">" in words else None


def steps_of(page: Path) -> list[Step]:
    found = []
    for language, text in BLOCK.findall(page.read_text("utf-8")):
        lines = [text] if language == "python" else text.splitlines()
        found += [Step(language, line) for line in lines if line.strip()]
    return found


def unmarked(page: Path) -> list[str]:
    """Commands of blocks that are not part of the walk-through."""
    lines = [line for block in UNMARKED.findall(page.read_text("utf-8")) for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip() and not line.startswith("#")]

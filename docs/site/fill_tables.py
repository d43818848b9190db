"""Fill the tables of documentation pages that commands print: `python docs/site/fill_tables.py`.

A page marks such a table, and names the command:

    <!-- table 1 of: tfa bench table product --records results -->
    | … |
    <!-- end of table -->

The number counts the Markdown tables in the output. Commands run in the root of the repository, each once.
`--check` changes nothing and fails if a table is stale.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- table (\d+) of: (.+?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
PROGRAMS = {"tfa": [sys.executable, "-m", "tfa"], "python": [sys.executable]}


@cache
def print_tables(command: str) -> list[str]:
    """Run a command and return the Markdown tables that it prints."""
    program, *arguments = shlex.split(command)
    done = subprocess.run([*PROGRAMS[program], *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return ["".join(found) for found in re.findall(r"((?:^\|.*\n)+)", done.stdout, re.MULTILINE)]


def fill(text: str) -> str:
    """Return a page with its tables as the commands print them now."""

    def printed(block: re.Match[str]) -> str:
        return block[1] + print_tables(block[3])[int(block[2]) - 1] + block[5]

    return BLOCK.sub(printed, text)


def main(check: bool) -> int:
    stale = []
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        text = page.read_text("utf-8")
        filled = fill(text)
        if filled != text:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(filled, "utf-8")
    print(*[f"{'stale' if check else 'filled'}: {name}" for name in stale], sep="\n", end="\n" if stale else "")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))

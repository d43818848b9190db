"""Count the words of hand-written pages and compare them with their limits: `python docs/site/count_words.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from make_reference import COMMITTED, DOCS, ROOT

# Maximum number of words of prose: those outside code blocks and tables.
README_LIMIT = 900
HOW_TO_LIMIT = 700
TOTAL_LIMIT = 32_000

FROM_TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_NOT_PROSE = re.compile(r"^ *```.*?^ *```|^ *\|.*?$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def list_pages() -> list[Path]:
    """Return the hand-written pages."""
    generated = {DOCS / name for name in COMMITTED}
    return [
        *(ROOT / name for name in FROM_TOP),
        *(page for page in sorted(DOCS.rglob("*.md")) if page not in generated),
    ]


def read_prose(text: str) -> str:
    """Return a page without code blocks, tables, comments and link targets."""
    return _LINK.sub(r"\1", _NOT_PROSE.sub("", text))


def count_words(text: str) -> int:
    """Count the words of a page's prose."""
    return sum(any(character.isalnum() for character in word) for word in read_prose(text).split())


def count_pages() -> dict[str, int]:
    """Return the number of words of each hand-written page."""
    return {page.relative_to(ROOT).as_posix(): count_words(page.read_text("utf-8")) for page in list_pages()}


def find_excess(counts: dict[str, int]) -> list[str]:
    """Return a message for each limit that is exceeded."""
    limits = {"README.md": README_LIMIT}
    limits |= dict.fromkeys((name for name in counts if name.startswith("docs/how-to/")), HOW_TO_LIMIT)
    messages = [
        f"{name}: {counts[name]} words of prose, at most {most} are allowed; shorten it"
        for name, most in limits.items()
        if counts[name] > most
    ]
    total = sum(counts.values())
    if total > TOTAL_LIMIT:
        messages.append(f"all pages: {total} words of prose, at most {TOTAL_LIMIT} are allowed; shorten them")
    return messages


def print_counts() -> list[str]:
    """Print the counts and return the messages about limits."""
    counts = count_pages()
    for name, words in counts.items():
        print(f"{words:6,}  {name}")
    print(f"{sum(counts.values()):6,}  hand-written words of prose")
    messages = find_excess(counts)
    print(*messages, sep="\n", end="\n" if messages else "")
    return messages


if __name__ == "__main__":
    sys.exit(bool(print_counts()))

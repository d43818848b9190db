"""Commands and Python blocks of a page that are marked as part of the walk-through."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^<!-- walkthrough -->\n+```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
UNMARKED = re.compile(r"(?<!<!-- walkthrough -->\n)^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NO_SPANS = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One command, or a whole block of Python."""

    language: str
    text: str

    @property
    def words(self) -> list[str]:
        """Return the words of a command, without its comment and redirection."""
        return shlex.split(self.text, comments=True)[: self._end]

    @property
    def redirected(self) -> str | None:
        """Return the file that receives the output."""
        words = shlex.split(self.text, comments=True)
        return None if self._end is None else words[self._end + 1]

    @property
    def _end(self) -> int | None:
        words = shlex.split(self.text, comments=True)
        return words.index(">") if ">" in words else None


def steps_of(page: Path) -> list[Step]:
    """List the marked commands and Python blocks of a page, in order."""
    steps = []
    for language, text in BLOCK.findall(page.read_text("utf-8")):
        lines = [text] if language == "python" else text.splitlines()
        steps += [Step(language, line) for line in lines if line.strip()]
    return steps


def unmarked(page: Path) -> list[str]:
    """List the commands of blocks that are not part of the walk-through."""
    lines = [line for block in UNMARKED.findall(page.read_text("utf-8")) for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def commands_of(page: Path) -> list[list[str]]:
    """List every `tfa` command of a page's shell blocks, marked or not, as words."""
    lines = [line for block in SHELL.findall(page.read_text("utf-8")) for line in block.splitlines()]
    return [Step("sh", line).words for line in lines if line.startswith("tfa ")]


def spans_of(page: Path) -> list[list[str]]:
    """List every `tfa` command in the text and tables of a page, as words; it may lack its arguments."""
    text = NO_SPANS.sub("", page.read_text("utf-8"))
    return [Step("sh", span).words for span in re.findall(r"`(tfa [^`]+)`", text)]


def run_python(text: str, page: str = "page") -> str:
    """Run a Python block and return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, page, "exec"), {"__name__": "page"})
    return printed.getvalue()


def follow(page: Path, run: Callable[..., Any]) -> list[str]:
    """Run the marked steps of a page and return what each printed; `run` takes the words of a `tfa` command."""
    outputs = []
    for step in steps_of(page):
        if step.language == "python":
            outputs.append(run_python(step.text, page.name))
            continue
        program, *words = step.words
        assert program == "tfa", step.text
        done = run(*words)
        assert done.exit_code == 0, f"{step.text}\n{done.output}"
        outputs.append(done.stdout)
    assert outputs, f"{page.name} has no marked block"
    return outputs

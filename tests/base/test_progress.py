"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import re
import sys
import threading

import pytest

from tests.waiting import wait_until
from tfa.core import progress


class Heard:
    """The lines on standard error."""

    def __init__(self, capsys) -> None:
        self._capsys, self._text = capsys, ""

    def lines(self) -> list[str]:
        self._text += self._capsys.readouterr().err
        return self._text.splitlines()

    def wait(self, more: int) -> list[str]:
        wanted = len(self.lines()) + more
        wait_until(lambda: len(self.lines()) >= wanted)
        return self.lines()


@pytest.fixture
def heard(monkeypatch, capsys) -> Heard:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    return Heard(capsys)


def test_without_a_terminal_lines_say_how_far_it_is(heard):
    with progress.RichProgress().task("encoding", 1000, "images") as task:
        first = heard.wait(1)[0]
        task.advance(250)
        last = heard.wait(2)[-1]
    assert re.fullmatch(r"encoding: 0 of 1,000 images, 0\.0 images/s, \d:\d\d:\d\d so far", first)
    assert re.fullmatch(r"encoding: 250 of 1,000 images, [\d.]+ images/s, about \d:\d\d:\d\d left", last)


def test_no_line_comes_after_the_end_or_of_work_that_is_short(heard, monkeypatch):
    with progress.RichProgress().task("encoding", 2) as task:
        heard.wait(1)
        task.advance()
    ended = heard.lines()
    assert "tfa-progress" not in [thread.name for thread in threading.enumerate()]  # the progress thread has ended
    monkeypatch.setattr(progress, "LINE_SECONDS", 60.0)
    with progress.RichProgress().task("reading", 2):
        pass
    assert heard.lines() == ended


def test_a_closed_standard_error_stops_no_work(heard, monkeypatch):
    with progress.RichProgress().task("encoding", 2) as task:
        heard.wait(1)
        with open("/dev/null", "w") as closed:
            monkeypatch.setattr(sys, "stderr", closed)
        [writer] = [thread for thread in threading.enumerate() if thread.name == "tfa-progress"]
        tried = []
        monkeypatch.setattr(task, "line", lambda *given, line=task.line: tried.append(given) or line(*given))
        wait_until(lambda: len(tried) > 2)  # a line that cannot be written does not end the writer
        assert writer.is_alive()
        task.advance()
        assert task.line("encoding", 2).startswith("encoding: 1 of 2, ")


def test_control_characters_of_a_label_are_not_written(heard):
    with progress.RichProgress().task("a\x1b[31mb", 2):
        assert heard.wait(1)[0].startswith("a\\x1b[31mb: 0 of 2, ")

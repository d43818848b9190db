"""Names of files in bad faith: escape codes, marks of direction, HTML, bytes that are no text. None is obeyed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC
from tfa.core.text import make_lines_printable, make_printable
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions

NAME = "\x1b[31mred\x1b]0;title\x07\u202egnp\x9b2J\nerror: line\r\ttab<img src=x onerror=alert(1)>&[bold].png"
BYTES = os.fsdecode(b"\xff\xfe \x1b[2J.png")


@pytest.fixture(scope="module")
def odd(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map that holds photos of such names, and queries of such names."""
    root = tmp_path_factory.mktemp("odd")
    shutil.copytree(made / "photos", root / "odd")
    for name in (NAME, f"copy {NAME}", BYTES):
        shutil.copy(made / "near.jpg", root / "odd" / name)
    (root / "asked").mkdir()
    for name in (NAME, BYTES):
        shutil.copy(made / "walk/a.jpg", root / "asked" / name)
    shutil.copy(made / "bad.jpg", root / "asked" / f"broken {NAME}")
    options = EncoderOptions(cache=TokenCache(root / "cache"), skip_bad=True)
    kept = BuildOptions(head="paper", storage="float16")
    made_of = {"encoder": FakeEncoder(), "spec": SPEC, "map_spec": kept, "options": options}
    PlaceMap.build(root / "odd", **made_of).save(root / "odd.tfa")  # a name that is not UTF-8 is left out
    return root


@pytest.fixture
def hostile(odd: Path, fake_encoder: Path) -> Path:
    """A working folder with a copy of all that."""
    return shutil.copytree(odd, fake_encoder, dirs_exist_ok=True)


def clean(text: str) -> bool:
    return not any(mark in text for mark in ("\x1b", "\x07", "\x9b", "\u202e", "\udcff", "\nerror: line", "\r", "\t"))


@pytest.mark.parametrize(
    "words",
    [
        ["query", "odd.tfa", "asked"],
        ["query", "odd.tfa", f"asked/{NAME}", "--montage", "montage.png"],
        ["query", "odd.tfa", "asked", "--json"],
        ["explain", "odd.tfa", f"asked/{NAME}", "-o", "why.png"],
        ["report", "odd.tfa", "-o", "page.html", "--photos", f"asked/{NAME}"],
        ["info", f"absent {NAME}"],
        ["build", "asked", "--out", "other.tfa"],
        ["add", "odd.tfa", "asked", "--skip-bad"],
        ["remove", "odd.tfa", NAME],
        ["pairs", "odd.tfa", f"asked/{NAME}", "-o", "pairs.txt"],
        ["query", "odd.tfa", f"--{NAME}"],
        [NAME],
        ["bench", "datasets", NAME],
        ["bench", "check", "own", "asked"],
        ["--debug", "info", f"absent {NAME}"],
    ],
    ids=lambda words: " ".join(make_printable(word)[:24] for word in words[:2]),
)
def test_no_verb_prints_an_escape_code(run, hostile, words):
    result = run(*words)
    assert "bug" not in result.stderr, result.stderr
    assert result.stdout or result.stderr
    assert clean(result.stdout), result.stdout
    assert clean(result.stderr), result.stderr


def test_a_line_break_in_a_name_is_written_out(run, hostile):
    assert r"2J\nerror: line\r\ttab" in run("query", "odd.tfa", f"asked/{NAME}").stdout
    assert r"2J\nerror: line\r\ttab" in run("info", f"absent {NAME}").stderr
    refused = run("query", "odd.tfa", "asked").stderr
    assert len([line for line in refused.splitlines() if line.startswith("error:")]) == 1  # of the one broken photo
    [answer] = json.loads(run("query", "odd.tfa", f"asked/{NAME}", "--json").stdout)["answers"]
    assert Path(answer["query"]).name == NAME  # JSON has names as they are
    assert make_printable("a\tb\nc\rd") == r"a\tb\nc\rd"
    assert make_lines_printable("a\x1b\nb\r") == "a\\x1b\nb\\r"


def test_a_map_of_such_names_is_written_and_read_again(run, hostile):
    answers = json.loads(run("query", "odd.tfa", hostile / "odd" / BYTES, "-k", 2, "--json").stdout)["answers"]
    assert NAME in {Path(hit["image"]).name for hit in answers[0]["hits"]}


def test_a_report_shows_such_names_and_runs_none(run, hostile):
    assert run("report", "odd.tfa", "-o", "page.html", "--photos", hostile / "asked" / NAME).exit_code == 0
    page = (hostile / "page.html").read_text("utf-8")
    assert "&lt;img src=x onerror=alert(1)&gt;&amp;[bold].png" in page  # the two copies are near duplicates
    assert "<img src=x" not in page
    assert clean(page)


def test_progress_obeys_neither_codes_nor_markup(monkeypatch, capsys):
    from tfa.core import progress

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = ""
    with progress.RichProgress().task(f"[red]{NAME}", 2) as task:
        task.advance()
        while "[red]" not in shown:  # until its clock has started the bar
            shown += capsys.readouterr().err
            time.sleep(0.01)
    assert "\\x1b[31mred" in shown
    assert "\x1b]0;title" not in shown
    assert "\x9b" not in shown

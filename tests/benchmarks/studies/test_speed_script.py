"""The scripts speed/run.py and speed/page.py: output, files and errors."""

from __future__ import annotations

import json

import pytest

from studies.speed import page
from studies.speed import run as suite
from studies.speed.measure import Bar, Line, compared


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """What is run; nothing is timed."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def run_each(names, size, progress, *, alone):
        calls.append((names, size, progress))
        for name in names:
            lines = (compared("whole", 2.0, 1.0, Bar(1.3)), Line("[other]", note="not installed"))
            yield suite.Done(name, {"images": 607}, lines, {"x": 1})

    monkeypatch.setattr(suite, "run_each", run_each)
    return calls


def test_without_names_all_but_the_long_ones_run(script, runs):
    done = script(suite.main, "--quiet")
    assert done.exit_code == 0, done.stderr
    assert runs == [(suite.chosen(), "full", False)]
    assert "Fitting a head (fit)" in done.stdout
    assert "whole" in done.stdout
    assert "≤ 1.3" in done.stdout
    assert "[other] (not installed)" in done.stdout


def test_names_size_and_peers_are_passed_on(script, runs):
    done = script(suite.main, "verify", "--peers", "--size", "small")
    assert done.exit_code == 0
    assert "note: targets apply to --size full" in done.stderr
    assert runs == [(["verify", "peers"], "small", True)]


def test_json_is_all_there_is_on_standard_output(script, runs):
    facts = json.loads(script(suite.main, "fit", "--json").stdout)
    assert {"format", "version", "size", "machine", "versions", "threads", "benchmarks"} == set(facts)
    [entry] = facts["benchmarks"]
    assert (entry["name"], entry["details"], entry["lines"][0]["met"]) == ("fit", {"x": 1}, False)


def test_the_file_is_what_json_prints_and_becomes_the_page(script, runs, tmp_path):
    done = script(suite.main, "fit", "--json", "--out", "speed/a.json")
    assert json.loads((tmp_path / "speed/a.json").read_text("utf-8")) == json.loads(done.stdout)
    assert "wrote speed/a.json" in done.stderr
    printed = script(page.main, "speed")
    assert printed.exit_code == 0, printed.stderr
    assert printed.stdout.startswith("# Performance\n")
    assert script(page.main, "speed/a.json", "--out", "docs/page.md").exit_code == 0
    assert (tmp_path / "docs/page.md").read_text("utf-8") == printed.stdout


def test_what_was_measured_is_written_before_the_next_begins(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run_each(names, size, progress, *, alone):
        yield suite.Done("fit", {}, (Line("whole", 1.0),))
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_each", run_each)
    with pytest.raises(KeyboardInterrupt):
        script(suite.main, "--out", "a.json")
    assert [one["name"] for one in json.loads((tmp_path / "a.json").read_text("utf-8"))["benchmarks"]] == ["fit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("speed", "fitt"), "did you mean 'fit'"),
        (("speed", "--size", "tiny"), "tiny"),
        (("speed", "--out", "file/a.json"), "is a file, not a folder"),
        (("performance", "nowhere.json"), "does not exist"),
        (("performance",), "arguments are required"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_timed(script, runs, tmp_path, words, message):
    (tmp_path / "file").write_text("")
    main = page.main if words[0] == "performance" else suite.main
    done = script(main, *words[1:])
    assert done.exit_code != 0
    assert message in done.stderr
    assert runs == []

"""`tfa bench speed` and `tfa bench performance`: what they run, print, write and refuse."""

from __future__ import annotations

import json

import pytest

from tfa_bench.speed import suite
from tfa_bench.speed.result_line import Bar, Line, compared


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


def test_without_names_all_but_the_long_ones_run(run, runs):
    done = run("bench", "speed", "--quiet")
    assert done.exit_code == 0, done.stderr
    assert runs == [(suite.chosen(), "full", False)]
    assert "Fitting a head (fit)" in done.stdout
    assert "whole" in done.stdout
    assert "≤ 1.3" in done.stdout
    assert "[other] (not installed)" in done.stdout


def test_names_size_and_peers_are_passed_on(run, runs):
    done = run("bench", "speed", "verify", "--peers", "--size", "small")
    assert done.exit_code == 0
    assert "note: the bars are meant for --size full" in done.stderr
    assert runs == [(["verify", "peers"], "small", True)]


def test_json_is_all_there_is_on_standard_output(run, runs):
    facts = json.loads(run("bench", "speed", "fit", "--json").stdout)
    assert {"format", "version", "size", "machine", "versions", "threads", "benchmarks"} == set(facts)
    [entry] = facts["benchmarks"]
    assert (entry["name"], entry["details"], entry["lines"][0]["met"]) == ("fit", {"x": 1}, False)


def test_the_file_is_what_json_prints_and_becomes_the_page(run, runs, tmp_path):
    done = run("bench", "speed", "fit", "--json", "--out", "speed/a.json")
    assert json.loads((tmp_path / "speed/a.json").read_text("utf-8")) == json.loads(done.stdout)
    assert "wrote speed/a.json" in done.stderr
    printed = run("bench", "performance", "speed")
    assert printed.exit_code == 0, printed.stderr
    assert printed.stdout.startswith("# Performance\n")
    assert run("bench", "performance", "speed/a.json", "--out", "docs/page.md").exit_code == 0
    assert (tmp_path / "docs/page.md").read_text("utf-8") == printed.stdout


def test_what_was_measured_is_written_before_the_next_begins(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run_each(names, size, progress, *, alone):
        yield suite.Done("fit", {}, (Line("whole", 1.0),))
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_each", run_each)
    assert run("bench", "speed", "--out", "a.json").exit_code != 0
    assert [one["name"] for one in json.loads((tmp_path / "a.json").read_text("utf-8"))["benchmarks"]] == ["fit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("speed", "fitt"), "did you mean 'fit'"),
        (("speed", "--size", "tiny"), "tiny"),
        (("speed", "--out", "file/a.json"), "is a file, not a folder"),
        (("performance", "nowhere.json"), "does not exist"),
        (("performance",), "Missing argument"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_timed(run, runs, tmp_path, words, message):
    (tmp_path / "file").write_text("")
    done = run("bench", *words)
    assert done.exit_code != 0
    assert message in done.stderr
    assert runs == []

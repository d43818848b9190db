"""`tfa bench figures`: arguments, output and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.figure_records import write_photos, write_town

pytestmark = pytest.mark.slow


@pytest.fixture
def figures(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *args: run("bench", "figures", *args)


@pytest.fixture
def given(monkeypatch):
    """What write_figures is called with; it is replaced."""
    calls = {}
    fake = ModuleType("tfa_bench.figures.report")
    fake.write_figures = lambda results, out, **options: (
        calls.update(results=results, out=out, **options) or [out / "a.png", out / "report.html"]
    )
    monkeypatch.setitem(sys.modules, "tfa_bench.figures.report", fake)
    return calls


def test_defaults(figures, given):
    result = figures("results", "--out", "pictures")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "pictures/report.html: 1 figure, each also a PNG file below pictures\n"
    assert given == {
        "results": Path("results"), "out": Path("pictures"), "photos": {}, "datasets": None, "encoder": None,
        "reference": "tfa", "rows": 6,
    }  # fmt: skip


def test_every_option_is_passed_on(figures, given):
    words = ["--photos", "a=x/A", "--photos", "b=y=z", "--dataset", "a", "--dataset", "b", "--encoder", "e@8"]
    assert figures("results", "--out", "o", *words, "--reference", "ria", "--rows", 2).exit_code == 0
    assert given["photos"] == {"a": Path("x/A"), "b": Path("y=z")}
    assert given["datasets"] == ["a", "b"]
    assert (given["encoder"], given["reference"], given["rows"]) == ("e@8", "ria", 2)


@pytest.mark.parametrize("text", ["town", "town=", "=folder"])
def test_photos_without_a_name_or_a_folder_are_not_understood(figures, given, text):
    result = figures("results", "--out", "o", "--photos", text)
    assert result.exit_code == 2
    assert "is not NAME=PATH" in result.stderr
    assert given == {}


def test_rows_must_be_at_least_one(figures, given):
    assert figures("results", "--out", "o", "--rows", 0).exit_code == 2
    assert figures("results").exit_code == 2  # --out is required
    assert given == {}


def test_records_become_a_report(figures, tmp_path):
    _, truth = write_town(tmp_path / "results")
    write_photos(tmp_path / "photos", truth)
    result = figures("results", "--out", "out", "--photos", "town=photos")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "out/report.html: 5 figures, each also a PNG file below out\n"
    assert len(list(tmp_path.glob("out/town/*/*.png"))) == 5
    assert (tmp_path / "out/report.html").read_text("utf-8").count("<img") == 5


def test_errors_are_one_block(figures, tmp_path):
    result = figures("nowhere", "--out", "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: nowhere does not exist; write records with: tfa bench run")
    (tmp_path / "file").write_text("")
    result = figures("nowhere", "--out", "file/out")
    assert result.exit_code == 1
    assert "is a file, not a folder" in result.stderr

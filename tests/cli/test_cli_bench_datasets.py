"""`tfa bench datasets` and `tfa bench check`: tables, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.datasets.trees import pictures
from tests.cli.conftest import Run
from tfa_bench.datasets.card import cards


@pytest.fixture
def bench(run: Run) -> Run:
    return lambda *args: run("bench", *args)


@pytest.fixture
def town(tmp_path: Path) -> Path:
    pictures(tmp_path / "database", ["a.png", "b.png"])
    pictures(tmp_path / "queries", ["q.png"], start=10)
    (tmp_path / "positives.json").write_text(json.dumps({"q.png": ["a.png"]}))
    return tmp_path


def test_the_table_lists_every_card(bench: Run) -> None:
    result = bench("datasets")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.splitlines()[1:] if line.strip()]
    assert set(cards()) <= set(listed)
    assert (
        next(line for line in result.stdout.splitlines() if line.startswith("gsv-brussels"))
        .rstrip()
        .endswith("not public")
    )
    row = next(line for line in result.stdout.splitlines() if line.startswith("pitts30k"))
    assert "10,000" in row
    assert row.rstrip().endswith("  public")


def test_one_card_is_shown_in_full(bench: Run) -> None:
    shown = bench("datasets", "svox").stdout
    for fact in (
        "SVOX, five conditions",
        "night 823",
        "at most 25 m",
        "WACV 2021",
        "licence",
        "get it",
        "17,166 images",
    ):
        assert fact in shown


def test_json_holds_the_cards_and_nothing_else(bench: Run) -> None:
    everything = json.loads(bench("datasets", "--json").stdout)
    assert [card["name"] for card in everything] == list(cards())
    assert json.loads(bench("datasets", "sped", "--json").stdout)["counts"] == {"database": 607, "queries": 607}


def test_an_unknown_name_is_an_error_with_a_suggestion(bench: Run) -> None:
    result = bench("datasets", "spde")
    assert result.exit_code == 1
    assert "did you mean 'sped'" in result.output


def test_a_whole_copy_exits_with_0(bench: Run, town: Path) -> None:
    result = bench("check", "my-town", town)
    assert result.exit_code == 0
    assert "my-town is whole" in result.stdout
    facts = json.loads(bench("check", "my-town", town, "--deep", "--json").stdout)
    assert (facts["dataset"], facts["whole"]) == ("my-town", True)
    assert {finding["level"] for finding in facts["findings"]} == {"note"}


def test_a_copy_that_lacks_something_exits_with_1(bench: Run, town: Path) -> None:
    result = bench("check", "sped", town)
    assert result.exit_code == 1
    assert "declares 607 queries, found 1" in result.stdout
    assert "not whole: 2 errors" in result.stdout
    broken = bench("check", "svox", town, "--json")
    assert (broken.exit_code, json.loads(broken.stdout)["whole"]) == (1, False)


def test_positives_of_ones_own_are_checked(bench: Run, town: Path) -> None:
    own = town / "mine.json"
    own.write_text(json.dumps({"other.png": []}))
    result = bench("check", "my-town", town, "--positives", own)
    assert result.exit_code == 1
    assert "other.png" in result.stdout

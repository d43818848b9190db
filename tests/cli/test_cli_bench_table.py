"""`tfa bench table`: output, files and errors."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth, written
from tests.cli.conftest import Run
from tfa_bench.cli import pages as verb
from tfa_bench.tables.table import FORMATS
from tfa_bench.tables.table_specs import LAYOUTS

RIGHT, WRONG = ranking([0], 20), ranking([1], 20)


@pytest.fixture
def table(run: Run) -> Run:
    return lambda *args: run("bench", "table", *args)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    truth = synthetic_truth([[0]] * 4, database=40, name="sped")
    good = synthetic_record(truth, [[[RIGHT]]] * 3 + [[[WRONG]]], head=named("tfa"))
    bad = synthetic_record(truth, [[[RIGHT]]] + [[[WRONG]]] * 3, head=named("anyloc"))
    other = synthetic_record(
        truth, [[[RIGHT]]] * 4, head=named("tfa"), encoder={"id": "other@14", "fingerprint": "cd" * 32}
    )
    written(tmp_path / "results", truth, good, bad, other)
    return tmp_path / "results"


def test_the_choices_are_the_layouts_and_the_formats():
    assert [name.value for name in verb.Name] == [*LAYOUTS, "all"]
    assert [form.value for form in verb.Format] == list(FORMATS)
    assert f"Tables: {', '.join(LAYOUTS)}." in " ".join(verb.table.__doc__.split())


def test_a_table_is_printed_as_markdown(table: Run, results: Path):
    done = table("primary", "--records", results)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("## Ground retrieval, R@1 (%)\n\n| Dataset")
    [ours] = [line for line in done.stdout.splitlines() if "tiny@28 " in line and line.startswith("| Sped")]
    assert "_25.00_" in ours
    assert "**75.00**" in ours
    assert "paper (DINOv2-B)" in done.stdout
    assert "85.12" in done.stdout


def test_records_are_looked_for_in_results(table: Run, results: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(results.parent)
    done = table("heads", "--no-paper", "--encoder", "tiny@28")
    assert done.exit_code == 0, done.output
    assert "tiny@28" in done.stdout
    assert "other@14" not in done.stdout
    assert "Li et al." not in done.stdout


def test_csv_and_latex_are_printed_alone(table: Run, results: Path):
    rows = list(csv.DictReader(io.StringIO(table("heads", "--records", results, "--format", "csv").stdout)))
    assert [(row["head"], row["encoder"], row["R@1"]) for row in rows] == [
        ("ANYLOC", "tiny@28", "25.00"),
        ("TFA", "other@14", "100.00"),
        ("TFA", "tiny@28", "75.00"),
    ]
    printed = table("heads", "--records", results, "--format", "latex").stdout
    assert printed.startswith("\\begin{table}")
    assert printed.endswith("\\end{table}\n")


def test_all_writes_every_table_the_records_fill(table: Run, results: Path, tmp_path: Path):
    done = table("all", "--records", results, "--out", tmp_path / "tables")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        f"{name}.{ending}"
        for name in ("product", "overview", "primary", "ground-backbones", "budgets", "heads")
        for ending in ("md", "csv", "tex")
    }
    assert (tmp_path / "tables" / "primary.md").read_text("utf-8") in done.stdout
    assert "no data for table 'aerial'" in done.stderr
    before = {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()}
    table("all", "--records", results, "--out", tmp_path / "tables")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "tables").iterdir()}


def test_both_reaches_the_layout(table: Run, results: Path):
    truth = synthetic_truth([[0]] * 4, database=40, name="sped")
    control = synthetic_record(truth, [[[RIGHT]]] * 4, head=named("hard-centred"))
    written(results, truth, control)
    assert "HARD-CENTRED" in table("spectral", "--both", "--records", results).stdout
    assert "HARD-CENTRED" not in table("spectral", "--records", results).stdout


def test_pairs_are_read_from_the_records(table: Run, results: Path):
    truth = synthetic_truth([[0]] * 4, database=40, name="sped")
    drawn = synthetic_record(truth, [[[RIGHT], [RIGHT]]] * 4, head=named("tfa-c2"), evaluated=[[0, 1], [2, 3]])
    full = synthetic_record(truth, [[[RIGHT]]] * 2 + [[[WRONG]]] * 2, head=named("tfa-fullq"))
    written(results, truth, drawn, full)
    done = table("paired", "--records", results, "--format", "csv")
    assert done.exit_code == 0, done.output
    [row] = csv.DictReader(io.StringIO(done.stdout))
    assert (row["calibrated head"], row["reference head"], row["Calibrated"]) == ("TFA-C2", "TFA-FULLQ", "100.00")
    assert (row["Reference"], row["Uncalibrated"], row["Retention %"]) == ("50.00", "75.00", "200.00")
    assert row["Recovery %"] == ""  # the reference gains nothing


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["tertiary"], 2, "tertiary"),
        (["primary", "--format", "html"], 2, "html"),
        (["aerial"], 1, "no data for table 'aerial'"),
        (["primary", "--encoder", "nobody@1"], 1, "no record of encoder 'nobody@1'; it has other@14, tiny@28"),
    ],
)
def test_what_cannot_be_shown_is_refused(table: Run, results: Path, args, code, message):
    done = table(*args, "--records", results)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stdout == ""


def test_a_folder_without_records_says_how_to_write_some(table: Run, tmp_path: Path):
    assert "tfa bench run --out" in table("primary", "--records", tmp_path / "none").stderr
    (tmp_path / "empty").mkdir()
    assert "holds no records" in table("primary", "--records", tmp_path / "empty").stderr

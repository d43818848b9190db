"""`tfa bench score`: tables, JSON, comparison, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth, written
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow

DEPTH = 20
RIGHT, WRONG = ranking([0], DEPTH), ranking([1], DEPTH)


@pytest.fixture
def bench(run: Run) -> Run:
    return lambda *args: run("bench", "score", *args)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    truth = synthetic_truth([[0], [0], [0], []], database=40)
    good = synthetic_record(truth, [[[RIGHT]], [[RIGHT]], [[WRONG]], [[WRONG]]], head=named("tfa"))
    split = [[[RIGHT], [RIGHT]], [[RIGHT], [WRONG]], [[RIGHT], [WRONG]], [[WRONG], [WRONG]]]
    drawn = synthetic_record(
        truth, split, head=named("tfa-c64", data_used="target"), evaluated=[[0, 1, 2], [0, 1, 3]],
    )  # fmt: skip
    bad = synthetic_record(truth, [[[WRONG]]] * 4)
    written(tmp_path, truth, good, drawn, bad)
    return tmp_path


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_table_has_a_row_for_each_head(bench: Run, results: Path):
    result = bench(results)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "Town (town), tiny@28"
    assert lines[1].startswith("40 images, 4 queries (queries without positives count as misses: 1); percent")
    assert cells(lines[2]) == ["head", "data used", "R@1", "R@5", "R@10", "R@20", "mAP", "PR area", "R at 99 % P"]
    assert cells(lines[3]) == ["tfa", "database", "50.0 [0.0, 100.0]", *["50.0"] * 4, "25.0", "0.0"]
    assert cells(lines[4])[:2] == ["tfa-c64", "target"]
    assert cells(lines[4])[2].startswith("66.7 ± 47.1 [")
    assert cells(lines[5]) == ["vlad", "database", "0.0 [0.0, 0.0]", *["0.0"] * 6]


def test_queries_without_positives_can_be_left_out(bench: Run, results: Path):
    result = bench(results, "--skip-unanswerable", "--head", "tfa")
    assert "queries without positives left out" in result.stdout
    assert cells(result.stdout.splitlines()[3])[3] == "66.7"


def test_one_seed_can_be_scored(bench: Run, tmp_path: Path):
    truth = synthetic_truth([[0], [0]], database=40)
    written(tmp_path, truth, synthetic_record(truth, [[[RIGHT, WRONG]], [[RIGHT, RIGHT]]], head=named("anyloc")))
    scored = {name: json.loads(bench(tmp_path, "--replica", name, "--json").stdout)[0] for name in ("0", "1")}
    assert {name: (one["recalls"]["1"]["mean"], one["replicas"]) for name, one in scored.items()} == {
        "0": (1.0, ["0"]),
        "1": (0.5, ["1"]),
    }
    assert "no replica '2'; use one of 0, 1" in bench(tmp_path, "--replica", "2").stderr


def test_a_head_can_be_compared_with_another(bench: Run, results: Path):
    result = bench(results, "--head", "tfa", "--against", "vlad", "--ks", "1,5")
    lines = result.stdout.splitlines()
    assert cells(lines[2])[-1] == "R@1 - vlad"
    assert cells(lines[3])[-1] == "+50.0 [+0.0, +100.0]"
    assert [cells(line)[0] for line in lines[3:5]] == ["tfa", "vlad"]
    assert len(cells(lines[4])) == len(cells(lines[3])) - 1  # a head is not compared with itself


def test_conditions_have_rows_of_their_own(bench: Run, tmp_path: Path):
    truth = synthetic_truth([[0]] * 3, conditions={"day": [0, 1], "night": [2]})
    written(tmp_path, truth, synthetic_record(truth, [[[RIGHT]], [[RIGHT]], [[WRONG]]]))
    lines = bench(tmp_path, "--ks", 5).stdout.splitlines()
    assert "averaged over 2 conditions" in lines[1]
    assert [cells(line) for line in lines[4:6]] == [["day", "100.0"], ["night", "0.0"]]
    assert cells(lines[3])[:3] == ["vlad", "database", "50.0"]


def test_json_is_all_there_is_on_standard_output(bench: Run, results: Path):
    facts = json.loads(bench(results, "--json", "--against", "vlad", "--ks", "1,5").stdout)
    assert [one["head"] for one in facts] == ["tfa", "tfa-c64", "vlad"]
    assert facts[0]["recalls"] == {"1": {"mean": 0.5, "sd": 0.0}, "5": {"mean": 0.5, "sd": 0.0}}
    assert facts[0]["against"]["head"] == "vlad"
    assert facts[0]["against"]["mean"] == 0.5
    assert facts[0]["against"]["queries"] == 4
    assert "against" not in facts[2]


def test_a_refused_average_precision_says_why(bench: Run, tmp_path: Path):
    truth = synthetic_truth([list(range(25))], database=40)
    written(tmp_path, truth, synthetic_record(truth, [[[RIGHT]]]))
    result = bench(tmp_path)
    assert cells(result.stdout.splitlines()[3])[6] == "-"
    assert "no mAP: a query has 25 positives but rankings have length 20" in result.stderr


def test_an_encoder_without_the_head_compared_with_is_noted(bench: Run, results: Path):
    truth = synthetic_truth([[0], [0], [0], []], database=40)
    other = {"id": "big@56", "fingerprint": "", "grid": [4, 4]}
    written(results, truth, synthetic_record(truth, [[[RIGHT]]] * 4, head=named("tfa"), encoder=other))
    result = bench(results, "--against", "vlad")
    assert "town under big@56 has no record of vlad; tfa is not compared" in result.stderr
    assert result.stdout.count("R@1 - vlad") == 1
    alone = bench(results, "--against", "vlad", "--encoder", "big@56")
    assert alone.exit_code == 2
    assert "no record of head 'vlad' to compare with; recorded: tfa" in alone.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--dataset", "twon"], 1, "did you mean town?"),
        (["--head", "nobody"], 1, "recorded: tfa, tfa-c64, vlad"),
        (["--ks", "1,50"], 2, "length 20, too short for recall at 50"),
    ],
)
def test_errors_say_what_there_is(bench: Run, results: Path, args: list[str], code: int, message: str):
    result = bench(results, *args)
    assert result.exit_code == code
    assert result.stdout == ""
    assert message in result.stderr


@pytest.mark.parametrize("ks", ["", "0", "1,x", "-1", "1,,5", "²"])
def test_a_k_that_is_no_number_is_a_usage_error(bench: Run, results: Path, ks: str):
    result = bench(results, "--ks", ks)
    assert result.exit_code == 2
    assert "such as 1,5,10" in result.stderr


def test_a_folder_without_records_is_an_error(bench: Run, tmp_path: Path):
    result = bench(tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "tfa bench run" in result.stderr

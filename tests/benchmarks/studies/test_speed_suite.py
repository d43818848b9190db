"""The suite of speed benchmarks: its lines, its entries, a run of it and the page made of runs."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from studies.speed import run
from studies.speed.measure import COLUMNS, Bar, Line, cells, compared, format_bytes, format_seconds
from studies.speed.page import performance_page, read_results
from tfa.core.files import BadFile, write_json
from tfa.errors import BadSpec, MissingExtra


def test_a_ratio_is_time_over_floor_and_a_gain_is_floor_over_time():
    slow, fast = compared("a", 3.0, 2.0, Bar(1.3)), compared("b", 1.0, 2.0, Bar(1.8, at_least=True))
    assert (slow.ratio, slow.met) == (1.5, False)
    assert (fast.ratio, fast.met) == (2.0, True)
    assert compared("c", 3.0, 2.0).met is None
    assert compared("d", 3.0, 0.0, Bar(1.3)).met is None
    assert compared("e", 1.3, 1.0, Bar(1.3)).met is True  # the bar itself is allowed


@pytest.mark.parametrize(
    "line",
    [Line("a"), Line("b", 1.0, 2.0, 0.5, Bar(0.5), 10, 20, "note"), Line("c", ratio=2.0, bar=Bar(4, at_least=True))],
)
def test_a_line_survives_json(line):
    facts = json.loads(json.dumps(line.to_dict()))
    assert Line.from_dict(facts) == line
    assert facts["met"] == line.met


def test_cells_leave_out_what_does_not_apply():
    assert cells(Line("a")) == ("a", "–", "–", "–", "", "", "–", "–")
    shown = cells(Line("a", 0.0123, 2.0, 0.5, Bar(4, at_least=True), 3 << 20, 10, "why"))
    assert shown == ("a (why)", "12.3 ms", "2 s", "0.50", "≥ 4", "no", "3 MiB", "10 B")
    assert len(shown) == len(COLUMNS)


@pytest.mark.parametrize(
    ("seconds", "text"), [(123.4, "123 s"), (1.0, "1 s"), (0.5, "500 ms"), (2e-5, "20 µs"), (0.0, "0 µs")]
)
def test_seconds_are_printed_in_their_unit(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1500, "1.46 KiB"), (24 << 30, "24 GiB"), (5 << 40, "5.12e+03 GiB")]
)
def test_bytes_are_printed_in_their_unit(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize("name", run.SUITE)
def test_every_entry_names_a_function_that_takes_its_settings(name):
    entry = run.SUITE[name]
    taken = inspect.signature(run._function(entry)).parameters
    assert {*entry.small, *entry.full, "progress"} <= set(taken)
    assert entry.floor.startswith("The floor is")
    assert entry.floor.endswith(".")


def test_the_suite_imports_no_benchmark():
    code = (
        "import sys, studies.speed.run as suite\n"
        "modules = {'studies.speed.' + entry.run.split(':')[0] for entry in suite.SUITE.values()}\n"
        "print(sorted((modules - {'studies.speed.run'} | {'torch'}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_are_chosen_in_the_order_of_the_suite():
    assert run.chosen(["verify", "fit"]) == ["fit", "verify"]
    assert "peers" not in run.chosen()
    assert run.chosen(peers=True) == [name for name in run.SUITE if name in run.chosen() or name == "peers"]
    assert run.chosen(["fit"], peers=True) == ["fit", "peers"]
    with pytest.raises(BadSpec, match="unknown speed benchmark 'verfy'; did you mean 'verify'"):
        run.chosen(["verfy"])


TINY = {
    "fit": {"images": 8, "patches": 9, "channels": 4},
    "calibrate": {"images": 12, "target": 8, "full": 9, "patches": 9, "channels": 4},
    "requests": {"requests": 3},
    "verify": {"candidates": 2, "patches": 9, "dimensions": 4, "queries": 2},
}


@pytest.mark.parametrize("name", TINY)
def test_a_run_gives_lines_of_every_result(name, monkeypatch):
    monkeypatch.setitem(run.SUITE, name, replace(run.SUITE[name], small=TINY[name]))
    [done] = run.run_each([name], "small")
    facts = json.loads(json.dumps(run.SpeedRun.here("small", [done]).to_dict(), allow_nan=False))
    assert {"machine", "versions", "threads", "size"} <= set(facts)
    assert facts["machine"]["cores"] >= 1
    [entry] = facts["benchmarks"]
    assert (entry["name"], entry["settings"]) == (name, TINY[name])
    first = entry["lines"][0]
    assert min(first["ratio"], first["seconds"], first["floor"]) > 0
    assert entry["details"]["machine"]
    assert sum("whole benchmark" in line["what"] for line in entry["lines"]) <= 1


@pytest.mark.slow
def test_a_benchmark_runs_in_a_process_of_its_own():
    [done] = run.run_each(["verify"], "small", alone=True)
    assert done.name == "verify"
    assert [line.ratio is not None for line in done.lines][:1] == [True]


@dataclass(frozen=True)
class Result:
    ratio: float

    def lines(self) -> list[Line]:
        return [compared("a | b", 2 * self.ratio, 2.0, Bar(1.3), peak_bytes=1 << 20)]

    def to_dict(self) -> dict[str, float]:
        return {"ratio": self.ratio}


@pytest.fixture
def made_up(monkeypatch):
    """A suite of two: one that runs, one that lacks a library."""
    module = ModuleType("studies.speed.made_up")
    module.run = lambda progress, ratio: Result(ratio)

    def lacking(progress):
        raise MissingExtra("no openvino; install with pip install 'tfa-vpr[torch]'")

    module.lack = lacking
    monkeypatch.setitem(sys.modules, "studies.speed.made_up", module)
    floor = "The floor is nothing."
    one = run.Benchmark(title="One thing", run="made_up:run", floor=floor, small={"ratio": 1.25}, full={"ratio": 1.5})
    two = run.Benchmark(title="Two things", run="made_up:lack", floor=floor, limits="No library.", small={}, full={})
    entries = {"one": one, "two": two}
    monkeypatch.setattr(run, "SUITE", entries)
    monkeypatch.setattr("studies.speed.page.SUITE", entries)
    return entries


def test_a_missing_library_is_a_row_and_the_others_run(made_up):
    one, two = run.run_each(["one", "two"], "full")
    assert (one.lines[0].ratio, one.lines[0].met, one.details) == (1.5, False, {"ratio": 1.5})
    assert two.lines == (Line("Two things", note="no openvino; install with pip install 'tfa-vpr[torch]'"),)
    assert next(run.run_each(["one"], "small")).lines[0].met is True
    with pytest.raises(BadSpec, match="size='tiny' is unknown; use small or full"):
        next(run.run_each(["one"], "tiny"))


def result(size: str, processor: str = "Abacus 3000") -> dict:
    made = run.SpeedRun(size, {"processor": processor, "machine": "x", "cores": 2}, {"numpy": "2"}, 1)
    return replace(made, benchmarks=tuple(run.run_each(["one", "two"], size))).to_dict()


def test_the_page_names_the_machine_and_what_is_required(made_up):
    page = performance_page([result("full")])
    assert "Measured on Abacus 3000 (x), 2 cores; numpy 2.\n" in page
    assert "| [One thing](#one-thing) | a \\| b | 1.50 | ≤ 1.3 | no |" in page
    assert "## One thing\n\n`one`. The floor is nothing.\n\n1 thread: ratio 1.5.\n" in page
    assert "| a \\| b | 3 s | 2 s | 1.50 | ≤ 1.3 | no | 1 MiB | – |" in page
    assert "| Two things (no openvino; install with pip install 'tfa-vpr[torch]') | – |" in page
    assert "small size" not in page
    assert page.index("## One thing") < page.index("## Two things") < page.index("\n\nNo library.\n")


def test_several_machines_are_numbered(made_up):
    page = performance_page([result("full"), result("small", "Slide Rule")])
    assert "1. Abacus 3000" in page
    assert "2. Slide Rule" in page
    assert "Machine 2; 1 thread, small: ratio 1.25." in page
    assert "small size" in page
    assert page.count("## One thing") == 1
    assert "| [One thing](#one-thing) | a \\| b | 1 | 1.50 | ≤ 1.3 | no |" in page
    assert page.count("[One thing](#one-thing)") == 1  # a small run has no targets


def test_results_are_read_from_files_and_folders(made_up, tmp_path):
    write_json(tmp_path / "b.json", result("full"))
    write_json(tmp_path / "a.json", result("small"))
    assert [one["size"] for one in read_results([tmp_path])] == ["small", "full"]
    assert [one["size"] for one in read_results([tmp_path / "b.json"])] == ["full"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "does not exist"), ("{", "cannot be read"), ("[]", "is not a tfa-speed file"),
     ('{"format": "tfa-speed", "version": 99}', "has version 99")],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, text, message):
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadFile, match=message):
        read_results([file])


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BadFile, match="no JSON file"):
        read_results([tmp_path])

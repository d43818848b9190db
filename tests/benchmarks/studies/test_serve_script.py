"""The script serve.py with stubs; tests/service and tests/faults run the real service."""

from __future__ import annotations

import json

from studies import serve as serving
from studies.serve import Latency, ServingBenchmark


def benchmark(lost):
    latency = Latency(10, 1.5, 2.5)
    return ServingBenchmark(
        images=5, encoder="e", clients=1, editors=1, threads=1, seconds=2.0, bare=latency, alone=latency,
        queries=latency, edits=latency, errors=[], added=3, removed=1, lost=lost, machine="m",
    )  # fmt: skip


def test_bench_serve_prints_a_table_or_json(script, monkeypatch):
    asked = {}

    def measured(**given):
        asked.update(given)
        return benchmark([])

    monkeypatch.setattr(serving, "run_serving_benchmark", measured)
    result = script(serving.main, "--seconds", 2, "--clients", 3)
    assert result.exit_code == 0, result.stderr
    assert "after kill -9 and restart: 3 additions, 1 removals accepted, none lost" in result.stdout
    assert (asked["seconds"], asked["clients"], asked["editors"], asked["images"]) == (2.0, 3, 2, 200)
    told = json.loads(script(serving.main, "--json").stdout)
    assert (told["passed"], told["queries"]["p99"], told["queries_per_second"]) == (True, 2.5, 5.0)


def test_bench_serve_fails_if_an_edit_is_lost(script, monkeypatch):
    monkeypatch.setattr(serving, "run_serving_benchmark", lambda **_: benchmark(["image 2 was added and is gone"]))
    result = script(serving.main)
    assert result.exit_code == 1
    assert "image 2 was added and is gone" in result.stdout

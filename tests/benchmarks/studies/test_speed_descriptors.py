"""The descriptor benchmark on small data: times, report and output."""

import json
from dataclasses import replace

import numpy as np

from studies.speed import fit as benchmark
from tests.benchmarks.recorded_calls import record_calls
from tfa.core.tokens import Tokens

SMALL = {"images": 3, "patches": 12, "channels": 6, "words": 4}


def test_a_small_run_reports_time_floor_and_ratio():
    result = benchmark.run_descriptors_benchmark(**SMALL, repeats=2)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {key: facts[key] for key in SMALL} == SMALL
    assert replace(result, seconds=3.0, floor=2.0).to_dict()["ratio"] == 1.5
    assert facts["disk_bytes"] == 6 * 3 * 4 * (4 * 6 + 4)
    (line,) = result.lines()
    assert (line.seconds, line.floor, line.bar.allowed) == (result.seconds, result.floor, 1.5)
    assert line.disk_bytes == result.disk_bytes
    assert "6 descriptors of 3 images × 12 × 6 tokens" in str(result)
    assert "their matrix products alone" in str(result)


def test_all_six_are_described_at_once_in_every_run(monkeypatch):
    calls = record_calls(
        monkeypatch, benchmark, "describe_residuals", lambda *given: (len(given[0]), len(given[1]), given[2])
    )
    benchmark.run_descriptors_benchmark(**SMALL, repeats=2)
    assert calls == [(1, 3, ("hard", "soft")), (3, 3, ("hard", "soft")), (3, 3, ("hard", "soft"))]  # the first warms up


def test_the_floor_is_two_products_an_image(monkeypatch):
    monkeypatch.setattr(benchmark, "_IMAGES_AT_ONCE", 3)
    products = benchmark._BareProducts(Tokens(np.ones((5, 12, 6), np.float16)), [np.ones((4, 6), np.float32)] * 3)
    multiplied, real = [], products._multiply
    products._multiply = lambda image: multiplied.append(real(image))
    for done in (0, 0, 3, 3, 5):
        products.advance()
        assert len(multiplied) == done
    assert {shape.shape for pair in multiplied for shape in pair} == {(12, 12), (24, 6)}
    assert products.seconds > 0

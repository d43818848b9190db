"""The calibration benchmark on small data: times, report and output."""

import json
from dataclasses import replace

import numpy as np
import pytest

from studies.speed import fit as benchmark
from studies.speed.fit import synthetic_tokens
from tests.benchmarks.recorded_calls import record_calls
from tfa import pipeline
from tfa.errors import BadSpec

SMALL = {"images": 12, "target": 8, "full": 14, "patches": 10, "channels": 6}


def test_a_small_run_reports_both_ratios():
    result = benchmark.run_calibrate_benchmark(**SMALL)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {key: facts[key] for key in SMALL} == SMALL
    by_hand = replace(result, fit_seconds=2.0, target_seconds=3.0, full_seconds=5.0)
    assert (by_hand.target_ratio, by_hand.full_ratio) == (1.5, 2.5)
    assert "carrier" in facts["decisions"]
    assert f"calibration on 14 images{result.full_seconds:30.2f}{result.full_ratio:12.2f}" in str(result)
    assert "calibration on 8 images" in str(result)


def test_one_fit_and_two_calibrations_of_it(monkeypatch):
    calls = record_calls(monkeypatch, pipeline, "calibrate", lambda head, target: (len(head), len(target)))
    benchmark.run_calibrate_benchmark(**SMALL)
    assert calls == [(8, 8), (12, 8), (12, 14)]  # the first warms up


def test_photos_are_map_and_target_in_turn(monkeypatch):
    monkeypatch.setattr(benchmark, "tokens_of_photos", lambda photos, progress: synthetic_tokens(21, 8, 4))
    result = benchmark.run_calibrate_benchmark(photos="photos", target=8, full=607)
    assert (result.images, result.target, result.full) == (11, 8, 10)
    monkeypatch.setattr(benchmark, "tokens_of_photos", lambda photos, progress: synthetic_tokens(3, 8, 4))
    with pytest.raises(BadSpec, match="2 map images and 1 target images"):
        benchmark.run_calibrate_benchmark(photos="photos")


def test_targets_are_the_places_of_the_map_in_another_light():
    tokens = synthetic_tokens(5, 40, 16)
    again = benchmark.seen_again(tokens, 10)
    assert again.cls.shape == (10, 16)
    means = [[np.asarray(patch, np.float64).mean(axis=0) for patch in t.patches] for t in (tokens, again)]
    nearest = [int(np.argmin([np.linalg.norm(mean - other) for other in means[0]])) for mean in means[1]]
    assert sorted(nearest) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]

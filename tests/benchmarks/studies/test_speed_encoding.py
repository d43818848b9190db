"""The encoding benchmark on small data: times, report and output."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from studies.speed import photo as benchmark
from tests.encoders.tiny import TINY
from tfa.encoders import Encoder
from tfa.encoders.catalogue import CATALOGUE


@pytest.fixture(scope="module")
def result() -> benchmark.EncodingBenchmark:
    pytest.importorskip("onnxruntime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CATALOGUE, "tiny-v2", TINY["tiny-v2"])
        return benchmark.run_encoding_benchmark(encoders=["tiny-v2"], batches=[1, 3], photos=9, threads=1, repeats=1)


def test_a_small_run_reports_times_ratios_and_sizes(result: benchmark.EncodingBenchmark) -> None:
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [found["batch"] for found in facts["architectures"]] == [1, 3]
    for found in facts["architectures"]:
        assert found["encoder"] == "tiny-v2@56"
        assert found["cosine"] > 0.99
        assert found["fast_bytes"] < found["float32_bytes"]
    assert [line.ratio for line in result.lines()[:2]] == [found["ratio"] for found in facts["architectures"]]
    assert replace(result.architectures[0], float32_seconds=3.0, fast_seconds=2.0).ratio == 1.5
    fed = facts["input"]
    assert fed["photos"] == 9
    assert fed["images_per_second"] == pytest.approx(1 / fed["seconds"])
    assert fed["disk_bytes"] > 2 * (529 + 1) * 384


def test_the_lines_hold_the_gain_and_the_rate_against_what_is_required(result: benchmark.EncodingBenchmark) -> None:
    one = dataclasses.replace(result.architectures[0], batch=8, float32_seconds=1.8, fast_seconds=1.0)
    fed = dataclasses.replace(result.input, seconds=1 / 151)
    changed = dataclasses.replace(result, architectures=(one,), input=fed)
    assert [line.met for line in changed.lines()] == [True, None, True]
    slow = dataclasses.replace(one, fast_seconds=1.01)
    changed = dataclasses.replace(result, architectures=(slow,), input=dataclasses.replace(fed, seconds=1 / 149))
    assert [line.met for line in changed.lines()] == [False, None, False]
    assert "149 images/s" in str(changed)
    assert "1 threads" in str(changed)


def test_the_null_encoder_keeps_the_promises_of_an_encoder() -> None:
    encoder = benchmark.NullEncoder()
    assert isinstance(encoder, Encoder)
    photo = benchmark.synthetic_photo(0, benchmark.PHOTO)
    assert photo.size == (640, 480)
    patches, cls = encoder.encode([encoder.prepare(photo)] * 2)
    assert patches.shape == (2, encoder.grid[0] * encoder.grid[1], encoder.channels)
    assert cls is not None
    assert cls.shape == (2, encoder.global_channels)
    assert patches.dtype == cls.dtype == np.float16


def test_random_weights_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "tiny-v2", TINY["tiny-v2"])
    first, again = (benchmark.random_weights("tiny-v2").tensors for _ in range(2))
    assert all(bool((first[key] == again[key]).all()) for key in first)

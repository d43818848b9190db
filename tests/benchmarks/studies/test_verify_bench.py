"""The reranking benchmark on small data: times, report and output."""

import json
from dataclasses import replace

import pytest

from studies.speed import photo as benchmark

SMALL = {"candidates": 3, "patches": 12, "dimensions": 6, "queries": 4, "threads": 2}


def test_a_small_run_reports_times_and_ratios():
    result = benchmark.run_verify_benchmark(**SMALL)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {key: facts[key] for key in SMALL} == SMALL
    batch = {"batch_seconds": 5.0, "batch_products_seconds": 4.0}
    by_hand = replace(result, seconds=3.0, products_seconds=2.0, **batch).to_dict()
    assert (by_hand["ratio"], by_hand["batch_ratio"], by_hand["ms_per_query"]) == (1.5, 1.25, 3000.0)
    assert "3 candidates × 12 patches × 6 dimensions in 72 bytes" in str(result)
    assert "in a batch of 4 queries, 2 threads" in str(result)


def test_small_patches_are_read_in_a_quarter_of_the_bytes():
    result = benchmark.run_verify_benchmark(**{**SMALL, "dimensions": 8}, small=True)
    assert (result.dimensions, result.bytes_per_image) == (8, 12 * 2)


def test_every_query_is_verified_against_every_candidate(monkeypatch):
    calls = []

    def watch(self, queries, grid, indices, threads):
        calls.append(([len(query) for query in queries], grid, [images.tolist() for images in indices], threads))

    monkeypatch.setattr(benchmark.CompactTokens, "match_each", watch)
    benchmark.run_verify_benchmark(**SMALL)
    assert len(calls) == 2 * (1 + benchmark.REPEATS)  # the first of each warms up
    assert calls[0] == ([12], (3, 4), [[0, 1, 2]], 2)
    assert calls[-1] == ([12] * 4, (3, 4), [[0, 1, 2]] * 4, 2)


@pytest.mark.parametrize(("patches", "grid"), [(529, (23, 23)), (12, (3, 4)), (7, (1, 7)), (1, (1, 1))])
def test_patches_lie_as_near_to_a_square_as_they_can(patches, grid):
    assert benchmark.squarest(patches) == grid

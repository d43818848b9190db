"""The benchmarks of queries, map size and growth on small data: times, report and output."""

import json

import numpy as np
import pytest

from studies.speed.query import run_increment_benchmark, run_map_size_benchmark, run_query_benchmark
from studies.speed.synthetic import arrays_read, synthetic_head
from tfa.errors import BadSpec

SHAPE = {"words": 4, "channels": 16}


def facts_of(result):
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


@pytest.mark.slow
def test_queries_are_timed_beside_the_bytes_they_read():
    result = run_query_benchmark(sizes=(30, 300), patches=9, batch=5, repeats=2, **SHAPE)
    facts = facts_of(result)
    assert [(time["carrier"], time["images"]) for time in facts["times"]] == [
        (carrier, images) for images in (30, 300) for carrier in ("original", "partial", "adaptive")
    ]
    sizes = [time["bytes_read"] for time in facts["times"][3:]]
    assert 300 * 64 < sizes[0] < sizes[1] < sizes[2]
    assert all(time["float32_bytes"] > 3 * time["bytes_read"] for time in facts["times"][3:])
    assert all(time["describe_seconds"] > 0 for time in facts["times"])
    assert [judged["images"] for judged in facts["judged"]] == [30, 300]
    assert len(result.lines()) == 6 * 3 + 2 * 3
    assert result.lines()[0].ratio == pytest.approx(result.times[0].seconds / result.times[0].floor)
    assert "original, 300 images, one query" in str(result)


def test_arrays_are_read_once_though_two_parts_share_them():
    read = arrays_read(synthetic_head(30, "adaptive", **SHAPE))
    assert sorted(array.nbytes for array in read) == sorted([30 * 64, 29 * 30, 29 * 30, 30 * 29, 30 * 29])
    floats = arrays_read(synthetic_head(30, "partial", storage="float16", **SHAPE))
    assert sum(array.nbytes for array in floats) == 2 * (30 * 64 + 2 * 30 * 29)


def test_scores_of_a_made_up_head_are_finite():
    from studies.speed.fit import synthetic_tokens

    for carrier in ("original", "partial", "adaptive"):
        scores = synthetic_head(40, carrier, **SHAPE).scorer.scores(synthetic_tokens(3, 9, 16))
        assert np.isfinite(scores).all()
        assert scores.std() > 0
    with pytest.raises(BadSpec, match="at least 3"):
        synthetic_head(2, "original")


def test_maps_are_weighed_for_every_carrier_and_storage():
    result = run_map_size_benchmark(sizes=(40,), second_order_sizes=(40,), **SHAPE)
    facts = facts_of(result)
    assert len(facts["sizes"]) == 9 + 3  # a second-order map, too, in each storage
    by_storage = {(size["carrier"], size["storage"]): size["bytes_per_image"] for size in facts["sizes"]}
    for carrier in ("original", "partial", "adaptive"):
        assert by_storage[carrier, "int7"] < by_storage[carrier, "float16"] < by_storage[carrier, "float32"]
    assert facts["sizes"][0]["ratio"] == pytest.approx(256 / facts["sizes"][0]["bytes_per_image"])
    assert [line.bar is None for line in result.lines()] == [True, True, False] * 3 + [True] * 3
    assert "times smaller" in str(result)


def test_an_addition_is_timed_and_rewrites_nothing():
    result = run_increment_benchmark(images=40, patches=9, additions=3, **SHAPE)
    facts = facts_of(result)
    assert facts["untouched"] is True
    assert facts["written_bytes"] < facts["map_bytes"]
    assert facts["own_seconds"] == pytest.approx(facts["seconds"] - facts["encode_seconds"])
    assert "no file rewritten but the header" in str(result)

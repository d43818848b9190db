"""The fitting benchmarks on small data: times, report and output."""

import json
from dataclasses import replace

import numpy as np
import pytest

from studies.speed import growth
from studies.speed.fit import run_fit_benchmark
from studies.speed.growth import exponent, run_fit_growth_benchmark, run_sampled_fit_benchmark
from studies.speed.synthetic import LazyTokens, lazy_tokens
from tfa.errors import BadSpec
from tfa.pipeline import fit
from tfa.types import HeadSpec

SMALL = {"patches": 30, "channels": 6, "spec": HeadSpec(words=8)}


def test_growth_tells_time_floor_memory_and_exponent_of_each_size():
    result = run_fit_growth_benchmark(sizes=(40, 20), repeats=2, **SMALL)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [size["images"] for size in facts["sizes"]] == [20, 40]
    for size in facts["sizes"]:
        assert size["floor"] == pytest.approx(sum(size["floor_parts"].values()))
        assert size["descriptor_bytes"] == 6 * size["images"] * 8 * 6 * 4
        assert 0 < size["zero_blocks"] < 1
        assert size["decisions"]["carrier"] in ("original", "partial", "adaptive")
    before = {"words_seconds": 1.0, "describe_seconds": 2.0}
    size = replace(result.sizes[0], **before, seconds=3.0, floor_parts={"a": 1.5, "b": 0.5})
    assert (size.floor, size.ratio) == (2.0, 1.5)
    assert (size.whole_seconds, size.whole_ratio) == (6.0, 1.2)
    assert set(facts["exponents"]) == {"from descriptors", "whole", "floor"}
    assert "growth exponent: from descriptors" in str(result)
    lines = result.lines()
    assert [line.ratio for line in lines if line.bar] == [size.ratio for size in result.sizes]
    assert sum("growth exponent" in line.what for line in lines) == 3


def test_growth_without_a_floor_has_no_ratio():
    result = run_fit_growth_benchmark(sizes=(12,), floor=False, **SMALL)
    assert result.sizes[0].ratio is None
    assert result.exponents == {"from descriptors": None, "whole": None, "floor": None}
    assert "needs two sizes" in str(result)
    assert all(line.bar is None for line in result.lines())


def test_the_stages_timed_are_those_of_a_fit():
    measured = growth.fit_size(24, 30, 6, SMALL["spec"], floor=False)
    assert measured.decisions == fit(lazy_tokens(24, 30, 6)[0], SMALL["spec"]).decisions.to_dict()


def test_files_are_counted_once(monkeypatch):
    monkeypatch.setattr(growth.Spill.__init__, "__defaults__", (0,))
    head = fit(lazy_tokens(20, 30, 6)[0], SMALL["spec"])
    counted = growth.spilled_bytes(head)
    stands_on = [(b.described.descriptors, b.products, b.geometry.vectors) for b in head.branches.values()]
    alone = sum(array.nbytes for arrays in stands_on for array in arrays)
    galleries = {id(g): g for s in (0, 1, 2) for part in head.scorers[s].terms for g in part.gallery.chunks}
    shaped = [g for g in galleries.values() if isinstance(g, np.memmap) and g.shape[1] != 8 * 6]
    assert counted == alone + sum(g.nbytes for g in shaped)  # a gallery of descriptors is no file of its own


def test_the_exponent_is_the_slope_of_logarithms():
    assert exponent([10, 20, 40], [3.0, 12.0, 48.0]) == pytest.approx(2)
    assert exponent([10, 10], [1.0, 2.0]) is None


def test_a_sampled_fit_tells_memory_at_each_size():
    given = {"images": (60, 30), "channels": 6, "patches": 10, "words": 4, "max_pca": 20, "pca_sample": 12}
    result = run_sampled_fit_benchmark(**given, max_pseudo=10)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [size["images"] for size in facts["sizes"]] == [30, 60]
    assert all(size["floor"] is None for size in facts["sizes"])
    if facts["sizes"][0]["peak_bytes"] is not None:
        gained = facts["sizes"][1]["peak_bytes"] - facts["sizes"][0]["peak_bytes"]
        assert facts["bytes_per_image"] == pytest.approx(gained / 30)
        assert result.lines()[-1].what == "growth of memory"
    assert "PCA of 12 images, 10 pseudo queries" in str(result)
    one = run_sampled_fit_benchmark(**{**given, "images": 25}, max_pseudo=10)
    assert (one.exponent, one.bytes_per_image) == (None, None)


def test_sizes_that_say_nothing_are_refused():
    with pytest.raises(BadSpec, match="at least 2 images"):
        run_fit_growth_benchmark(sizes=())
    with pytest.raises(BadSpec, match="above max_pca"):
        growth.run_sampled_fit_benchmark(images=2000)


def test_made_tokens_are_the_same_whenever_they_are_read():
    maker = LazyTokens(5, 529, 16)
    np.testing.assert_array_equal(maker[3], maker[3])
    assert maker[3].shape == (529, 16)
    assert maker[3].dtype == np.float16
    assert not np.array_equal(maker[3], maker[4])
    np.testing.assert_allclose(maker.global_tokens()[3], maker[3].astype(np.float32).mean(axis=0), atol=0.2)
    assert maker.seconds > 0


def test_the_fit_beside_its_unavoidable_parts():
    result = run_fit_benchmark(images=12, patches=10, channels=6)
    facts = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert len(facts["parts"]) == 4
    by_hand = replace(result, seconds=3.0, parts={"a": 1.5, "b": 0.5})
    assert (by_hand.floor, by_hand.ratio) == (2.0, 1.5)
    assert "six eigendecompositions" in str(result)

"""`make soak`, for some seconds."""

from __future__ import annotations

import pytest

from tests.faults.service.soak import FOLDER_KINDS, Sizes, Soak, Timing, run_soak
from tests.waiting import PATIENCE

pytestmark = pytest.mark.kill


@pytest.mark.parametrize("where", ["folder", pytest.param("store", marks=pytest.mark.stores)])
def test_nothing_fails_or_grows_under_load(where, tmp_path, monkeypatch, request, campaign):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    server = request.getfixturevalue("own_postgres") if where == "store" else None
    result = run_soak(tmp_path, campaign.size(5, 60), server, decode_seconds=PATIENCE)
    assert (result.errors, result.lost) == ([], [])
    # Memory has not settled after a few seconds.
    assert [one for one in result.growth if campaign.full or not one.startswith("memory")] == []
    assert result.sizes["loaded"].processes <= 4  # and three decoders
    assert "query" in {one.kind for one in result.timings}
    assert bool(result.refusals) == bool(result.outages) == (where == "store")
    assert "| **requests to the folder** |" in result.format_markdown()
    campaign.count("requests of a soak test", len(result.timings))


def test_growth_is_described():
    before = Sizes(100_000_000, 20, 10, 3)
    assert before.describe_growth(before) == []
    assert Sizes(200_000_000, 90, 60, 4).describe_growth(before) == [
        "memory grew from 100 to 200 MB",
        "descriptors grew from 20 to 90",
        "threads grew from 10 to 60",
        "processes grew from 3 to 4",
    ]


def test_doubled_latency_and_slow_refusals_are_described():
    quiet = [Timing("quiet", kind, 0, 0.01, False) for kind in FOLDER_KINDS]
    held = [Timing("loaded", "query", 0, 0.019, False), Timing("loaded", "store query", 0, 9, True)]
    assert Soak([*quiet, *held]).describe_delays() == []
    slow = [Timing("loaded", "query", 0, 0.02, False), Timing("loaded", "store query", 0, 11, True)]
    assert Soak([*quiet, *slow]).describe_delays() == [
        "median of all requests grew from 10.0 to 20.0 ms",
        "p95 of all requests grew from 10.0 to 20.0 ms",
        "median of requests to the folder grew from 10.0 to 20.0 ms",
        "p95 of requests to the folder grew from 10.0 to 20.0 ms",
        "a store that was down was reported after 11 s",
    ]

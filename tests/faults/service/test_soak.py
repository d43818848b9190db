"""`make soak`, for some seconds."""

from __future__ import annotations

import pytest

from tests.faults.service.soak import Sizes, soak

pytestmark = pytest.mark.kill


def test_nothing_grows_under_mixed_load(town, tmp_path, campaign):
    result = soak(town, tmp_path / "log", campaign.size(5, 60))
    assert result.requests > 10
    assert result.errors == []
    # In a few seconds memory has not settled, so the bounded run looks at the rest alone.
    assert [told for told in result.grown if campaign.full or not told.startswith("memory")] == []
    assert result.after.processes <= 3
    campaign.count("requests of a soak test", result.requests)


def test_growth_is_told():
    before = Sizes(100_000_000, 20, 10, 3)
    assert before.grown(before) == []
    assert Sizes(200_000_000, 60, 20, 4).grown(before) == [
        "memory grew from 100 to 200 MB",
        "descriptors grew from 20 to 60",
        "threads grew from 10 to 20",
        "processes grew from 3 to 4",
    ]

"""Damaged maps, token caches and cameras: refused with one error, or read; with checksums any damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Campaign
from tests.faults.files.fuzzing import fuzz

pytestmark = pytest.mark.slow


def test_saved_maps_caches_and_cameras(campaign: Campaign, tmp_path: Path) -> None:
    assert fuzz(["judged map", "paper map", "token cache", "adaptation"], campaign, tmp_path) == []

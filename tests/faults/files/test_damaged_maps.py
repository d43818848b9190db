"""Damaged maps, token caches and cameras: refused with one error, or read; with checksums any damage is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Campaign
from tests.faults.files.fuzzing import fuzz
from tests.faults.files.targets import TARGETS

pytestmark = pytest.mark.slow


def test_saved_maps_caches_and_cameras(campaign: Campaign, tmp_path: Path) -> None:
    assert fuzz([name for name, (module, *_) in TARGETS.items() if module == "maps"], campaign, tmp_path) == []

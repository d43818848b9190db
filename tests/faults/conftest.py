"""What the tests of the fault campaign share: how much to try, and a count of what was tried and what failed.

A bounded part runs with all other tests; `make faults` (TFA_FAULTS=full) tries as much as
docs/explanation/reliability.md reports.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image

FULL, OUT = "TFA_FAULTS", "TFA_FAULTS_OUT"  # "full" or not set; a folder for the counts


@dataclass
class Campaign:
    """Of one test."""

    full: bool
    out: Path | None
    started: float = field(default_factory=time.monotonic)

    def size(self, bounded: int, full: int) -> int:
        """How many attempts to make."""
        return full if self.full else bounded

    def count(self, name: str, attempts: int, failures: int = 0) -> None:
        """Say how many attempts of one kind were made since the last count, and how many failed; counts add up."""
        assert attempts > 0, f"{name}: nothing was tried"
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            now = time.monotonic()
            row = {"name": name, "attempts": attempts, "failures": failures, "seconds": now - self.started}
            self.started = now
            with open(self.out / f"{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def darker_photos(photos: Path, into: Path) -> None:
    """The same places in other light: photos that a map of the first may be calibrated with."""
    into.mkdir(parents=True)
    for file in sorted(photos.iterdir()):
        with Image.open(file) as photo:
            photo.point(lambda value: value * 0.8).save(into / file.name)


@pytest.fixture
def campaign() -> Campaign:
    out = os.environ.get(OUT)
    return Campaign(os.environ.get(FULL) == "full", Path(out) if out else None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "faults" in item.path.parts:
            item.add_marker(pytest.mark.faults)

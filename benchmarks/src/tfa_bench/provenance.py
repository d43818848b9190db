"""What a record is made by: the revision of the algorithm, versions of what computes, and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tfa.version import __version__

_PACKAGES = ("numpy", "torch", "transformers")

# Raised by whoever changes what a stage computes, be it in the last digit. Records of two revisions never mix.
ALGORITHM: Mapping[str, int] = {
    "kmeans": 2,  # 2: assignments are kept where bounds prove them
    "residuals": 1,
    "spectrum": 1,
    "evidence": 1,
    "controllers": 1,
    "score_calibration": 2,  # 2: levels by a partition, in the last digit
    # 4: ordered by the code of a map; 5: candidates that pay; 6: a sign test admits; 7: confidence knows the lead
    "verification": 7,
    "second_order": 1,  # directions, descriptors, spaces and their scores
    "judge": 1,
    "online": 1,
    "peers": 1,  # heads of other papers
    "trained": 2,  # trained systems: preprocessing, model and ranking; 2: confidence of two stages from cosines
}
METHOD = ("kmeans", "residuals", "spectrum", "evidence", "controllers", "score_calibration")
_UNRECORDED = "unrecorded"  # the revision of records that carry none


def revisions(stages: Sequence[str]) -> dict[str, int]:
    """The present revision of each stage that a head runs through."""
    return {stage: ALGORITHM[stage] for stage in stages}


def mixed_revisions(records: Iterable[Mapping[str, int]]) -> dict[str, list[str]]:
    """Stages that several records ran through in different revisions → these revisions."""
    everyone = list(records)
    known: dict[str, set[str]] = {}
    for stage in {stage for record in everyone for stage in record}:
        for record in everyone:
            if stage in record or not record:
                known.setdefault(stage, set()).add(str(record.get(stage, _UNRECORDED)))
    return {stage: sorted(own) for stage, own in sorted(known.items()) if len(own) > 1}


def versions() -> dict[str, str]:
    known = {"tfa": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


def hardware(device: str = "cpu") -> dict[str, str | int]:
    return {"machine": platform.machine(), "processor": processor(), "cores": os.cpu_count() or 1, "device": device}


def processor() -> str:
    """The processor's own name where the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

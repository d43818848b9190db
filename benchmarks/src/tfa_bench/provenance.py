"""Provenance of a record: revisions of the algorithm, versions of libraries, and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tfa.version import __version__

_PACKAGES = ("numpy", "torch", "transformers")

# Raise a revision with any change to what a stage computes, even in the last digit. Records of two revisions never mix.
ALGORITHM: Mapping[str, int] = {
    "kmeans": 3,  # 2: assignments are kept if bounds prove them; 3: patches and words on a grid
    "residuals": 1,
    "spectrum": 1,
    "evidence": 2,  # 2: equal images tie
    "controllers": 1,
    "score_calibration": 2,  # 2: levels by a partition, which changes the last digit
    # 4: reranks like a map; 5: adaptive candidates; 6: a sign test admits; 7: confidence uses the lead
    "verification": 7,
    "second_order": 1,  # directions, descriptors, spaces and their scores
    "judge": 1,
    "online": 1,
    "peers": 1,  # heads of other papers
    "trained": 2,  # preprocessing, model and ranking; 2: confidence of two stages from cosines
}
METHOD = ("kmeans", "residuals", "spectrum", "evidence", "controllers", "score_calibration")
_UNRECORDED = "unrecorded"  # revision of records that store none


def revisions(stages: Sequence[str]) -> dict[str, int]:
    """Return the current revision of each stage that a head uses."""
    return {stage: ALGORITHM[stage] for stage in stages}


def mixed_revisions(records: Iterable[Mapping[str, int]]) -> dict[str, list[str]]:
    """Return stages that several records used in different revisions, with these revisions."""
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
    """Return the processor's name if the system reports it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

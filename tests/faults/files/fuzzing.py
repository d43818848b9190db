"""Run targets in a worker, stored inputs and seeds first, and report failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults.conftest import Campaign
from tests.faults.files.targets import TARGETS, corpus

ROOT = Path(__file__).parents[3]
SEEDS = Path(__file__).parent / "seeds.txt"
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # so that a worker can fork
SECONDS = 1800  # of a worker: some times what it needs


def kept_seeds() -> dict[str, list[int]]:
    """Of each target the seeds in seeds.txt: lines `target: seed  # what it found`."""
    kept: dict[str, list[int]] = {}
    for line in SEEDS.read_text("utf-8").splitlines():
        entry = line.partition("#")[0].strip()
        if entry:
            target, _, seed = entry.rpartition(":")
            assert target in TARGETS, f"{SEEDS.name} names a target {target!r}"
            kept.setdefault(target, []).append(int(seed))
    return kept


def fuzz(targets: list[str], campaign: Campaign, folder: Path) -> list[str]:
    """Try every target; the failures in words. Each names its seed, and its file lies in `inputs`."""
    jobs, kept = [], kept_seeds()
    for target in targets:
        bounded, full = TARGETS[target][3:]
        again = [*corpus(target), *kept.get(target, [])]
        fresh = [seed for seed in range(campaign.size(bounded, full)) if seed not in again]
        jobs.append({"target": target, "folder": str(folder / target.replace(" ", "-")), "seeds": again + fresh})
    lines = run(jobs, folder)
    failures = [line for line in lines if "problem" in line]
    for job in jobs:
        failed = sum(failure["target"] == job["target"] for failure in failures)
        seconds = next(line["seconds"] for line in lines if line["target"] == job["target"] and "seconds" in line)
        campaign.started = time.monotonic() - seconds
        campaign.count(f"damaged files: {TARGETS[str(job['target'])][2]}", len(job["seeds"]), failed)
    return [f"{one['target']}: {one['seed']}\n{one['problem']}" for one in failures]


def run(jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What a worker says of these jobs: a line for each failure, and the seconds of each target.

    It fails itself if it does not get through them.
    """
    plan, found, said = folder / "jobs.json", folder / "failures.jsonl", folder / "said.txt"
    plan.write_text(json.dumps(jobs), encoding="utf-8")
    found.touch()
    command = [sys.executable, "-m", "tests.faults.files.worker", str(plan), str(found)]
    # What decoders print goes to a file.
    with open(said, "wb") as output:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **ALONE}, stdout=output, stderr=output, timeout=SECONDS
        )
    assert done.returncode == 0, said.read_text("utf-8", "replace")[-4000:]
    return [json.loads(line) for line in found.read_text("utf-8").splitlines()]

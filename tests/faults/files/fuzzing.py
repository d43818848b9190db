"""Runs targets in a worker, the seeds that once found something first, and says what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.faults.conftest import Campaign
from tests.faults.files.targets import TARGETS

ROOT = Path(__file__).parents[3]
SEEDS = Path(__file__).parent / "seeds.txt"
SECONDS = 900  # of a worker: many times what it needs


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
    """Try every target; the failures in words. Each names its seed, and the damaged file lies in `folder`."""
    jobs, kept = [], kept_seeds()
    for target in targets:
        bounded, full = TARGETS[target][3:]
        again = kept.get(target, [])
        fresh = [seed for seed in range(campaign.size(bounded, full)) if seed not in again]
        jobs.append({"target": target, "folder": str(folder / target.replace(" ", "-")), "seeds": again + fresh})
    failures = run(jobs, folder)
    for job in jobs:
        failed = sum(failure["target"] == job["target"] for failure in failures)
        campaign.count(f"damaged files: {TARGETS[str(job['target'])][2]}", len(job["seeds"]), failed)
    return [f"{one['target']}: {one['seed']}\n{one['problem']}" for one in failures]


def run(jobs: list[dict[str, object]], folder: Path) -> list[dict[str, str]]:
    """The failures of a worker over these jobs; it fails itself if it does not get through them."""
    plan, found, said = folder / "jobs.json", folder / "failures.jsonl", folder / "said.txt"
    plan.write_text(json.dumps(jobs), encoding="utf-8")
    found.touch()
    command = [sys.executable, "-m", "tests.faults.files.worker", str(plan), str(found)]
    # One thread, so that it can fork; what decoders print goes to a file.
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with open(said, "wb") as output:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **alone}, stdout=output, stderr=output, timeout=SECONDS
        )
    assert done.returncode == 0, said.read_text("utf-8", "replace")[-4000:]
    failures = [json.loads(line) for line in found.read_text("utf-8").splitlines()]
    for failure in failures:
        keep_input(failure["target"], int(failure["seed"]), folder)
    return failures


def keep_input(target: str, seed: int, folder: Path) -> None:
    """Write the file that failed beside the others, under its target and seed."""
    from tests.faults.files.targets import load_target
    from tests.faults.files.worker import hostile

    name, content = hostile(load_target(target, folder / "again" / target.replace(" ", "-")), seed)
    out = Path(os.environ.get("TFA_FAULTS_OUT") or folder) / "inputs"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{target.replace(' ', '-')}-{seed}-{Path(name).name}").write_bytes(content)

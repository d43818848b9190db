"""A process that tries hostile files, batch by batch in children that may hang, crash or run out of memory.

    python -m tests.faults.files.worker JOBS.json FAILURES.jsonl

It stays single-threaded, so that it can fork a child for every batch after the imports are done once. A child writes
the seed it is at before each attempt; if it dies there, that attempt failed and the next child goes on after it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.faults.conftest import OUT
from tests.faults.files.mutations import mutated, mutated_json
from tests.faults.files.targets import Target, load_target
from tests.waiting import PATIENCE
from tfa.errors import TfaError

PROCESSOR_SECONDS = 20  # of one attempt, whatever else the machine does
BATCH = 500  # attempts of a child


def hostile(target: Target, seed: int) -> tuple[str, bytes]:
    """The file that a seed damages, and its bytes."""
    rng = random.Random(f"{target.name}:{seed}")
    name = rng.choice(target.victims)
    data, others = target.files[name], [target.files[other] for other in target.victims if other != name]
    layer = target.layers.get(name) if rng.random() < 0.5 else None
    if layer is None:
        return name, mutated(data, rng, others, same_size=target.same_size and rng.random() < 0.7)
    inner = layer.unwrap(data)
    changed = mutated_json(inner, rng) if layer.json and rng.random() < 0.7 else mutated(inner, rng)
    return name, layer.wrap(changed, data)


def attempt(target: Target, folder: Path, seed: int) -> str | None:
    """What went wrong; None if the file was accepted or refused as it should be."""
    name, content = hostile(target, seed)
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the highest use of memory is that of now
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (folder / name).write_bytes(content)
    try:
        target.read(folder, name, content != target.files[name])
    except TfaError as error:
        problem = None if str(error) else "an error without words"
    except BaseException:
        problem = traceback.format_exc()
    else:
        problem = None
    finally:
        (folder / name).write_bytes(target.files[name])
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if problem is None and grown > target.memory:
        problem = f"took {grown:,} bytes of memory, more than {target.memory:,}"
    return problem


def child(target: Target, job: dict[str, Any], seeds: list[int], progress: int, failures: Path) -> None:
    folder = Path(job["folder"])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * target.memory, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    for seed in seeds:
        os.pwrite(progress, struct.pack("<q", seed), 0)
        signal.alarm(job.get("seconds", int(PATIENCE)))  # it may also wait for something that never comes
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        problem = attempt(target, folder, seed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if problem is not None:
            note(failures, target, seed, problem)


def note(failures: Path, target: Target, seed: int, problem: str) -> None:
    """Write down what failed, and the file that did it, under its target and seed."""
    write_line(failures, {"target": target.name, "seed": seed, "problem": problem})
    name, content = hostile(target, seed)
    inputs = Path(os.environ.get(OUT) or failures.parent) / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    (inputs / f"{target.name.replace(' ', '-')}-{seed}-{Path(name).name}").write_bytes(content)


def write_line(file: Path, value: dict[str, Any]) -> None:
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(value) + "\n")


def run_job(job: dict[str, Any], failures: Path) -> None:
    folder = Path(job["folder"])
    target = load_target(job["target"], folder)
    seeds, progress = list(job["seeds"]), os.open(folder.with_suffix(".seed"), os.O_RDWR | os.O_CREAT)
    started = time.monotonic()
    while seeds:
        batch = seeds[:BATCH]
        process = os.fork()
        if not process:
            try:
                child(target, job, batch, progress, failures)
            finally:
                os._exit(0)
        _, status = os.waitpid(process, 0)
        if status:  # killed by the alarm, by the memory limit or by a crash in C code
            at = struct.unpack("<q", os.pread(progress, 8, 0))[0]
            note(failures, target, at, f"the process ended with status {status} (14: it hung, 27: it worked too long)")
            for name, content in target.files.items():
                (folder / name).write_bytes(content)
            seeds = seeds[seeds.index(at) + 1 :]
        else:
            seeds = seeds[len(batch) :]
    write_line(failures, {"target": target.name, "seconds": time.monotonic() - started})


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        run_job(one, Path(sys.argv[2]))

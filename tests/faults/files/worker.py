"""A process that tries hostile files, batch by batch in children that may hang, crash or run out of memory.

    python -m tests.faults.files.worker JOBS.json FAILURES.jsonl

It stays single-threaded, so that it can fork a child for every batch after the imports are done once. A child writes
the seed it is at before each attempt; if it dies there, that attempt failed and the next child goes on after it.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.conftest import OUT
from tests.faults.files.mutations import mutated, mutated_json
from tests.faults.files.targets import Target, corpus_folder, load_target
from tests.waiting import PATIENCE
from tfa.errors import TfaError

PROCESSOR_SECONDS = 20  # of one attempt, whatever else the machine does
BATCH = 500  # attempts of a child


def hostile(target: Target, seed: int | str) -> tuple[str, bytes]:
    """Return the name and the bytes of a damaged file: one that a seed damages, or one of the target's corpus."""
    if isinstance(seed, str):
        return seed.rpartition("/")[0], (corpus_folder(target.name) / seed).read_bytes()
    rng = random.Random(f"{target.name}:{seed}")
    name = rng.choice(target.victims)
    return name, damaged(target, name, target.files[name], rng)


def damaged(target: Target, name: str, data: bytes, rng: random.Random) -> bytes:
    """Damage the content of a file, or what lies inside it."""
    layer = target.layers.get(name) if rng.random() < 0.5 else None
    if layer is None:
        others = [target.files[other] for other in target.victims if other != name]
        return mutated(data, rng, others, same_size=target.same_size and rng.random() < 0.7)
    inner = layer.unwrap(data)
    changed = mutated_json(inner, rng) if layer.json and rng.random() < 0.7 else mutated(inner, rng)
    return layer.wrap(changed, data)


def attempt(target: Target, folder: Path, name: str, content: bytes) -> str | None:
    """What went wrong; None if the file was accepted or refused as it should be."""
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


def limit_memory(target: Target) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * target.memory, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")


def child(target: Target, job: dict[str, Any], seeds: Sequence[int | str], progress: int, failures: Path) -> None:
    folder = Path(job["folder"])
    limit_memory(target)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number, seed in enumerate(seeds):
        os.pwrite(progress, struct.pack("<q", number), 0)
        signal.alarm(job.get("seconds", int(PATIENCE)))  # it may also wait for something that never comes
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        problem = attempt(target, folder, *hostile(target, seed))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if problem is not None:
            note(failures, target, seed, problem)


def note(failures: Path, target: Target, seed: int | str, problem: str) -> None:
    """Write down what failed, and the file that did it, under its target and seed."""
    write_line(failures, {"target": target.name, "seed": seed, "problem": problem})
    name, content = hostile(target, seed)
    inputs = Path(os.environ.get(OUT) or failures.parent) / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    (inputs / f"{target.name}-{seed}-{Path(name).name}".replace(" ", "-").replace("/", "-")).write_bytes(content)


def write_line(file: Path, value: dict[str, Any]) -> None:
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(value) + "\n")


def run_job(job: dict[str, Any], failures: Path) -> None:
    folder = Path(job["folder"])
    target = load_target(job["target"], folder)
    seeds, progress = job["seeds"], os.open(folder.with_suffix(".seed"), os.O_RDWR | os.O_CREAT)
    started, tried = time.monotonic(), 0
    while seeds and time.monotonic() - started < job.get("most_seconds", math.inf):
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
            note(
                failures,
                target,
                seeds[at],
                f"the process ended with status {status} (14: it hung, 27: it worked too long)",
            )
            for name, content in target.files.items():
                (folder / name).write_bytes(content)
            batch = batch[: at + 1]
        seeds, tried = seeds[len(batch) :], tried + len(batch)
    write_line(failures, {"target": target.name, "seconds": time.monotonic() - started, "tried": tried})


if __name__ == "__main__":
    for one in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        run_job(one, Path(sys.argv[2]))

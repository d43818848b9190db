"""Fuzz the readers: python -m tests.faults.fuzz TARGET|all [--seconds N] [--seed N] [--keep] [--plain] [--input FILE]

With atheris, inputs that reach new code of TFA are mutated further, starting from the undamaged files and the corpus
of the target. Without atheris, files are damaged by seed, as in `make faults`. An input passes if it is accepted, or
refused with an error from `tfa.errors`. Failed inputs are written to faults-out/fuzz and can be tried again with
--input. --keep adds inputs that fail or reach new lines to the corpus. Exits with 1 if an input failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults.files.fuzzing import ALONE, ROOT
from tests.faults.files.targets import FAILING_ON_PURPOSE, TARGETS, Target, corpus, corpus_folder, load_target
from tests.faults.files.worker import attempt, damaged, hostile, limit_memory, run_job, write_line

OUT = ROOT / "faults-out" / "fuzz"
FAILURES, ENDED = "failures.jsonl", "ended-"  # of one target: problems by input, files of inputs that ended a process
HANG_SECONDS = 25
LARGEST, MOST = 20_000, 25  # bytes of an input of a corpus, inputs of a corpus
CODE = tuple(str(ROOT / folder) + os.sep for folder in ("src/tfa", "benchmarks/src/tfa_bench"))
Input = tuple[str, bytes]  # the file that is replaced, and its content


def stored(target: Target) -> list[Input]:
    return [hostile(target, name) for name in corpus(target.name)]


# --- in a process of its own -----------------------------------------------------------------------------------------


def fuzz_with_atheris(name: str, folder: Path, seconds: float, seed: int) -> None:
    """Run libFuzzer in this process, which it ends. The first byte of its inputs chooses the file."""
    import atheris

    with atheris.instrument_imports(include=["tfa", "tfa_bench"]):
        target = load_target(name, folder / str(seed))
    limit_memory(target)
    victims, places = list(target.victims), set[str]()

    def try_input(data: bytes) -> None:
        problem = attempt(target, folder / str(seed), *split(target, data))
        if problem is not None and find_place(problem) not in places:
            places.add(find_place(problem))
            write_line(folder / FAILURES, {"problem": problem, "input": data.hex()})

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = random.Random(number)
        victim, content = split(target, data)
        try:
            changed = data[:1] + damaged(target, victim, content, rng) if rng.random() < 0.5 else b""
        except Exception:  # the inside of a damaged file cannot be read
            changed = b""
        return changed[:most] or atheris.Mutate(data, most)

    inputs = folder / "inputs"
    inputs.mkdir(exist_ok=True)
    for victim, content in [*target.files.items(), *stored(target)]:
        data = bytes([victims.index(victim)]) + content
        (inputs / hashlib.sha1(data).hexdigest()).write_bytes(data)
    options = {"max_total_time": max(1, int(seconds)), "seed": seed, "timeout": HANG_SECONDS, "rss_limit_mb": 0,
               "max_len": 2 * max(map(len, target.files.values())) + 5_000, "print_final_stats": 1,
               "artifact_prefix": f"{folder}/{ENDED}"}  # fmt: skip
    command = ["fuzz", *(f"-{key}={value}" for key, value in options.items()), str(inputs)]
    atheris.Setup(command, try_input, custom_mutator=mutate)
    atheris.Fuzz()


def find_place(problem: str) -> str:
    """Return the line of code that raised; one input is reported for each."""
    return "".join(re.findall(r'File "(.*), in ', problem)[-1:]) or problem


def split(target: Target, data: bytes) -> Input:
    return target.victims[data[0] % len(target.files) if data else 0], data[1:]


# --- the runner ------------------------------------------------------------------------------------------------------


def fuzz(target: Target, folder: Path, seconds: float, seed: int, guided: bool) -> tuple[int, list[tuple[Input, str]]]:
    """Fuzz in other processes until the time is over; return the number of inputs, and those that failed."""
    deadline, tried, failed = time.monotonic() + seconds, 0, dict[Input, str]()
    while (left := deadline - time.monotonic()) > 0:
        options = [
            "--inside",
            str(folder),
            "--seconds",
            str(left),
            "--seed",
            str(seed),
            *([] if guided else ["--plain"]),
        ]
        command = [sys.executable, "-m", "tests.faults.fuzz", target.name, *options]
        with open(folder / "output.txt", "wb") as output:
            done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ALONE}, stdout=output, stderr=output)
        said = (folder / "output.txt").read_text("utf-8", "replace")
        tried += sum(map(int, re.findall(r"number_of_executed_units: (\d+)", said)))
        ended = {split(target, file.read_bytes()): file for file in folder.glob(f"{ENDED}*")}
        if (done.returncode and not ended) or ended.keys() & failed.keys():
            raise SystemExit(f"{target.name}: the process ended with {done.returncode}\n{said[-4000:]}")
        for one, file in ended.items():  # libFuzzer ends when an input hangs or crashes; the next process goes on
            failed[one] = f"the process ended: {file.name.removeprefix(ENDED)}"
            (folder / "inputs" / file.name.rpartition("-")[2]).unlink(missing_ok=True)
            file.unlink()
        seed += 1
    lines = (folder / FAILURES).read_text("utf-8").splitlines() if (folder / FAILURES).exists() else []
    places = set[str]()
    for line in map(json.loads, lines):
        if "problem" in line and find_place(line["problem"]) not in places:
            places.add(find_place(line["problem"]))
            data = line.get("input")
            one = hostile(target, line["seed"]) if data is None else split(target, bytes.fromhex(data))
            failed.setdefault(one, line["problem"])
        tried += line.get("tried", 0)
    return tried, list(failed.items())


def keep(target: Target, folder: Path, candidates: Iterable[Input], failed: Iterable[Input]) -> int:
    """Add failed inputs to the corpus, and those that reach lines that no other input reaches; return how many."""
    covered = set[tuple[str, int]]().union(*(reached(target, folder, *one) for one in target.files.items()))
    old = stored(target)
    covered.update(*(reached(target, folder, *one) for one in old))
    new = [one for one in failed if one not in old and len(one[1]) <= LARGEST]
    small = sorted((one for one in candidates if len(one[1]) <= LARGEST), key=lambda one: (len(one[1]), one))
    pool = {one: lines for one in small if (lines := reached(target, folder, *one) - covered)}
    while pool and len(old) + len(new) < MOST:
        best = max(pool, key=lambda one: len(pool[one]))
        new.append(best)
        lines = pool.pop(best)
        pool = {one: rest for one, others in pool.items() if (rest := others - lines)}
    for one in new:
        write_input(corpus_folder(target.name), *one)
    return len(new)


def reached(target: Target, folder: Path, name: str, content: bytes) -> set[tuple[str, int]]:
    """Return the lines of TFA that run while a file is read."""
    lines = set[tuple[str, int]]()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    try:
        attempt(target, folder / "files", name, content)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return lines


def write_input(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name / hashlib.sha256(content).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def fuzz_target(name: str, seconds: float, seed: int, *, guided: bool, keeps: bool) -> int:
    """Fuzz a target, report and keep; return the number of failures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        target = load_target(name, folder / "files")
        started = time.monotonic()
        tried, failed = fuzz(target, folder, seconds, seed, guided)
        rate = tried / (time.monotonic() - started)
        print(f"{name}: {tried:,} inputs, {rate:,.0f} per second, {len(failed)} failures", flush=True)
        for one, problem in failed:
            path = write_input(OUT / name.replace(" ", "-"), *one)
            path.with_suffix(".txt").write_text(problem, "utf-8")
            print(f"{problem[-1500:]}\nrepeat with: python -m tests.faults.fuzz {name!r} --input {path}", flush=True)
        if keeps:
            grown = [split(target, file.read_bytes()) for file in folder.glob("inputs/*")]
            added = keep(
                target, folder, grown or [hostile(target, one) for one in range(500)], [one for one, _ in failed]
            )
            print(f"{name}: {added} inputs added to the corpus of {len(corpus(name))}", flush=True)
    return len(failed)


def repeat(name: str, file: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        target = load_target(name, Path(folder))
        victims = [one for one in target.victims if f"/{file.parent.resolve().as_posix()}".endswith(f"/{one}")]
        if not victims:
            raise SystemExit(f"{file} must be in a folder that is named like the file it replaces: {target.victims}")
        problem = attempt(target, Path(folder), max(victims, key=len), file.read_bytes())
    print(problem or "accepted, or refused with an error of tfa.errors")
    return problem is not None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description="Fuzz the readers.")
    parser.add_argument("target", metavar="TARGET", choices=["all", *TARGETS, *FAILING_ON_PURPOSE])
    parser.add_argument("--seconds", type=float, default=60, help="Time of each target. [default: 60]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="Add inputs that fail or reach new lines to the corpus.")
    parser.add_argument("--plain", action="store_true", help="Damage files by seed, without atheris.")
    parser.add_argument("--input", type=Path, help="Try this file only.")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.input is not None:
        return repeat(options.target, options.input)
    guided = not options.plain and importlib.util.find_spec("atheris") is not None
    if options.inside is not None and guided:
        fuzz_with_atheris(options.target, options.inside, options.seconds, options.seed)
    elif options.inside is not None:
        seeds = range(options.seed * 10**9, (options.seed + 1) * 10**9)
        job = {"target": options.target, "folder": str(options.inside / str(options.seed)), "seeds": seeds}
        run_job({**job, "most_seconds": options.seconds, "seconds": HANG_SECONDS}, options.inside / FAILURES)
        return 0
    print("inputs guided by coverage, with atheris" if guided else "files damaged by seed, without atheris", flush=True)
    names, keeps = TARGETS if options.target == "all" else [options.target], options.keep
    return min(1, sum(fuzz_target(name, options.seconds, options.seed, guided=guided, keeps=keeps) for name in names))


if __name__ == "__main__":
    sys.exit(main())

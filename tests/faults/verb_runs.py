"""Run commands in forked children, with unusual inputs and outputs.

    python -m tests.faults.verb_runs PLAN.json

The plan lists runs: the words of a command, the way it is run, the file for its standard error. The exit code of each
is printed, one a line; a child that hangs ends by signal 14. The imports are done once; the encoder is the fake one.
The ways: "closed", "full" and "broken" are of standard output; "plain" has it in the file too, and so have "memory N",
with N megabytes more than are taken already, and "nobody", by a user who owns nothing. "here" runs it in no child, so
that what it imports is imported: that user may not be able to read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import tfa.demo.run
import tfa.encoders
import tfa.maps.map
from tests.fakes import FakeEncoder
from tfa.cli.app import main

ROOT = Path(__file__).parents[2]
STREAMS = ("closed", "full", "broken")
SECONDS = 120  # many times what any of them takes
NOBODY = 65534


def exit_codes(plan: Sequence[tuple[Sequence[str], str, str]], folder: Path) -> list[int]:
    """Those of the runs of a plan, made in that folder, in a process that forks and therefore has one thread."""
    (folder / "plan.json").write_text(json.dumps(plan))
    given = {"TFA_CACHE": str(folder / "cache"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.verb_runs", "plan.json"]
    environment = {**os.environ, **given, **alone}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return [int(code) for code in done.stdout.split()]


def child(words: list[str], way: str, said: str) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    kind, _, number = way.partition(" ")
    if kind == "closed":
        os.close(1)
        sys.stdout = sys.__stdout__ = None  # as Python starts with
    elif kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif kind == "broken":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    else:
        os.dup2(2, 1)
    if kind == "nobody":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if kind == "memory":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + int(float(number) * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.argv = ["tfa", *words]
    main()


def run_here(words: list[str], said: str) -> int:
    sys.argv = ["tfa", *words]
    with open(said, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 99


def run() -> None:
    for module in (tfa.encoders, tfa.maps.map, tfa.demo.run):
        module.load_encoder = lambda *_, **__: FakeEncoder()  # type: ignore[attr-defined]
    codes = []
    for words, way, said in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        if way == "here":
            codes.append(run_here(words, said))
            continue
        process = os.fork()
        if not process:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            child(words, way, said)  # which ends as the interpreter ends, with all that this says
            os._exit(99)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    print("\n".join(map(str, codes)))


if __name__ == "__main__":
    run()

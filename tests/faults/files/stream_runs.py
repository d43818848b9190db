"""Runs verbs with a standard output that is closed, full or no longer read, each in a forked child.

    python -m tests.faults.files.stream_runs PLAN.json

The plan lists runs: the words of a command, the kind of its output, the file for its standard error. The exit code of
each is printed, one a line. The imports are done once; the encoder is the fake one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import tfa.encoders
import tfa.maps.asking
import tfa.maps.place_map
from tests.fakes import FakeEncoder
from tfa.cli.app import main

KINDS = ("closed", "full", "broken")


def child(words: list[str], kind: str, said: str) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    if kind == "closed":
        os.close(1)
        sys.stdout = sys.__stdout__ = None  # as Python starts with
    elif kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    sys.argv = ["tfa", *words]
    main()


def run() -> None:
    for module in (tfa.encoders, tfa.maps.asking, tfa.maps.place_map):
        module.load_encoder = lambda *_, **__: FakeEncoder()  # type: ignore[attr-defined]
    codes = []
    for words, kind, said in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        process = os.fork()
        if not process:
            child(words, kind, said)  # which ends as the interpreter ends, with all that this says
            os._exit(99)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    print("\n".join(map(str, codes)))


if __name__ == "__main__":
    run()

"""A service under mixed load for a long time: memory, descriptors and threads stay as they are after a warm-up.

`python -m tests.faults.service.soak`; TFA_SOAK_SECONDS says how long, an hour if it is not set.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.service.hostile import MUTATED_KINDS, mutated, saved
from tests.faults.service.raw import HEAD, connected, serving
from tests.service.conftest import picture
from tests.service.test_killed import fake_map
from tests.waiting import PATIENCE, wait_until
from tfa.client import Client, ServiceError

HOUR = 3600.0
WARM_SHARE = 0.3  # of the time, until the caches are full and every thread has begun
WARM_REQUESTS = 100  # at least, however slow the machine is
CLIENTS = 4
MEMORY, DESCRIPTORS, THREADS = 0.10, 12, 2  # how much more is no growth: a share, connections under way, a timer
SLACK_BYTES = 30_000_000  # an allocator that holds on to a few pages


@dataclass(frozen=True)
class Sizes:
    """Of a process, and its decoders."""

    memory: int
    descriptors: int
    threads: int
    processes: int

    @classmethod
    def of(cls, pid: int) -> Sizes:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        memory = 1024 * int(status["VmRSS"].split()[0])
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(memory, descriptors, int(status["Threads"]), 1 + len(children))

    def grown(self, before: Sizes) -> list[str]:
        """What is more than it was, in words."""
        told = []
        if self.memory > before.memory * (1 + MEMORY) + SLACK_BYTES:
            told.append(f"memory grew from {before.memory / 1e6:.0f} to {self.memory / 1e6:.0f} MB")
        if self.descriptors > before.descriptors + DESCRIPTORS:
            told.append(f"descriptors grew from {before.descriptors} to {self.descriptors}")
        if self.threads > before.threads + THREADS:
            told.append(f"threads grew from {before.threads} to {self.threads}")
        if self.processes > before.processes:
            told.append(f"processes grew from {before.processes} to {self.processes}")
        return told


@dataclass
class Soak:
    """What a soak did and saw."""

    requests: int
    errors: list[str]
    before: Sizes
    after: Sizes

    @property
    def grown(self) -> list[str]:
        return self.after.grown(self.before)


def soak(town: Path, log: Path, seconds: float) -> Soak:
    """Query, edit, attack and hang up for so long."""
    over, lock, errors, counts = threading.Event(), threading.Lock(), list[str](), [0]

    def work(url: str, number: int) -> None:
        choose = random.Random(number)
        with Client(url) as client:
            while not over.is_set():
                try:
                    _one(client, url, choose)
                except ServiceError as error:
                    if error.status not in (413, 415, 422):  # what a mutated photo deserves
                        errors.append(str(error))
                with lock:
                    counts[0] += 1

    with serving(town, log, "--cameras", "4") as child:
        assert child._process is not None
        pid = child._process.pid
        threads = [threading.Thread(target=work, args=(child.url, number), daemon=True) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_SHARE * seconds)
        wait_until(lambda: counts[0] >= WARM_REQUESTS)
        before = Sizes.of(pid)
        time.sleep((1 - WARM_SHARE) * seconds)
        after = Sizes.of(pid)
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
    return Soak(counts[0], errors, before, after)


def _one(client: Client, url: str, choose: random.Random) -> None:
    place = choose.randrange(14)
    match choose.randrange(8):
        case 0:
            added = client.add([saved("PNG", choose.randrange(10**9))]).added
            client.remove(added)  # the map stays as large as it is, though its files do not
        case 1:
            client.query(mutated(saved(choose.choice(MUTATED_KINDS), place), choose))
        case 2:
            with connected(url) as one:
                one.sendall(HEAD)  # and hang up
        case 3:
            client.query(picture(place), camera=f"cam{choose.randrange(8)}")
        case 4:
            client.image(client.images()[0].id)
        case _:
            client.query(picture(place))


def main() -> int:
    seconds = float(os.environ.get("TFA_SOAK_SECONDS", HOUR))
    with tempfile.TemporaryDirectory(prefix="tfa-soak-") as name:
        folder = Path(name)
        os.environ["TFA_CACHE"] = str(folder / "cache")
        fake_map(folder, 14)
        result = soak(folder / "town.tfa", folder / "log", seconds)
        sys.stderr.write((folder / "log").read_text("utf-8")[-2000:])
    print(f"{seconds:g} s, {result.requests:,} requests, {len(result.errors)} errors {result.errors[:3]}")
    print(f"before: {result.before}\nafter:  {result.after}")
    print("; ".join(result.grown) or "nothing grew")
    return 1 if result.grown or result.errors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Hold a service under load: 200 honest clients, next to a flood, slow clients, hostile requests and a dying store.

    python -m tests.faults.service.soak [--docs docs/explanation/reliability.md]

TFA_SOAK_SECONDS sets the duration [default: an hour]. The honest clients send the same load in the quiet phase and in
the loaded ones. Exits with 1 if their latency doubles, a request fails, an edit is lost, or the service grows.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.scale.local_servers import PostgresServer
from studies.serve import Child, Edits, _lost
from tests.fakes import FakeEncoder
from tests.faults.service.attackers import attackers
from tests.faults.service.hostile import saved
from tests.faults.table import placed
from tests.maps.conftest import SPEC, photo
from tests.service.conftest import picture
from tests.waiting import PATIENCE, wait_until
from tfa.client import Client, ServiceError
from tfa.maps import PlaceMap
from tfa.search.store import MapLocation

HOUR = 3600.0
# Name → share of the time, with attacks. The first warms up; memory is compared after the third and the last.
PHASES = {"warm": (0.05, False), "quiet": (0.25, False), "begin": (0.2, True), "loaded": (0.5, True)}
CLIENTS, KEYS, PERIOD = 200, 20, 8.0  # honest clients, their API keys, seconds between requests of a client
# Honest requests by frequency, to the map in a folder and to the map in a store.
MIX = {"query": 57, "camera": 10, "image": 10, "list": 3, "add": 5, "store query": 11, "store list": 2, "store add": 2}
FOLDER_KINDS = ("query", "camera", "image", "list", "add", "remove")
LEFT_IN = 0.05  # share of added photos that are not removed
CALIBRATED_EVERY = 120.0  # seconds
OUTAGE_EVERY, OUTAGE_SHARE = 180.0, 0.2  # seconds, and the share of them in which the store is down
LONGEST_REFUSAL = 10.0  # seconds until a request to a store that is down is refused
MOST_RATIO = 2.0
PLACES = 14
# A larger difference is growth. Files of a map vary between two compactions, idle threads with the load before.
MEMORY, DESCRIPTORS, THREADS = 0.10, 40, 40
SLACK_BYTES = 30_000_000  # pages that an allocator keeps
BEGIN, END = "<!-- the soak: written by make soak -->", "<!-- end of the soak -->"


@dataclass(frozen=True)
class Sizes:
    """Resources of a process and its decoders."""

    memory: int
    descriptors: int
    threads: int
    processes: int

    @classmethod
    def of(cls, pid: int) -> Sizes:
        children: list[str] = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                children += (task / "children").read_text().split()
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        memory = 1024 * int(status["VmRSS"].split()[0])
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(memory, descriptors, int(status["Threads"]), 1 + len(children))

    @classmethod
    def settled(cls, pid: int, most: float = math.inf) -> Sizes:
        """Measure a process when its clients have left: when the connections of the last seconds are closed.

        More than `most` descriptors may be connections that a busy machine has not closed yet.
        """
        counts: list[int] = []

        def is_settled() -> bool:
            time.sleep(0.1)
            counts.append(len(os.listdir(f"/proc/{pid}/fd")))
            steady = 10 if counts[-1] <= most else 100
            return len(counts) > steady and len(set(counts[-steady:])) == 1

        wait_until(is_settled)
        return cls.of(pid)

    def describe_growth(self, before: Sizes) -> list[str]:
        """Return a sentence for each resource that grew."""
        grown = []
        if self.memory > before.memory * (1 + MEMORY) + SLACK_BYTES:
            grown.append(f"memory grew from {before.memory / 1e6:.0f} to {self.memory / 1e6:.0f} MB")
        if self.descriptors > before.descriptors + DESCRIPTORS:
            grown.append(f"descriptors grew from {before.descriptors} to {self.descriptors}")
        if self.threads > before.threads + THREADS:
            grown.append(f"threads grew from {before.threads} to {self.threads}")
        if self.processes > before.processes:
            grown.append(f"processes grew from {before.processes} to {self.processes}")
        return grown


class Timing(NamedTuple):
    """A request of an honest client."""

    phase: str
    kind: str
    start: float
    seconds: float
    refused: bool  # 503 of a map whose store is down


@dataclass
class Soak:
    """Measurements of a soak."""

    timings: list[Timing] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of any client; must be empty
    outages: list[tuple[float, float]] = field(default_factory=list)
    attacks: Counter[str] = field(default_factory=Counter)  # answers to attackers, such as "flood 503"
    edits: dict[str, Edits] = field(default_factory=dict)  # by map
    lost: list[str] = field(default_factory=list)
    sizes: dict[str, Sizes] = field(default_factory=dict)  # after each phase

    @property
    def growth(self) -> list[str]:
        return self.sizes["loaded"].describe_growth(self.sizes["begin"])

    @property
    def groups(self) -> dict[str, list[str]]:
        """Kinds of requests whose latency must not double."""
        every = sorted({timing.kind for timing in self.timings})
        return {"all requests": every, "requests to the folder": [kind for kind in every if kind in FOLDER_KINDS]}

    def measure(self, kinds: Sequence[str]) -> list[list[float]]:
        """Return p50, p95 and p99 of answered requests in milliseconds, quiet and loaded."""
        answered = [timing for timing in self.timings if timing.kind in kinds and not timing.refused]
        phases = [
            [one.seconds for one in answered if one.phase in phase] for phase in (("quiet",), ("begin", "loaded"))
        ]
        return [[1000 * float(p) for p in np.percentile(one or [math.nan], [50, 95, 99])] for one in phases]

    def describe_delays(self) -> list[str]:
        """Return a sentence for each latency that doubled, and for each slow refusal."""
        return [
            f"{name} of {what} grew from {quiet[at]:.1f} to {loaded[at]:.1f} ms"
            for what, kinds in self.groups.items()
            for quiet, loaded in [self.measure(kinds)]
            for at, name in enumerate(("median", "p95"))
            if not loaded[at] < MOST_RATIO * quiet[at]
        ] + [f"a store that was down was reported after {s:.0f} s" for s in self.refusals if s > LONGEST_REFUSAL]

    @property
    def refusals(self) -> list[float]:
        """Seconds until each request to a store that was down was refused."""
        return [timing.seconds for timing in self.timings if timing.refused]

    def format_markdown(self) -> str:
        """Return the figures as tables for the documentation."""
        lines = ["| request | count | quiet (ms) | loaded (ms) | ratio |", "|---|--:|--:|--:|--:|"]
        kinds = sorted({timing.kind for timing in self.timings})
        groups = {f"**{what}**": some for what, some in self.groups.items()}
        for name, some in {**groups, **{kind: [kind] for kind in kinds}}.items():
            quiet, loaded = self.measure(some)
            count = sum(timing.kind in some for timing in self.timings)
            cells = [", ".join(f"{value:.1f}" for value in one) for one in (quiet, loaded)]
            cells.append(", ".join(f"{b / a:.2f}" for a, b in zip(quiet, loaded, strict=True)))
            lines.append(f"| {name} | {count:,} | {' | '.join(cells)} |")
        before, after = self.sizes["begin"], self.sizes["loaded"]
        counted = {
            f"requests of {CLIENTS} honest clients": f"{len(self.timings):,}",
            "failed requests of honest clients": f"{len(self.errors):,}",
            "photos added": f"{sum(len(one.added) for one in self.edits.values()):,}",
            "edits lost": f"{len(self.lost):,}",
            "outages of the store": f"{len(self.outages):,}",
            "requests to the store refused meanwhile": f"{len(self.refusals):,}",
            "longest wait for such a refusal": f"{max(self.refusals, default=0):.2f} s",
            **{f"answers to {name}": f"{count:,}" for name, count in sorted(self.attacks.items())},
            "memory after 50 % and 100 %": f"{before.memory / 1e6:.0f}, {after.memory / 1e6:.0f} MB",
        }
        for name in ("descriptors", "threads", "processes"):
            counted[f"{name} after 50 % and 100 %"] = f"{getattr(before, name)}, {getattr(after, name)}"
        lines += ["", "| counted | |", "|---|--:|", *(f"| {name} | {count} |" for name, count in counted.items())]
        return "\n".join(lines) + "\n"


# --- honest clients --------------------------------------------------------------------------------------------------


class HonestClients:
    """Clients that send one request every `PERIOD` seconds each, however long the answers take."""

    def __init__(self, url: str, keys: Sequence[str], has_store: bool, result: Soak) -> None:
        self._url, self._keys, self._result, self._lock = url, keys, result, threading.Lock()
        self._mix = {kind: share for kind, share in MIX.items() if has_store or not kind.startswith("store")}
        result.edits |= {name: Edits() for name in ("town", "depot")[: 1 + has_store]}

    def run(self, phase: str, over: threading.Event) -> list[threading.Thread]:
        """Start a phase, which lasts until `over` is set."""
        arguments = [(phase, number, over) for number in range(CLIENTS)]
        works = [threading.Thread(target=self._work, args=one, daemon=True) for one in arguments]
        works.append(threading.Thread(target=self._calibrate, args=(phase, over), daemon=True))
        for thread in works:
            thread.start()
        return works

    def _work(self, phase: str, number: int, over: threading.Event) -> None:
        choose, key = random.Random(f"{phase} {number}"), self._keys[number % KEYS]
        kinds, shares = list(self._mix), list(self._mix.values())
        start, turn = time.monotonic(), 0
        with (
            Client(self._url, key, map="town", retries=0) as town,
            Client(self._url, key, map="depot", retries=0) as depot,
        ):
            while True:
                due = start + PERIOD * (turn + choose.random())
                if over.wait(max(due - time.monotonic(), 0)):
                    break
                (kind,) = choose.choices(kinds, shares)
                place = choose.randrange(PLACES)
                try:
                    self._send(phase, kind, depot if kind.startswith("store") else town, place, due, choose)
                except Exception as error:  # a thread that ends would send less load
                    self._note(f"{kind}: {error!r}")
                turn += 1

    def _send(self, phase: str, kind: str, client: Client, place: int, due: float, choose: random.Random) -> None:
        def timed(call: Callable[[], Any], name: str = kind, since: float | None = None) -> Any:
            return self._timed(phase, name, call, time.monotonic() if since is None else since)

        match kind.removeprefix("store "):
            case "query" | "camera":
                names = {"camera": f"cam{choose.randrange(2)}"} if kind == "camera" else {}
                answer = timed(lambda: client.query(picture(place), k=1, **names), since=due)
                if kind != "camera" and answer is not None and answer[0].id != place:
                    self._note(f"{kind}: place {place} was answered with {answer[0].id}")
            case "image":
                timed(lambda: client.image(place), since=due)
            case "list":
                timed(lambda: client._call("GET", "/v1/images", {"limit": PLACES}), since=due)
            case _:
                report = timed(lambda: client.add([saved("PNG", choose.randrange(2**62))]), since=due)
                if report is None:
                    return
                edits = self._result.edits[str(client.map)]
                edits.added.update(report.added)
                if choose.random() >= LEFT_IN:
                    edits.removal_requested.update(report.added)
                    name = kind.replace("add", "remove")
                    if timed(lambda: client.remove(report.added), name) is not None:
                        edits.removed.update(report.added)

    def _timed(self, phase: str, kind: str, call: Callable[[], Any], since: float) -> Any:
        """Call, and note the latency; return None if a store is down."""
        answer, refused = None, False
        try:
            answer = call()
        except ServiceError as error:
            refused = error.status == 503 and kind.startswith("store") and "PostgreSQL" in str(error)
            if not refused:
                self._note(f"{kind}: {error} ({error.status})")
        with self._lock:
            self._result.timings.append(Timing(phase, kind, since, time.monotonic() - since, refused))
        return answer

    def _calibrate(self, phase: str, over: threading.Event) -> None:
        with Client(self._url, self._keys[0], map="town", retries=0) as client:
            while not over.wait(CALIBRATED_EVERY):
                photos = [picture(place, 0.8) for place in range(PLACES)]
                self._timed(phase, "calibrate", lambda all=photos: client.calibrate(all, "night"), time.monotonic())

    def _note(self, error: str) -> None:
        with self._lock:
            self._result.errors.append(error)

    def check_refusals(self) -> None:
        """Note every refusal of the store's map while the store was up."""
        for one in (timing for timing in self._result.timings if timing.refused):
            if not any(down < one.start + one.seconds and one.start < up for down, up in self._result.outages):
                self._note(f"{one.kind}: refused although the store was up")


# --- the soak --------------------------------------------------------------------------------------------------------


def run_soak(folder: Path, seconds: float, postgres: PostgresServer | None = None, decode_seconds: float = 5.0) -> Soak:
    """Serve a map in a folder, and one in PostgreSQL if there is a server, and hold the load."""
    for place in range(PLACES):
        photo(folder / "photos" / f"{place:02d}.png", place)
    town = PlaceMap.build(folder / "photos", head="second-order", encoder=FakeEncoder(), spec=SPEC)
    town.save(folder / "town.tfa")
    locations = [str(folder / "town.tfa")]
    if postgres is not None:
        locations.append(f"{postgres.url}/depot")
        town.publish(locations[1], dims=64).close()
    names = [*(f"robot{number}" for number in range(KEYS)), "flood", "hostile"]
    keys = {name: secrets.token_urlsafe() for name in names}
    lines = [f"{name} {'read' if name == 'flood' else 'edit'} {key}\n" for name, key in keys.items()]
    (folder / "keys").write_text("".join(lines))
    command = [sys.executable, "-m", "tests.faults.service.soak", "--serve", *locations]
    command += ["--keys", str(folder / "keys"), "--decode-seconds", str(decode_seconds)]
    result = Soak()
    with Child(folder / "town.tfa", lambda _: command, folder / "log") as child:
        assert child._process is not None
        honest = HonestClients(child.url, list(keys.values()), postgres is not None, result)
        for phase, (share, attacked) in PHASES.items():
            over = threading.Event()
            with attackers(child.url, keys, result.attacks) if attacked else contextlib.nullcontext():
                threads, start = honest.run(phase, over), time.monotonic()
                if attacked and postgres is not None:
                    break_store(postgres, share * seconds, result)
                time.sleep(max(start + share * seconds - time.monotonic(), 0))
                over.set()
                for thread in threads:
                    thread.join(PATIENCE)
            before = result.sizes.get("begin")
            most = math.inf if before is None else before.descriptors + DESCRIPTORS
            result.sizes[phase] = Sizes.settled(child._process.pid, most)
        honest.check_refusals()
        for name, edits in result.edits.items():
            with Client(child.url, keys["robot0"], map=name) as client:
                result.lost += [f"{name}: {one}" for one in _lost(client, edits)]
    failed = [name for name in result.attacks if "failed" in name]
    result.errors += [f"{name}, {result.attacks.pop(name)} times" for name in failed]
    return result


def break_store(server: PostgresServer, seconds: float, result: Soak) -> None:
    """Kill the store every few minutes, and start it when clients have noticed and the outage is over."""
    outages = math.ceil(seconds / OUTAGE_EVERY)
    each = seconds / outages
    for _ in range(outages):
        time.sleep(each * (1 - OUTAGE_SHARE) / 2)
        before, down = len(result.refusals), time.monotonic()
        server.kill()
        time.sleep(each * OUTAGE_SHARE)
        wait_until(lambda before=before: len(result.refusals) > before)
        server.start()
        result.outages.append((down, time.monotonic()))
        time.sleep(each * (1 - OUTAGE_SHARE) / 2)


def serve(locations: Sequence[str], keys: Path, decode_seconds: float) -> None:
    """Serve maps with the fake encoder."""
    from tfa.service.app import create_app
    from tfa.service.server import address_of, bind_socket, run_server
    from tfa.service.settings import ServiceSettings, read_api_keys

    settings = ServiceSettings(port=0, api_keys=read_api_keys(keys), decode_seconds=decode_seconds)
    with bind_socket(settings) as listening:
        maps = [PlaceMap.load(MapLocation(one), encoder=FakeEncoder()) for one in locations]
        app = create_app(maps, settings)
        print(f"serving at {address_of(listening)}", flush=True)
        run_server(app, listening)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.service.soak", description="Hold a service under load."
    )
    parser.add_argument("--docs", type=Path, help="page whose table is replaced")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--decode-seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.keys, options.decode_seconds)
        return 0
    seconds, postgres = float(os.environ.get("TFA_SOAK_SECONDS", HOUR)), PostgresServer()
    with tempfile.TemporaryDirectory(prefix="tfa-soak-") as name, contextlib.ExitStack() as stack:
        stack.callback(postgres.remove)
        os.environ["TFA_CACHE"] = str(Path(name) / "cache")
        result = run_soak(Path(name), seconds, postgres.start())
        sys.stderr.write((Path(name) / "log").read_text("utf-8")[-20_000:])
    table = f"{seconds / 60:g} minutes on {os.cpu_count()} cores; p50, p95 and p99:\n\n{result.format_markdown()}"
    print(table)
    problems = [*result.errors, *result.lost, *result.growth, *result.describe_delays()]
    print("\n".join(problems[:20]) or "no errors, nothing lost, nothing grew, latency held")
    if options.docs is not None:
        page = options.docs.read_text("utf-8")
        options.docs.write_text(placed(page, table, BEGIN, END), "utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

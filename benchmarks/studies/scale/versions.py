"""Switch versions of a map, kill its servers and replicate it while it answers."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from studies.scale.local_servers import AnyServer, FolderEngine
from studies.scale.rows import DIMS, IMAGES, SavedRows, SmallTown, row_for_each, until_answered
from studies.serve import ENCODER, Child, serve_command
from tfa.client import Client, ServiceError
from tfa.core.progress import Progress, as_progress
from tfa.core.tokens import Tokens
from tfa.encoders import load_encoder
from tfa.errors import StoreUnavailable, TfaError
from tfa.maps import PlaceMap
from tfa.maps.store import StoreStorage

_SWITCHES = "switches"
ENGINES = ("postgres", "lance", "milvus")
ASKERS = 2
_PUBLISHED_EVERY = 3  # every third switch publishes; the others roll the last one back
_WATCHED = 1.6  # seconds between two switches
_LATE = 1.0  # seconds after which no old answer may start
K = 10
NAMES = ("first", "second")


@dataclass(frozen=True)
class Seen:
    """One answer."""

    began: float  # time.time()
    ended: float
    names: tuple[str, ...]  # maps that its images belong to
    error: str = ""


@dataclass(frozen=True)
class Switched:
    began: float
    ended: float
    name: str  # map that answers from then on


def run_switches(
    engines: Sequence[str],
    saved: SavedRows,
    progress: Progress | bool | None,
    *,
    switches: int = 30,
    watched: float = _WATCHED,
) -> Iterator[dict[str, Any]]:
    """Yield a row per store."""

    def measure(town: SmallTown, server: AnyServer) -> dict[str, Any]:
        return _switched(town, f"{server.start().url}/town", switches, watched, progress)

    return row_for_each(_SWITCHES, engines, saved, measure)


def _switched(
    town: SmallTown, url: str, switches: int, watched: float, progress: Progress | bool | None
) -> dict[str, Any]:
    maps = [town.map(name, first) for name, first in zip(NAMES, (0, 30), strict=True)]
    tokens = town.tokens(town.photo("asked", 40, 0.8))  # a place in both maps
    for one in maps:
        opened = one.publish(url, dims=DIMS)
    context = multiprocessing.get_context("spawn")
    stop, ready = context.Event(), context.Semaphore(0)
    results = context.Queue()
    askers = [
        context.Process(target=_ask, args=(url, tokens, stop, ready, results), daemon=True) for _ in range(ASKERS)
    ]
    for asker in askers:
        asker.start()
    for _ in askers:
        ready.acquire(timeout=120)
    done: list[Switched] = []
    with as_progress(progress).task("switching", switches, "switches") as task:
        for number in range(switches):
            began, shown = time.time(), number % 2  # the second one answers first
            if number % _PUBLISHED_EVERY:
                assert isinstance(opened.storage, StoreStorage)
                opened.storage.rollback()
            else:
                maps[shown].publish(url, dims=DIMS)
            done.append(Switched(began, time.time(), NAMES[shown]))
            time.sleep(watched)
            task.advance()
    stop.set()
    seen = [one for _ in askers for one in results.get(timeout=60)]
    for asker in askers:
        asker.join()
    return judged(seen, done)


def _ask(url: str, tokens: Tokens, stop: Any, ready: Any, results: Any) -> None:
    """Query in a separate process until the stop event is set."""
    opened, seen = PlaceMap.load(url), []
    opened.query_tokens(tokens, K)
    ready.release()
    while not stop.is_set():
        began = time.time()
        try:
            [hits] = opened.query_tokens(tokens, K)
            names = tuple(sorted({Path(hit.image).parent.name for hit in hits}))
            seen.append(Seen(began, time.time(), names))
        except Exception as error:  # any error means that a query was not answered
            seen.append(Seen(began, time.time(), (), f"{type(error).__name__}: {error}"))
    results.put(seen)


def judged(seen: Sequence[Seen], switched: Sequence[Switched]) -> dict[str, Any]:
    """Return errors and how long the old map was still visible."""
    late, longest = 0, 0.0
    ends = [*(one.began for one in switched[1:]), float("inf")]
    for one, end in zip(switched, ends, strict=True):
        between = [s for s in seen if one.ended < s.began and s.ended < end and s.names]
        old = [s.began - one.ended for s in between if one.name not in s.names]
        late += sum(delay > _LATE for delay in old)
        longest = max([longest, *old])
    answers = [one for one in seen if not one.error]
    errors = [one.error for one in seen if one.error]
    return {
        "switches": len(switched),
        "publications": -(-len(switched) // _PUBLISHED_EVERY),
        "switch_seconds": float(np.median([one.ended - one.began for one in switched])),
        "queries": len(seen),
        "p50_ms": 1000 * float(np.median([one.ended - one.began for one in answers])),
        "errors": len(errors),
        "error": errors[0] if errors else None,
        "mixed": sum(len(one.names) > 1 for one in answers),
        "late": late,
        "old_seconds": longest,
    }


_KILLED = "killed"
_ADDED = 20  # acknowledged additions before the kill
_KILL_PATIENCE = 120.0  # seconds


def run_killed(engines: Sequence[str], saved: SavedRows, *, added: int = _ADDED) -> Iterator[dict[str, Any]]:
    """Yield a row per store."""
    return row_for_each(_KILLED, engines, saved, lambda town, server: _killed(town, server, added))


def _killed(town: SmallTown, server: AnyServer, added: int) -> dict[str, Any]:
    url = f"{server.start().url}/town"
    store_map = town.map("first").publish(url, dims=DIMS)
    tokens = town.tokens(town.photo("asked", 10, 0.8))
    [before] = store_map.query_tokens(tokens, 1)
    for seed in range(1000, 1000 + 10 * added):
        town.photo("new", seed)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_add, args=(theirs, url, town.folder, 10 * added))
    writer.start()
    theirs.close()
    acknowledged = [ours.recv() for _ in range(added)]
    killed = "writer" if isinstance(server, FolderEngine) else "server"
    at = time.monotonic()
    if killed == "writer":
        writer.kill()
    else:
        server.kill()
    try:
        while ours.poll(_KILL_PATIENCE if killed == "writer" else 0.5):  # sent before the kill
            acknowledged.append(ours.recv())
    except (EOFError, OSError):
        pass
    says = None if killed == "writer" else _error_of(store_map, tokens)
    restart = time.monotonic()
    if killed == "server":
        server.start()
    until_answered(lambda: store_map.query_tokens(tokens, 1), StoreUnavailable, _KILL_PATIENCE)
    back = time.monotonic() - restart
    writer.kill()
    writer.join()
    ours.close()
    there = {record.id for record in store_map.records()}
    [after] = store_map.query_tokens(tokens, 1)
    return {
        "killed": killed,
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - there),
        "images": len(there),
        "expected": IMAGES + len(acknowledged),
        "says": says,
        "away_seconds": restart - at,
        "back_seconds": back,
        "same_answer": before[0].id == after[0].id,
    }


def _add(pipe: Connection, url: str, folder: Path, count: int) -> None:
    """Add photos one by one in a separate process and report acknowledged ones."""
    town = SmallTown(folder)
    opened = PlaceMap.load(url, encoder=load_encoder(ENCODER, weights=town.weights, precision="int8"))
    for seed in range(1000, 1000 + count):
        try:
            report = opened.add([town.photo("new", seed)])
        except TfaError:
            return
        for own in report.added:
            pipe.send(own)


def _error_of(store_map: PlaceMap, tokens: Tokens) -> str | None:
    """Return the error of a query while the server is down."""
    time.sleep(1.0)  # longer than a header is cached
    try:
        store_map.query_tokens(tokens, 1)
    except StoreUnavailable as error:
        return str(error)
    return None


_REPLICAS = "replicas"
EDITS = 20
_REPLICA_PATIENCE = 60.0  # seconds


def run_replicas(engines: Sequence[str], saved: SavedRows, *, edits: int = EDITS) -> Iterator[dict[str, Any]]:
    """Yield a row per store."""
    return row_for_each(_REPLICAS, engines, saved, lambda town, server: _measured(town, server, edits))


def _measured(town: SmallTown, server: AnyServer, edits: int) -> dict[str, Any]:
    url = f"{server.start().url}/town"
    town.map("first").publish(url, dims=DIMS)

    def command(_: Path) -> list[str]:
        return [word if word != "." else url for word in serve_command(Path())]

    logs = [town.folder / f"log{number}.txt" for number in range(2)]
    with Child(Path(), command, logs[0]) as one, Child(Path(), command, logs[1]) as other:
        clients = [Client(child.url) for child in (one, other)]
        acknowledged, seen = _edited(clients, town, edits)
        away: dict[str, Any] = {}
        if not isinstance(server, FolderEngine):
            away = _away(clients, town, server)
    return {
        "edits": edits,
        "edit_p50_ms": 1000 * float(np.median(acknowledged)),
        "seen_p50_ms": 1000 * float(np.median(seen)),
        "seen_max_ms": 1000 * max(seen),
        **away,
    }


def _edited(clients: Sequence[Client], town: SmallTown, edits: int) -> tuple[list[float], list[float]]:
    """Return seconds of an addition through one replica, and until the other returns the new image."""
    acknowledged, seen = [], []
    for number in range(edits):
        photo = town.photo("new", 2000 + number)
        through, other = clients[number % 2], clients[1 - number % 2]
        started = time.perf_counter()
        [own] = through.add([photo]).added
        said = time.perf_counter()
        while other.query(photo, 1)[0].id != own:
            if time.perf_counter() - said > _REPLICA_PATIENCE:
                raise ServiceError(f"image {own} is not seen in the other replica after {_REPLICA_PATIENCE:.0f} s")
        acknowledged.append(said - started)
        seen.append(time.perf_counter() - said)
    return acknowledged, seen


def _away(clients: Sequence[Client], town: SmallTown, server: AnyServer) -> dict[str, Any]:
    """Kill and restart the server; the replicas keep running."""
    photo = town.photo("asked", 10, 0.8)
    before = [client.query(photo, 1)[0].id for client in clients]
    server.kill()
    time.sleep(1.0)
    refused = [_refusal(client, photo) for client in clients]
    started = time.perf_counter()
    server.start()
    back = [until_answered(lambda: client.query(photo, 1)[0].id, ServiceError, _REPLICA_PATIENCE) for client in clients]  # noqa: B023
    return {
        "away_status": [status for status, _ in refused],
        "away_says": refused[0][1],
        "back_seconds": time.perf_counter() - started,
        "same_answers": back == before,
    }


def _refusal(client: Client, photo: Path) -> tuple[int | None, str]:
    try:
        client.query(photo, 1)
    except ServiceError as error:
        return error.status, str(error)
    return 200, "it answered"

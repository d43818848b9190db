"""The part `replicas`: two `tfa serve` over one store. How soon an edit through one is seen in the other, and what both
say while the engine is away."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.load_test.child import Child, serve_command
from tfa.bench.scale.each_engine import row_for_each, until_answered
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.scale.local_servers import AnyServer, FolderEngine
from tfa.bench.scale.small_town import DIMS, SmallTown
from tfa.client import Client, ServiceError

PART = "replicas"
EDITS = 20
PATIENCE = 60.0  # seconds


def run_replicas(engines: Sequence[str], kept: KeptRows, *, edits: int = EDITS) -> Iterator[dict[str, Any]]:
    """A row for each engine."""
    return row_for_each(PART, engines, kept, lambda town, server: _measured(town, server, edits))


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
    """Seconds of an addition through one replica, and after it until the other answers with the new image."""
    acknowledged, seen = [], []
    for number in range(edits):
        photo = town.photo("new", 2000 + number)
        through, other = clients[number % 2], clients[1 - number % 2]
        started = time.perf_counter()
        [own] = through.add([photo]).added
        said = time.perf_counter()
        while other.query(photo, 1)[0].id != own:
            if time.perf_counter() - said > PATIENCE:
                raise ServiceError(f"image {own} is not seen in the other replica after {PATIENCE:.0f} s")
        acknowledged.append(said - started)
        seen.append(time.perf_counter() - said)
    return acknowledged, seen


def _away(clients: Sequence[Client], town: SmallTown, server: AnyServer) -> dict[str, Any]:
    """The server is killed and comes back; the replicas are not started again."""
    photo = town.photo("asked", 10, 0.8)
    before = [client.query(photo, 1)[0].id for client in clients]
    server.kill()
    time.sleep(1.0)
    refused = [_refusal(client, photo) for client in clients]
    started = time.perf_counter()
    server.start()
    back = [until_answered(lambda: client.query(photo, 1)[0].id, ServiceError, PATIENCE) for client in clients]  # noqa: B023
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

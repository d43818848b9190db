"""The part `killed`: a server is killed (-9) while images are added; what was acknowledged must be there again.

Of an engine without a server it is the process that writes. The map that asks is not opened again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfa.bench.load_test.run import ENCODER
from tfa.bench.scale.each_engine import row_for_each, until_answered
from tfa.bench.scale.kept_rows import KeptRows
from tfa.bench.scale.local_servers import AnyServer, FolderEngine
from tfa.bench.scale.small_town import DIMS, IMAGES, SmallTown
from tfa.core.tokens import Tokens
from tfa.encoders import load_encoder
from tfa.errors import StoreUnavailable, TfaError
from tfa.maps import PlaceMap

PART = "killed"
ADDED = 20  # acknowledged additions before the kill
PATIENCE = 120.0  # seconds


def run_killed(engines: Sequence[str], kept: KeptRows, *, added: int = ADDED) -> Iterator[dict[str, Any]]:
    """A row for each engine."""
    return row_for_each(PART, engines, kept, lambda town, server: _killed(town, server, added))


def _killed(town: SmallTown, server: AnyServer, added: int) -> dict[str, Any]:
    url = f"{server.start().url}/town"
    asked = town.map("first").publish(url, dims=DIMS)
    tokens = town.tokens(town.photo("asked", 10, 0.8))
    [before] = asked.query_tokens(tokens, 1)
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
        while ours.poll(PATIENCE if killed == "writer" else 0.5):  # said before the kill
            acknowledged.append(ours.recv())
    except (EOFError, OSError):
        pass
    says = None if killed == "writer" else _error_of(asked, tokens)
    restart = time.monotonic()
    if killed == "server":
        server.start()
    until_answered(lambda: asked.query_tokens(tokens, 1), StoreUnavailable, PATIENCE)
    back = time.monotonic() - restart
    writer.kill()
    writer.join()
    ours.close()
    there = {record.id for record in asked.records()}
    [after] = asked.query_tokens(tokens, 1)
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
    """A process that adds photos one by one and says which were acknowledged."""
    town = SmallTown(folder)
    opened = PlaceMap.load(url, encoder=load_encoder(ENCODER, weights=town.weights))
    for seed in range(1000, 1000 + count):
        try:
            report = opened.add([town.photo("new", seed)])
        except TfaError:
            return
        for own in report.added:
            pipe.send(own)


def _error_of(asked: PlaceMap, tokens: Tokens) -> str | None:
    """What a question is answered while the server is away."""
    time.sleep(1.0)  # longer than a header is believed
    try:
        asked.query_tokens(tokens, 1)
    except StoreUnavailable as error:
        return str(error)
    return None

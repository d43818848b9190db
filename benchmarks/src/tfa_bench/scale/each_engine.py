"""What parts that try engines with a small town have in common: a row for each engine, and waiting for an answer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfa_bench.scale.kept_rows import KeptRows
from tfa_bench.scale.local_servers import AnyServer, new_server
from tfa_bench.scale.small_town import SmallTown

PAUSE = 0.05  # seconds before a question is asked again
T = TypeVar("T")


def row_for_each(
    part: str, engines: Sequence[str], kept: KeptRows, measure: Callable[[SmallTown, AnyServer], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """`measure` with a new town and a new server of each engine that has no row yet."""
    for engine in engines:
        if kept.has(part, engine):
            continue
        server = new_server(engine)
        try:
            with tempfile.TemporaryDirectory(prefix=f"tfa-{part}-") as folder:
                facts = measure(SmallTown(Path(folder)), server)
        finally:
            server.remove()
        yield kept.keep(part, engine, {"engine": engine, **facts})


def until_answered(ask: Callable[[], T], refusal: type[Exception], patience: float) -> T:
    """The first answer that is no `refusal`; after so many seconds the refusal is an error."""
    last = time.monotonic() + patience
    while True:
        try:
            return ask()
        except refusal:
            if time.monotonic() > last:
                raise
            time.sleep(PAUSE)

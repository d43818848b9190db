"""Room of the token cache: files that were used last stay, and all together stay below a limit.

The time of a file is that of its last use, to an hour. What was used within the last hour is deleted by nothing but a
user's own word: a run that needs more than the limit ends well, and a later one makes room.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tfa.errors import BadSpec

HOUR, DAY = 3_600, 86_400  # seconds
CACHE_LIMIT_VARIABLE = "TFA_CACHE_LIMIT"  # the environment variable
DEFAULT_GIGABYTES = 20.0  # about 50,000 photos of the default encoder


@dataclass(frozen=True)
class Pruned:
    """What was deleted."""

    files: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_cache_limit() -> int | None:
    """Bytes that the cache may hold: `$TFA_CACHE_LIMIT` gigabytes, or as many as fit (`none`)."""
    given = os.environ.get(CACHE_LIMIT_VARIABLE, "").strip().lower()
    if given == "none":
        return None
    try:
        gigabytes = float(given) if given else DEFAULT_GIGABYTES
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise BadSpec(
            f"{CACHE_LIMIT_VARIABLE}={os.environ[CACHE_LIMIT_VARIABLE]!r} is not allowed; give a number of gigabytes, "
            "or none"
        )
    return round(gigabytes * 1e9)


def list_shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def mark_used(files: Iterable[Path]) -> None:
    """Remember that these files were used now."""
    for file in files:
        with contextlib.suppress(OSError):  # a cache that may only be read keeps no times
            if time.time() - file.stat().st_mtime > HOUR:
                os.utime(file)


def make_room(
    folder: Path,
    *,
    unused_seconds: float | None = None,
    max_bytes: int | None = None,
    spared: float = 0.0,
    besides: Iterable[Path] = (),
) -> Pruned:
    """Delete files of the folder, and besides, unused for longer; then those used longest ago until `max_bytes` are
    left, but for the last `spared` seconds' own."""
    status = {}
    for file in chain((file for shelf in folder.glob("*") for file in list_shards(shelf)), besides):
        with contextlib.suppress(OSError):  # another process makes room, too
            status[file] = file.stat()
    left, now = sum(one.st_size for one in status.values()), time.time()
    files = size = 0
    for file, one in sorted(status.items(), key=lambda item: item[1].st_mtime):
        unused = now - one.st_mtime
        old = unused_seconds is not None and unused > unused_seconds
        if old or (max_bytes is not None and left > max_bytes and unused >= spared):
            file.unlink(missing_ok=True)
            left, size, files = left - one.st_size, size + one.st_size, files + 1
    return Pruned(files, size)

"""Readers that fail in every way a reader can, to see that the campaign notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.faults.files.targets import Target
from tfa.errors import TfaError

MEMORY = 1 << 27


def _raise() -> None:
    raise KeyError("raw")


def _mumble() -> None:
    raise TfaError("")


def _take() -> None:
    held = bytearray(3 * MEMORY // 2)
    held[:: 1 << 12] = bytes(len(held) >> 12)  # every page is touched


WAYS: dict[str, Callable[[], object]] = {
    "raises": _raise,
    "crashes": os.abort,
    "hangs": signal.pause,
    "fills": lambda: bytearray(1 << 40),
    "takes": _take,
    "mumbles": _mumble,
}


def make(name: str, folder: Path) -> Target:
    (folder / "file").write_bytes(b"content")

    def read(folder: Path, victim: str, changed: bool) -> None:
        if (folder / "started").exists():  # not when the undamaged file is tried
            WAYS[name]()
        (folder / "started").touch()

    return Target(name, {"file": b"content"}, read, memory=MEMORY)

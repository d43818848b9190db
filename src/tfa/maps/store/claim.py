"""The claim: who builds or calibrates a map of a store now. Another builder is refused; a claim whose owner was killed
is abandoned after a minute, and what it left half built is dropped by the next one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tfa.base.reading import parse_json
from tfa.errors import StoreConflict, TfaError
from tfa.maps.store.documents import claim_key
from tfa.search.store import Store

HEARTBEAT = 10.0  # seconds between signs of life
ABANDONED = 60.0  # seconds without one
PATIENCE = (0.1, 0.4)  # seconds before another look at a claim that was not what it seemed
FREE = b"{}"  # what the document says when nobody builds
_HELD: set[str] = set()  # tokens of the claims that this process holds


def whoami() -> str:
    """This process, as others are told of it."""
    return f"process {os.getpid()} of {socket.gethostname()}"


def this_machine() -> str:
    """A boot of a kernel, and the set of processes of it that this one sees (a container has its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not on Linux
        return ""


@dataclass(frozen=True)
class Builder:
    """What the document says."""

    who: str
    doing: str
    started: float
    seen: float
    token: str
    machine: str = ""  # where process numbers mean the same; empty where that is not known
    process: int = 0

    @property
    def alive(self) -> bool:
        return time.time() - self.seen < ABANDONED and not self._ended_here()

    def _ended_here(self) -> bool:
        """Was it a process of this machine, and is no more, or this one, and could not say that it was done because
        the store was away? Then nobody need wait."""
        if not self.machine or self.machine != this_machine():
            return False
        if self.process == os.getpid():
            return self.token not in _HELD
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # somebody else's
        return False

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self), sort_keys=True).encode()


class Claim:
    """Held by this process while it publishes a version."""

    def __init__(self, store: Store, name: str, builder: Builder) -> None:
        self._store, self._name, self._key, self._builder = store, name, claim_key(name), builder
        self._lock, self._stop, self._lost = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._beat, name="tfa-claim", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            with contextlib.suppress(TfaError):  # a store that is away for a moment: the next beat may reach it
                self.renew()

    def renew(self) -> None:
        """Another sign of life."""
        with self._lock:
            fresh = replace(self._builder, seen=time.time())
            if self._store.swap(self._key, self._builder.to_bytes(), fresh.to_bytes()):
                self._builder = fresh
            else:
                self._lost = True

    def check(self) -> None:
        """Raise if somebody else took the claim because no sign of life came through."""
        if self._lost:
            raise StoreConflict("another builder has taken over: this one was silent for a minute; build again")

    def other(self) -> Builder | None:
        """Who has the map instead by now, and lives."""
        now = builder_of(self._store, self._name)
        return None if now is None or now.token == self._builder.token else now

    def release(self) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(TfaError):  # it will be abandoned
            self._store.swap(self._key, self._builder.to_bytes(), FREE)


def builder_of(store: Store, name: str) -> Builder | None:
    """Who builds now; None if nobody does, or nobody who lives."""
    known = _read(store.read_latest(claim_key(name)))
    return known if known is not None and known.alive else None


def _read(content: bytes | None) -> Builder | None:
    try:
        values = parse_json(content or FREE)
        return Builder(**values) if values else None
    except (ValueError, TypeError):
        return None  # nobody we know


@contextlib.contextmanager
def claimed(store: Store, name: str, doing: str, url: str) -> Iterator[Claim]:
    """Hold the map of that name for one build or calibration."""
    now = time.time()
    builder = Builder(whoami(), doing, now, now, secrets.token_hex(8), this_machine(), os.getpid())
    _HELD.add(builder.token)  # before another thread can read the claim, and take it for one that was left behind
    try:
        _take(store, name, builder, url)
        claim = Claim(store, name, builder)
        try:
            yield claim
        finally:
            claim.release()
    finally:
        _HELD.discard(builder.token)


def _take(store: Store, name: str, builder: Builder, url: str) -> None:
    for wait in (*PATIENCE, None):
        old = store.read_latest(claim_key(name))
        other = _read(old)
        if other is not None and other.alive:
            raise busy(url, other)
        if store.swap(claim_key(name), old, builder.to_bytes()):
            return
        if wait is None:
            raise busy(url, _read(store.read_latest(claim_key(name))))
        time.sleep(wait)  # somebody was faster: look again


def busy(
    url: str, other: Builder | None, unknown: str = "it was claimed by another builder at the same moment"
) -> StoreConflict:
    """`unknown` is what is said if it cannot be read who builds."""
    if other is None:
        return StoreConflict(f"{url} is being built: {unknown}; try again when it is done")
    minutes = max(time.time() - other.started, 0) / 60
    return StoreConflict(
        f"{url} is being {other.doing} by {other.who} since {minutes:.0f} min; try again when it is done "
        f"(a builder that was killed is forgotten after {ABANDONED:.0f} s)"
    )

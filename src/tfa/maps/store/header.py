"""What all who read or edit a map in a store agree on: names of its documents, the header, and the claim.

The header says which version answers. It is a small document and is only ever replaced by `swap`: of several editors
one is first, the others look again.

The claim says who builds or calibrates the map now. Another builder is refused; a claim whose owner was killed is
abandoned after a minute, and what it left half built is dropped by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tfa.core.files import parse_json
from tfa.core.plain import Value, opt, req
from tfa.errors import BadMap, StoreConflict, TfaError
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Store

# --- documents -----------------------------------------------------------------------------------------------------


def header_key(name: str) -> str:
    return f"{name}/header"


def claim_key(name: str) -> str:
    return f"{name}/claim"


def version_folder(name: str, version: int) -> str:
    """What all documents of a version begin with."""
    return f"{name}/v{version}/"


def collection_name(name: str, version: int) -> str:
    return f"{name}__v{version}"


def list_versions(store: Store, name: str) -> set[int]:
    """Numbers of all versions of which anything is there."""
    ends = [one.removeprefix(f"{name}__v") for one in store.names(f"{name}__v")]
    ends += [key.removeprefix(f"{name}/v").partition("/")[0] for key in store.keys(f"{name}/v")]
    return {int(end) for end in ends if end.isascii() and end.isdecimal()}


def pack_arrays(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Arrays in safetensors."""
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()})


def read_arrays(store: Store, key: str) -> dict[str, np.ndarray]:
    """The arrays of a document that must be there."""
    try:
        return load(read_document(store, key))
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadMap(f"{key} is damaged in the store ({error}); build the map again") from None


def read_document(store: Store, key: str) -> bytes:
    content = store.read(key)
    if content is None:
        raise BadMap(f"{key} is missing in the store: the map is not whole; build it again")
    return content


def pack_reduction(reduction: Reduction) -> bytes:
    mean = np.array([reduction.mean_bias], np.float64)
    return pack_arrays({"matrix": reduction.matrix, "bias_axis": reduction.bias_axis, "mean_bias": mean})


def read_reduction(store: Store, key: str) -> Reduction:
    arrays = read_arrays(store, key)
    return Reduction(arrays["matrix"], arrays["bias_axis"], float(arrays["mean_bias"][0]))


def pack_moments(moments: Moments) -> bytes:
    count = np.array([moments.count], np.int64)
    return pack_arrays({"count": count, "first": moments.first, "second": moments.second})


def read_moments(store: Store, key: str) -> Moments:
    arrays = read_arrays(store, key)
    return Moments(int(arrays["count"][0]), arrays["first"], arrays["second"])


# --- the header ----------------------------------------------------------------------------------------------------


_FORMAT = "tfa-engine-map"
_VERSION = 2  # 1 had patches in blocks of images


class Pending(Value, kw_only=False):
    """An edit under way. What becomes of it if its editor is killed follows from it alone (`edits.settled`)."""

    kind: str = req("add or remove.", pattern="add|remove")
    ids: tuple[int, ...] = req("Removed images; for an addition the first id and the one after the last.")
    since: float = req("Time at which it began, in seconds since 1970.")
    who: str = req("Process that edits.")


class StoreHeader(Value, extras=True):
    """What a reader starts from."""

    name: str = req("Name of the map.")
    revision: int = req("Grows with every swap.")
    version: int = req("Version of the collection, its reduction and its moments.")
    skeleton: int = req("Version that the skeleton was written with.")
    moments: str = req("Document of the moments.")
    count: int = req("Images.")
    next_id: int = req("Id of the next image.")
    dims: int = req("Search dimensions.")
    dtype: str = req("Type of the rows.")
    encoder: Mapping[str, Any] = req("Encoder, as in a map's folder.")
    heads: tuple[str, ...] = req("Names of the heads.")
    active: str = req("Head that answers if a query names none.")
    created: str = req("Time at which it was made.")
    index: str | None = opt(None, "Index of the collection; null searches exactly.")
    patches: Mapping[str, Any] | None = opt(None, "Where patches are, see `rows`; null without them.")
    fitted: int = opt(0, "Images that answer and that the spaces were fitted on.")
    placed: int = opt(0, "Images with a position.")
    reach: float | None = opt(None, "Meters between images of one place; null in older maps: 25.")
    removed: int = opt(0, "Images that were removed.")
    editor: str = opt("", "Process that made this revision.")
    edits: int = opt(0, "Edits so far: collections of equal number hold the same images.")
    pending: dict[str, Pending] = opt({}, "Edits under way.")
    notes: tuple[str, ...] = opt((), "Notes for the user.")
    previous: dict[str, Any] | None = opt(None, "Header before the last publication, without its own `previous`.")

    @property
    def collection(self) -> str:
        return collection_name(self.name, self.version)

    @property
    def reduction(self) -> str:
        return f"{version_folder(self.name, self.version)}reduction"

    @property
    def skeleton_folder(self) -> str:
        return f"{version_folder(self.name, self.skeleton)}skeleton/"

    @property
    def removing(self) -> frozenset[int]:
        """Images that no longer answer, though they may still be in the collection."""
        return frozenset(one for edit in self.pending.values() if edit.kind == "remove" for one in edit.ids)

    @property
    def before(self) -> StoreHeader | None:
        return None if self.previous is None else StoreHeader.from_dict(self.previous)

    @property
    def collections(self) -> set[str]:
        """Those that this header, or the one it can be taken back to, reads."""
        return {one.collection for one in (self, self.before) if one is not None}

    @property
    def documents(self) -> tuple[str, ...]:
        """What the names of all documents begin with that are still needed, edits' moments under way among them."""
        both = [one for one in (self, self.before) if one is not None]
        kept = [
            (one.skeleton_folder, one.reduction, f"{version_folder(self.name, one.version)}moments") for one in both
        ]
        return (*(key for keys in kept for key in keys), *(one.patches["prefix"] for one in both if one.patches))

    def changed(self, **changes: Any) -> StoreHeader:
        """The next revision."""
        return replace(self, revision=self.revision + 1, **changes)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": _FORMAT, "format_version": _VERSION, **self.to_dict()}, sort_keys=True).encode()


def parse_header(content: bytes, url: str) -> StoreHeader:
    """`url` is what the map is called in errors."""
    try:
        values = parse_json(content)
        kind, version = values["format"], values["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadMap(f"{url} has no readable header ({error}); build the map again") from None
    if kind != _FORMAT or version != _VERSION:
        newer = kind == _FORMAT and isinstance(version, int) and version > _VERSION
        remedy = "use a newer tfa-vpr" if newer else "build it again"
        raise BadMap(f"{url} has format {kind} {version}, this release reads {_FORMAT} {_VERSION}; {remedy}")
    try:
        return StoreHeader.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        raise BadMap(f"{url} has a header that makes no sense ({error!r}); build the map again") from None


def read_store_header(store: Store, name: str, url: str) -> tuple[StoreHeader, bytes]:
    """The header and its bytes; if there is none, an error with the maps that are there."""
    content = store.read(header_key(name))
    if content is None:
        there = _list_maps(store)
        near = get_close_matches(name, there, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        which = f"there are {', '.join(there[:10])}" if there else "there is none yet"
        raise BadMap(f"there is no map {name!r} at {url} ({which}){hint} Build one with: tfa build PHOTOS --out URL")
    return parse_header(content, url), content


def _list_maps(store: Store) -> list[str]:
    """Names of the maps of a store."""
    every = store.keys("")
    return [key.removesuffix("/header") for key in every if key.count("/") == 1 and key.endswith("/header")]


# --- the claim -----------------------------------------------------------------------------------------------------


_HEARTBEAT = 10.0  # seconds between signs of life
ABANDONED = 60.0  # seconds without one
_PATIENCE = (0.1, 0.4)  # seconds before another look at a claim that was not what it seemed
_FREE = b"{}"  # what the document says when nobody builds
_HELD: set[str] = set()  # tokens of the claims that this process holds


def name_process() -> str:
    """Name this process for messages to others."""
    return f"process {os.getpid()} of {socket.gethostname()}"


def _identify_machine() -> str:
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
        if not self.machine or self.machine != _identify_machine():
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
        while not self._stop.wait(_HEARTBEAT):
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
        now = read_builder(self._store, self._name)
        return None if now is None or now.token == self._builder.token else now

    def release(self) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(TfaError):  # it will be abandoned
            self._store.swap(self._key, self._builder.to_bytes(), _FREE)


def read_builder(store: Store, name: str) -> Builder | None:
    """Who builds now; None if nobody does, or nobody who lives."""
    known = _read(store.read_latest(claim_key(name)))
    return known if known is not None and known.alive else None


def _read(content: bytes | None) -> Builder | None:
    try:
        values = parse_json(content or _FREE)
        return Builder(**values) if values else None
    except (ValueError, TypeError):
        return None  # nobody we know


@contextlib.contextmanager
def claim_map(store: Store, name: str, doing: str, url: str) -> Iterator[Claim]:
    """Hold the map of that name for one build or calibration."""
    now = time.time()
    builder = Builder(name_process(), doing, now, now, secrets.token_hex(8), _identify_machine(), os.getpid())
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
    for wait in (*_PATIENCE, None):
        old = store.read_latest(claim_key(name))
        other = _read(old)
        if other is not None and other.alive:
            raise make_busy_error(url, other)
        if store.swap(claim_key(name), old, builder.to_bytes()):
            return
        if wait is None:
            raise make_busy_error(url, _read(store.read_latest(claim_key(name))))
        time.sleep(wait)  # somebody was faster: look again


def make_busy_error(
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

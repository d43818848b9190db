"""Shared documents of a map in a store: key names, the header, and the claim.

The header names the current version. It is only replaced by compare-and-swap, so concurrent editors retry.

The claim names the process that builds or calibrates the map, and keeps others out. A claim without a heartbeat is
abandoned after a minute, and the next owner drops its unfinished version.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfa.core.files import BadFile, pack_tensors, parse_json, unpack_tensors
from tfa.core.plain import Value, opt, req
from tfa.errors import BadMap, BadSpec, StoreConflict, TfaError
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Store

_Parsed = TypeVar("_Parsed")


def header_key(name: str) -> str:
    return f"{name}/header"


def claim_key(name: str) -> str:
    return f"{name}/claim"


def version_folder(name: str, version: int) -> str:
    """Return the key prefix of a version's documents."""
    return f"{name}/v{version}/"


def collection_name(name: str, version: int) -> str:
    return f"{name}__v{version}"


def list_versions(store: Store, name: str) -> set[int]:
    """Return the numbers of all versions with a collection or document."""
    ends = [one.removeprefix(f"{name}__v") for one in store.names(f"{name}__v")]
    ends += [key.removeprefix(f"{name}/v").partition("/")[0] for key in store.keys(f"{name}/v")]
    return {int(end) for end in ends if end.isascii() and end.isdecimal()}


def read_arrays(store: Store, key: str, parse: Callable[[dict[str, np.ndarray]], _Parsed]) -> _Parsed:
    """Read and parse the arrays of a document. Raises BadMap if it is missing or damaged."""
    content = read_document(store, key)
    try:
        return parse(unpack_tensors(content, key))
    except (BadFile, BadSpec, KeyError, ValueError, TypeError, IndexError) as error:
        raise BadMap(f"{key} is damaged in the store ({error}); rebuild the map") from None


def read_document(store: Store, key: str) -> bytes:
    content = store.read(key)
    if content is None:
        raise BadMap(f"{key} is missing in the store; rebuild the map")
    return content


def pack_reduction(reduction: Reduction) -> bytes:
    mean = np.array([reduction.mean_bias], np.float64)
    return pack_tensors({"matrix": reduction.matrix, "bias_axis": reduction.bias_axis, "mean_bias": mean})


def read_reduction(store: Store, key: str) -> Reduction:
    def parse(arrays: dict[str, np.ndarray]) -> Reduction:
        matrix, axis, (mean_bias,) = arrays["matrix"], arrays["bias_axis"], arrays["mean_bias"]
        _require(matrix.ndim == 2 and axis.shape == matrix.shape[:1], f"shapes {matrix.shape} and {axis.shape}")
        entries = [np.abs(one).max(initial=0) for one in (matrix, axis)]  # at most 1 in an orthonormal basis
        _require(np.less_equal(entries, 2).all() and np.isfinite(mean_bias), "values are too large or not finite")
        return Reduction(matrix, axis, float(mean_bias))

    return read_arrays(store, key, parse)


def pack_moments(moments: Moments) -> bytes:
    count = np.array([moments.count], np.int64)
    return pack_tensors({"count": count, "first": moments.first, "second": moments.second})


def read_moments(store: Store, key: str) -> Moments:
    def parse(arrays: dict[str, np.ndarray]) -> Moments:
        (count,), first, second = arrays["count"], arrays["first"], arrays["second"]
        _require(second.shape == 2 * first.shape, f"shapes {first.shape} and {second.shape}")
        _require(np.isfinite(second).all() and np.isfinite(first).all(), "values are not finite")
        return Moments(int(count), first, second)

    return read_arrays(store, key, parse)


def _require(holds: Any, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


# --- the header ----------------------------------------------------------------------------------------------------

_FORMAT = "tfa-engine-map"
_VERSION, _CELLS_VERSION = 2, 3  # 1 had patches in blocks of images; 3 has patches centered on their cell


class Pending(Value, kw_only=False):
    """An edit in progress, with all that is needed to finish it if its editor is killed (`edits.settle_edits`)."""

    kind: str = req("add or remove.", pattern="add|remove")
    ids: tuple[int, ...] = req("Removed images; for an addition the first id and the one after the last.")
    since: float = req("Time of its last heartbeat on its editor's clock, in seconds since 1970.")
    who: str = req("Process that edits.")


class StoreHeader(Value, extras=True):
    """Header of a map in a store."""

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
    active_digest: str = opt("", "Tells apart calibrations of one name, see `fingerprint_head`; empty in older maps.")
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
    silent: dict[str, dict[str, float]] = opt({}, "When a machine first saw a pending edit's last heartbeat.")
    notes: tuple[str, ...] = opt((), "Notes for the user.")
    origin: int = opt(0, "Version that was built or copied; calibrations keep it. 0 in older maps.")
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
        """Removed images that may still be in the collection."""
        return frozenset(one for edit in self.pending.values() if edit.kind == "remove" for one in edit.ids)

    @property
    def uncounted(self) -> Container[int]:
        """Images that may be in the collection and are not counted: removed ones, and those of pending additions."""
        return _Uncounted(self.removing, [range(*edit.ids) for edit in self.pending.values() if edit.kind == "add"])

    @property
    def before(self) -> StoreHeader | None:
        return None if self.previous is None else StoreHeader.from_dict(self.previous)

    @property
    def collections(self) -> set[str]:
        """Collections of this header and the previous one."""
        return {one.collection for one in (self, self.before) if one is not None}

    @property
    def documents(self) -> tuple[str, ...]:
        """Key prefixes of documents of this header and the previous one, including moments of pending edits."""
        both = [one for one in (self, self.before) if one is not None]
        kept = [
            (one.skeleton_folder, one.reduction, f"{version_folder(self.name, one.version)}moments") for one in both
        ]
        return (*(key for keys in kept for key in keys), *(one.patches["prefix"] for one in both if one.patches))

    def changed(self, **changes: Any) -> StoreHeader:
        """Return the next revision."""
        return replace(self, revision=self.revision + 1, **changes)

    def to_bytes(self) -> bytes:
        version = _CELLS_VERSION if (self.patches or {}).get("cells") else _VERSION
        return json.dumps({"format": _FORMAT, "format_version": version, **self.to_dict()}, sort_keys=True).encode()


@dataclass(frozen=True)
class _Uncounted(Container[int]):
    removed: Set[int]
    added: Sequence[range]

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.removed or any(image_id in one for one in self.added)


def parse_header(content: bytes, url: str) -> StoreHeader:
    """Parse and check a header; `url` names the map in errors. Raises BadMap."""
    try:
        values = parse_json(content)
        kind, version = values["format"], values["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadMap(f"{url} has no readable header ({error}); rebuild the map") from None
    if kind != _FORMAT or version not in (_VERSION, _CELLS_VERSION):
        newer = kind == _FORMAT and isinstance(version, int) and version > _CELLS_VERSION
        remedy = "use a newer tfa-vpr" if newer else "build it again"
        raise BadMap(
            f"{url} has format {kind} {version}, this release reads {_FORMAT} {_VERSION} and {_CELLS_VERSION}; {remedy}"
        )
    try:
        header = StoreHeader.from_dict(values)
        added = [edit.ids for edit in header.pending.values() if edit.kind == "add"]
        _require(all(len(ids) == 2 for ids in added), "a pending addition has no first and last id")
        for place in (one.patches for one in (header, header.before) if one is not None and one.patches is not None):
            strings = [place["prefix"], place["folder"], place["at"] or ""]
            _require(all(isinstance(one, str) for one in strings), "patches are not named by strings")
        return header
    except (KeyError, TypeError, ValueError) as error:
        raise BadMap(f"{url} has an invalid header ({error!r}); rebuild the map") from None


def read_store_header(store: Store, name: str, url: str) -> tuple[StoreHeader, bytes]:
    """Read the header and its bytes. Raises BadMap with the existing maps if there is none."""
    content = store.read(header_key(name))
    if content is None:
        keys = store.keys("")
        there = [key.removesuffix("/header") for key in keys if key.count("/") == 1 and key.endswith("/header")]
        near = get_close_matches(name, there, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        which = f"available: {', '.join(there[:10])}" if there else "the store has no maps"
        raise BadMap(f"there is no map {name!r} at {url} ({which}){hint} Build one with: tfa build PHOTOS --out URL")
    return parse_header(content, url), content


# --- claim ---------------------------------------------------------------------------------------------------------

_HEARTBEAT = 10.0  # seconds between heartbeats
ABANDONED = 60.0  # seconds without a heartbeat after which a claim or an edit is abandoned
_PATIENCE = (0.1, 0.4)  # seconds before another attempt to take a claim that changed meanwhile
_FREE = b"{}"  # content of the document without an owner
_HELD: set[str] = set()  # tokens of the claims of this process


def name_process() -> str:
    """Name this process in messages to others."""
    return f"process {os.getpid()} of {socket.gethostname()}"


@contextlib.contextmanager
def beat_during(renew: Callable[[], object]) -> Iterator[None]:
    """Call `renew` every few seconds from a thread."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(_HEARTBEAT):
            with contextlib.suppress(TfaError):  # the next heartbeat may reach the store
                renew()

    thread = threading.Thread(target=beat, name="tfa-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def identify_machine() -> str:
    """Identify the kernel boot and process namespace in which process ids are valid; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not on Linux
        return ""


@dataclass(frozen=True)
class Builder:
    """Owner of a claim."""

    who: str
    doing: str
    started: float
    seen: float
    token: str
    machine: str = ""  # see `identify_machine`
    process: int = 0

    @property
    def alive(self) -> bool:
        return time.time() - self.seen < ABANDONED and not self._ended_here()

    def _ended_here(self) -> bool:
        """Return True if the owner ran on this machine and has exited, or is this process and has released it."""
        if not self.machine or self.machine != identify_machine():
            return False
        if self.process == os.getpid():
            return self.token not in _HELD
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # a process of another user
        return False

    def to_bytes(self) -> bytes:
        return json.dumps(vars(self), sort_keys=True).encode()


class Claim:
    """A claim of this process, which `claim_map` renews."""

    def __init__(self, store: Store, name: str, builder: Builder) -> None:
        self._store, self._name, self._key, self._builder = store, name, claim_key(name), builder
        self._lock, self._lost = threading.Lock(), False

    def renew(self) -> None:
        """Send a heartbeat."""
        with self._lock:
            fresh = replace(self._builder, seen=time.time())
            if self._store.swap(self._key, self._builder.to_bytes(), fresh.to_bytes()):
                self._builder = fresh
            else:
                self._lost = True

    def check(self) -> None:
        """Raise StoreConflict if another process took the claim."""
        if self._lost:
            raise StoreConflict(
                f"build lock lost: no heartbeat for {ABANDONED:.0f} s, another process took over; run the build again"
            )

    def other(self) -> Builder | None:
        """Return another live owner of the claim, or None."""
        now = read_builder(self._store, self._name)
        return None if now is None or now.token == self._builder.token else now

    def release(self) -> None:
        with contextlib.suppress(TfaError):  # the claim expires anyway
            self._store.swap(self._key, self._builder.to_bytes(), _FREE)


def read_builder(store: Store, name: str) -> Builder | None:
    """Return the live owner of the claim, or None."""
    known = _read(store.read_latest(claim_key(name)))
    return known if known is not None and known.alive else None


def _read(content: bytes | None) -> Builder | None:
    try:
        values = parse_json(content or _FREE)
        return Builder(**values) if values else None
    except (ValueError, TypeError):
        return None


@contextlib.contextmanager
def claim_map(store: Store, name: str, doing: str, url: str) -> Iterator[Claim]:
    """Claim a map for a build or calibration. Raises StoreConflict if it is claimed."""
    now = time.time()
    builder = Builder(name_process(), doing, now, now, secrets.token_hex(8), identify_machine(), os.getpid())
    _HELD.add(builder.token)  # first, or another thread could take the claim for a stale one
    try:
        _take(store, name, builder, url)
        claim = Claim(store, name, builder)
        try:
            with beat_during(claim.renew):
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
        time.sleep(wait)  # another process was faster


def make_busy_error(url: str, other: Builder | None, unknown: str = "another process claimed it") -> StoreConflict:
    """Make the error for a claimed map; `unknown` is the text if the owner is unknown."""
    if other is None:
        return StoreConflict(f"{url} is being built: {unknown}; try again when it is done")
    minutes = max(time.time() - other.started, 0) / 60
    return StoreConflict(
        f"{url} is being {other.doing} by {other.who} for {minutes:.0f} min; try again when it is done "
        f"(the claim of a killed process expires after {ABANDONED:.0f} s)"
    )

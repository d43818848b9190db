"""Edit a map in a store from several processes: every step is a compare-and-swap of the header.

    add      claim ids in the header → write patches and images → update count and moments
    remove   update count and moments, hide the images → delete them

A killed editor leaves its `Pending` edit in the header. Editors note when their machine first saw the last heartbeat of
each pending edit, and finish an edit after a minute without another one. Clocks of two machines are never compared.
"""

from __future__ import annotations

import itertools
import json
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import StoreConflict
from tfa.maps.store.header import (
    ABANDONED,
    Pending,
    StoreHeader,
    beat_during,
    header_key,
    identify_machine,
    make_busy_error,
    name_process,
    pack_moments,
    read_builder,
    version_folder,
)
from tfa.maps.store.publish import WRITTEN_AT_ONCE, write_entries
from tfa.maps.store.rows import SpaceRows, make_payload, read_ranks, write_added
from tfa.maps.store.versions import MapView, Version, Versions
from tfa.search.reduced import Moments
from tfa.search.store import Collection, Entries
from tfa.types import ImageRecord

_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds before another attempt to swap the header; grows with each attempt


def _swap_header(
    versions: Versions, change: Callable[[MapView], StoreHeader | None], *, building: bool = False
) -> MapView:
    """Update the header with compare-and-swap, retrying on conflict. `change` may return None to skip the update.

    Raises StoreConflict while another process builds or calibrates the map, unless `building`.
    """
    for attempt in itertools.count(1):
        view = versions.now(fresh=True)
        builder = None if building else read_builder(versions.store, versions.name)
        if builder is not None:
            raise make_busy_error(versions.url, builder)
        header = change(view)
        if header is None:
            return view
        if header.pending.keys() != view.header.pending.keys():  # heartbeats change nothing that a reader sees
            header = header.changed(editor=name_process())
        if versions.store.swap(header_key(versions.name), view.content, header.to_bytes()):
            if view.header.moments not in (header.moments, (header.previous or {}).get("moments")):
                versions.store.erase(view.header.moments)
            return versions.now(fresh=True)
        if header.moments != view.header.moments:
            versions.store.erase(header.moments)
        time.sleep(min(_PAUSE * attempt, _LONGEST_PAUSE) * (0.5 + secrets.randbelow(100) / 100))
    raise AssertionError


@dataclass(frozen=True)
class NewImages:
    """Encoded photos to add, which are not in the map."""

    tokens: Tokens
    records: Sequence[ImageRecord]  # ids are ignored

    def rows(self, view: MapView) -> SpaceRows:
        """Return their rows in the map's spaces."""
        assert view.state.spaces is not None, "a map in a store has spaces"
        known, grown = len(view.state.spaces), view.state.spaces.grown(self.tokens)
        return SpaceRows.of(grown, known, len(grown))

    def entries(self, version: Version, ids: Sequence[int], rows: SpaceRows) -> Entries:
        payload = list(map(make_payload, self.records))
        return rows.entries(version.head.stored.scorer, version.reduction, np.asarray(ids), payload)


def add_images(versions: Versions, new: NewImages) -> list[int]:
    """Add images and return their ids; all readers find them. Raises StoreConflict if the map is rebuilt meanwhile.

    Of several editors that add a photo at once, the first to complete adds it.
    """
    settle_edits(versions)
    token, count = secrets.token_hex(8), len(new.records)
    counted: set[int] | None = None  # by a process that took this one for dead
    repeated: set[int] = set()  # added by another process meanwhile, and deleted again
    ids, origin, written = range(0), 0, 0

    def claim_ids(view: MapView) -> StoreHeader:
        nonlocal ids, origin
        first, origin = view.header.next_id, view.header.origin
        ids = range(first, first + count)
        pending = Pending("add", (first, first + count), time.time(), name_process())
        return _with(view.header, token, pending, next_id=first + count)

    def check_origin(view: MapView) -> None:
        before = view.header.before
        if before is not None and before.version == written != view.header.version:  # it may not count the images
            there = _read_settled(versions, before, token) if counted is None else counted
            versions.store.open(before.collection).delete([own for own in ids if own not in there])
        if view.header.origin != origin:  # the new map has other spaces, and may have images of these ids
            raise StoreConflict(f"{versions.url} was rebuilt during the addition; nothing was added, add it again")

    view = _swap_header(versions, claim_ids)
    check_origin(view)
    with beat_during(lambda: _swap_header(versions, lambda view: _renew(view.header, token), building=True)):
        rows = new.rows(view)
        if view.patches is not None and view.header.patches is not None:
            write_added(versions.store, view.header.patches, view.patches, ids, new.tokens)
        written = view.header.version
        entries = new.entries(view.active, ids, rows)
        write_entries(view.active.collection, entries)

    def complete(view: MapView) -> StoreHeader | None:
        nonlocal written, counted, entries
        check_origin(view)
        gone = token not in view.header.pending
        if view.header.version != written:  # a new version was published meanwhile
            counted = set(view.active.collection.fetch(ids).ids.tolist()) if gone else None
            entries = new.entries(view.active, ids, rows)
            write_entries(view.active.collection, entries)
            written = view.header.version
        elif gone and counted is None:
            counted = _read_settled(versions, view.header, token)
        left = {own: one.digest for own, one in zip(ids, new.records, strict=True) if own not in (counted or ())}
        repeated.update(_drop_repeated(view, left, repeated))
        rest = [own - ids.start for own in left if own not in repeated]
        placed = sum(new.records[place].position is not None for place in rest)
        return _count_images(versions, view, Moments.of(entries.vectors[rest]), token, placed=placed, fitted=0)

    _swap_header(versions, complete, building=True)
    return [own for own in ids if own not in repeated]


def _drop_repeated(view: MapView, uncounted: Mapping[int, str], dropped: Set[int] = frozenset()) -> Set[int]:
    """Delete the rows of those uncounted images whose digest a counted image has; `dropped` are to be deleted again."""
    header, collection = view.header, view.active.collection
    others = {own: digest for digest, own in collection.find(list(uncounted.values())).items()}  # lowest ids
    starts = [*uncounted, *(edit.ids[0] for edit in header.pending.values() if edit.kind == "add")]
    recent = [own for own in range(min(starts, default=header.next_id), header.next_id) if own not in uncounted]
    entries = collection.fetch(recent)  # usually none: they are added at the same time
    others |= {own: one["digest"] for own, one in zip(entries.ids.tolist(), entries.payload, strict=True)}
    pending = header.uncounted
    there = {digest for own, digest in others.items() if own not in uncounted and own not in pending}
    repeated = dropped | {own for own, digest in uncounted.items() if digest in there}
    if repeated:
        collection.delete(sorted(repeated))
    return repeated


def _settled_key(header: StoreHeader, token: str) -> str:
    """Return the key of the ids that `_settle_one` counted. It begins as moments do and is erased with the version."""
    return f"{version_folder(header.name, header.version)}moments-settled-{token}"


def _read_settled(versions: Versions, header: StoreHeader, token: str) -> set[int]:
    return set(json.loads(versions.store.read_latest(_settled_key(header, token)) or b"[]"))


def remove_images(versions: Versions, records: Sequence[ImageRecord]) -> list[int]:
    """Remove images and return the removed ids; no reader finds them. Raises StoreConflict if the map was rebuilt."""
    settle_edits(versions)
    gone: list[int] = []
    for start in range(0, len(records), WRITTEN_AT_ONCE):
        gone += _remove(versions, {one.id: one.digest for one in records[start : start + WRITTEN_AT_ONCE]})
    return gone


def _remove(versions: Versions, digests: Mapping[int, str]) -> list[int]:
    token, gone = secrets.token_hex(8), list[int]()
    collection: Collection | None = None  # kept, because the map may be rebuilt once the header is swapped

    def hide(view: MapView) -> StoreHeader | None:
        nonlocal collection
        collection = view.active.collection
        entries, uncounted = collection.fetch(list(digests)), view.header.uncounted
        kept = [i for i, own in enumerate(entries.ids.tolist()) if own not in uncounted]
        gone[:] = [int(entries.ids[i]) for i in kept]
        if not gone:
            return None
        payload = [entries.payload[i] for i in kept]
        if [one["digest"] for one in payload] != [digests[own] for own in gone]:
            raise StoreConflict(f"{versions.url} was rebuilt during the removal; list its images and remove them again")
        moments = _sum_moments(view.active, [entries.full[i] for i in kept])
        pending = Pending("remove", tuple(gone), time.time(), name_process())
        taken = Moments(-moments.count, -moments.first, -moments.second)
        placed = -sum(one.get("position") is not None for one in payload)
        fitted = -sum(bool(one["fitted"]) for one in payload)
        header = _count_images(versions, view, taken, None, placed=placed, fitted=fitted)
        return _with(header, token, pending, removed=header.removed + len(gone))

    _swap_header(versions, hide)
    if gone and collection is not None:
        collection.delete(gone)
        _swap_header(versions, lambda view: _without(view.header, token), building=True)
    return gone


def _sum_moments(version: Version, full: Sequence[bytes]) -> Moments:
    """Compute moments from full rows, because a store may round vectors."""
    head = version.head.stored.scorer
    return Moments.of(version.reduction.of_images(*SpaceRows.of_bytes(full, read_ranks(head)).compiled(head)))


def _count_images(
    versions: Versions, view: MapView, added: Moments, token: str | None, *, placed: int, fitted: int
) -> StoreHeader:
    """Return the header with updated counts, and write the new moments."""
    header, total = view.header, view.active.moments + added
    key = f"{version_folder(header.name, header.version)}moments-r{header.revision + 1}-{secrets.token_hex(4)}"
    versions.store.put(key, pack_moments(total))
    header = header if token is None else _without(header, token) or header
    edits = max(header.edits, (header.previous or {}).get("edits", 0)) + 1  # differs from the previous version's
    counts: dict[str, Any] = {"count": total.count, "placed": header.placed + placed, "fitted": header.fitted + fitted}
    return replace(header, moments=key, edits=edits, **counts)


def _with(header: StoreHeader, token: str, pending: Pending, **changes: Any) -> StoreHeader:
    """Add an edit to the header, and note the others."""
    header = _note_silent(header) or header
    return replace(header, pending={**header.pending, token: pending}, **changes)


def _without(header: StoreHeader, token: str) -> StoreHeader | None:
    """Remove a finished edit from the header; None if it is gone already."""
    if token not in header.pending:
        return None
    pending = {key: edit for key, edit in header.pending.items() if key != token}
    return replace(header, pending=pending, silent={key: header.silent[key] for key in header.silent if key in pending})


def _renew(header: StoreHeader, token: str) -> StoreHeader | None:
    """Add a heartbeat of an edit to the header; None if the edit is gone."""
    rest = _without(header, token)
    return rest and _with(rest, token, replace(header.pending[token], since=time.time()))


def _read_clock() -> tuple[str, float]:
    """Return this machine, since its start, and its clock, which all its processes share."""
    return identify_machine().partition("/")[0] or socket.gethostname(), time.monotonic()


def _note_silent(header: StoreHeader) -> StoreHeader | None:
    """Note that this machine sees the last heartbeat of each edit; None if all are noted."""
    here, now = _read_clock()
    new = [token for token in header.pending if header.silent.get(token, {}).get(here, math.inf) > now]
    noted = {token: {**header.silent.get(token, {}), here: now} for token in new}
    return replace(header, silent={**header.silent, **noted}) if new else None


def _is_abandoned(header: StoreHeader, token: str) -> bool:
    here, now = _read_clock()
    return now - header.silent.get(token, {}).get(here, now) >= ABANDONED


def settle_edits(versions: Versions, *, building: bool = False, patience: float = 0.0) -> MapView:
    """Finish edits of killed editors, and wait up to `patience` seconds for running ones."""
    deadline = time.monotonic() + patience
    while True:
        view = versions.now(fresh=True)
        if patience:
            view = _swap_header(versions, lambda view: _note_silent(view.header), building=building)
        old = [token for token in view.header.pending if _is_abandoned(view.header, token)]
        for token in old:
            _settle_one(versions, token, building=building)
        if not view.header.pending or time.monotonic() >= deadline:
            return versions.now(fresh=True)
        time.sleep(_PAUSE if old else 10 * _PAUSE)


def _settle_one(versions: Versions, token: str, *, building: bool) -> None:
    def settled(view: MapView) -> StoreHeader | None:
        edit = view.header.pending.get(token)
        if edit is None or not _is_abandoned(view.header, token):
            return None
        if edit.kind == "remove":
            view.active.collection.delete(list(edit.ids))
            return _without(view.header, token)
        entries = view.active.collection.fetch(range(*edit.ids))
        there = entries.ids.tolist()
        repeated = _drop_repeated(view, {own: one["digest"] for own, one in zip(there, entries.payload, strict=True)})
        rest = [row for row, own in enumerate(there) if own not in repeated]
        versions.store.put(_settled_key(view.header, token), json.dumps([there[row] for row in rest]).encode())
        if not rest:
            return _without(view.header, token)
        placed = sum(entries.payload[row].get("position") is not None for row in rest)
        moments = _sum_moments(view.active, [entries.full[row] for row in rest])
        return _count_images(versions, view, moments, token, placed=placed, fitted=0)

    _swap_header(versions, settled, building=building)

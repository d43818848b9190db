"""Publish a version of a map in a store: write a new collection and documents, then swap the header atomically.

The previous version is kept for a rollback; older ones are dropped. `publish_map` publishes a map in memory.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa.core.progress import Progress, as_progress
from tfa.errors import BadSpec, StoreConflict, StoreUnavailable
from tfa.maps.state import MapState
from tfa.maps.store.header import (
    Claim,
    StoreHeader,
    claim_map,
    collection_name,
    header_key,
    list_versions,
    make_busy_error,
    name_process,
    pack_moments,
    pack_reduction,
    parse_header,
    version_folder,
)
from tfa.maps.store.rows import (
    SpaceRows,
    begin_patches,
    erase_elsewhere,
    fit_store_reduction,
    make_payload,
    seal_patches,
    write_patches,
)
from tfa.maps.store.versions import SKELETON_IMAGES, fingerprint_head, put_skeleton, write_skeleton
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Collection, Entries, Store

if TYPE_CHECKING:
    from tfa.maps.map import Map

WRITTEN_AT_ONCE = 1000  # images written at a time


@dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """Header fields of a new version."""

    next_id: int
    encoder: Mapping[str, Any]
    heads: Sequence[str]
    active: str
    active_digest: str = ""
    dtype: str = "float32"
    index: str | None = None
    patches: Mapping[str, Any] | None = None  # see `rows.begin_patches`; None without reranking
    fitted: int | None = None  # images that the spaces were fitted on; None for all
    placed: int = 0  # images with a position
    reach: float | None = None  # meters between images of one place
    notes: Sequence[str] = ()
    same_images: bool = False  # whether the previous version holds the same images

    @classmethod
    def of(cls, header: StoreHeader, **changes: Any) -> VersionFacts:
        """Take the facts of another version, but for some."""
        shared = {one.name: getattr(header, one.name) for one in fields(cls) if one.name != "same_images"}
        return cls(**{**shared, **changes})


class Publisher:
    """One publication: `claim`, `begin`, write entries, `finish`. Readers see nothing before `finish`.

    `url` names the map in errors.
    """

    def __init__(self, store: Store, name: str, url: str | None = None) -> None:
        self.store, self.name, self.url = store, name, url or name
        self.version = 0  # version of the collection in progress
        self._claim: Claim | None = None
        self._before: bytes | None = None

    @contextlib.contextmanager
    def claim(self, doing: str = "built") -> Iterator[Claim]:
        """Lock the map, and drop unfinished versions at the start and after an error. Others see `doing` in errors."""
        with claim_map(self.store, self.name, doing, self.url) as held:
            self._claim = held
            self.look()
            self.tidy()
            try:
                yield held
            except BaseException:
                with contextlib.suppress(Exception):  # report the first error
                    if held.other() is None:
                        self.tidy()
                raise
            finally:
                self._claim = None

    @property
    def before(self) -> StoreHeader | None:
        """Header at the time of the claim; None if there was no map."""
        return None if self._before is None else parse_header(self._before, self.url)

    def begin(self, dims: int, dtype: str = "float32") -> Collection:
        """Create an empty collection with the next version number."""
        assert self._claim is not None, "a publisher has claimed the map"
        self.next_version()
        name = collection_name(self.name, self.version)
        try:
            return self.store.create(name, dims, dtype)
        except StoreConflict as error:
            if name not in self.store.names(name):
                raise
            other = self._claim.other()
            raise make_busy_error(self.url, other, f"another process created the collection {name!r}") from error

    def next_version(self) -> int:
        """Set and return a version number above every existing one."""
        known = 0 if self.before is None else self.before.revision
        self.version = max([known, self.version, *list_versions(self.store, self.name)]) + 1
        return self.version

    def look(self) -> bytes | None:
        """Read and return the current header, which the publication will replace."""
        self._before = self.store.read_latest(header_key(self.name))
        return self._before

    def finish(self, skeleton_folder: Path, reduction: Reduction, moments: Moments, facts: VersionFacts) -> StoreHeader:
        """Write the documents, then swap the header. `skeleton_folder` is a map of `versions.write_skeleton`."""
        folder, before = version_folder(self.name, self.version), self.before
        put_skeleton(self.store, f"{folder}skeleton/", skeleton_folder)
        self.store.put(f"{folder}reduction", pack_reduction(reduction))
        self.store.put(f"{folder}moments", pack_moments(moments))
        same = facts.same_images and before is not None
        header = StoreHeader(
            name=self.name, revision=self.version, version=self.version, skeleton=self.version,
            moments=f"{folder}moments", count=moments.count, next_id=facts.next_id, dims=reduction.dims,
            dtype=facts.dtype, encoder=facts.encoder, heads=tuple(facts.heads), active=facts.active,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), index=facts.index,
            patches=facts.patches, fitted=moments.count if facts.fitted is None else facts.fitted,
            placed=facts.placed, reach=facts.reach, removed=before.removed if same and before is not None else 0,
            edits=0 if before is None else before.edits + (not same), editor=name_process(), notes=tuple(facts.notes),
            origin=before.origin if same and before is not None else self.version, active_digest=facts.active_digest,
        )  # fmt: skip
        return self.swap(header)

    def finish_state(self, state: MapState, reduction: Reduction, moments: Moments, facts: VersionFacts) -> StoreHeader:
        """Finish with `state` as the skeleton."""
        facts = replace(facts, active_digest=fingerprint_head(state.chosen()))
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", state)
            return self.finish(Path(folder) / "skeleton.tfa", reduction, moments, facts)

    def swap(self, header: StoreHeader) -> StoreHeader:
        """Replace the header that was there at the claim, and keep that one for a rollback."""
        assert self._claim is not None, "a publisher has claimed the map"
        self._claim.check()
        before = self.before
        kept = None if before is None else {**before.to_dict(), "previous": None}
        header = StoreHeader.from_dict({**header.to_dict(), "previous": kept})
        fresh = header.to_bytes()
        if not self.store.swap(header_key(self.name), self._before, fresh):
            raise StoreConflict(f"{self.url} was edited during the publication; nothing was changed, try again")
        self._before = fresh
        self.tidy()
        return header

    def tidy(self) -> None:
        """Drop collections and documents that neither the header nor the previous one uses. Requires the claim."""
        header = self.before
        collections, documents = (set[str](), ()) if header is None else (header.collections, header.documents)
        for name in self.store.names(f"{self.name}__v"):
            if name not in collections and self._ours(name):
                self.store.drop(name)
        for key in self.store.keys(f"{self.name}/v"):
            if not key.startswith(documents):
                erase_elsewhere(self.store, key)
                self.store.erase(key)

    def _ours(self, name: str) -> bool:
        """Return True unless a collection with such a name belongs to another program."""
        try:
            self.store.open(name)
        except StoreConflict:
            return False
        except StoreUnavailable:
            pass  # damaged, or the store is unavailable: dropping it raises then
        return True


def write_entries(collection: Collection, entries: Entries) -> Moments:
    """Write images in blocks and return their contribution to the moments. Idempotent, from any process."""
    for start in range(0, len(entries), WRITTEN_AT_ONCE):
        part = slice(start, start + WRITTEN_AT_ONCE)
        collection.write(Entries(entries.ids[part], entries.vectors[part], entries.payload[part], entries.full[part]))
    return Moments.of(entries.vectors)


STORE_DIMS = 1024  # default search dimensions


def publish_map(
    place_map: Map,
    publisher: Publisher,
    *,
    dims: int = STORE_DIMS,
    dtype: str = "float32",
    index: str | None = None,
    progress: bool | Progress | None = None,
) -> StoreHeader:
    """Write all searchable images with their ids, and the whole map as the skeleton."""
    state, notes = place_map.state, list[str]()
    check_publishable(state)
    if len(state.images) > SKELETON_IMAGES:
        all_rows = f"every reader holds the rows of all {len(state.images):,} images in memory"
        notes = [f"{all_rows}; with tfa build --out URL it holds a sample of {SKELETON_IMAGES:,}"]
    head, rows = state.checked().stored.scorer, place_map.rows
    assert state.spaces is not None, "second-order heads have a space"
    with publisher.claim():
        blocks = [rows[start : start + WRITTEN_AT_ONCE] for start in range(0, len(rows), WRITTEN_AT_ONCE)]
        reduction = fit_store_reduction(head, (_rows(state, block) for block in blocks), dims)
        collection = publisher.begin(dims, dtype)
        place = begin_patches(publisher.store, publisher.name, publisher.version, state.compact)
        if place is not None:
            _write_all_patches(publisher, place, state)
        parts = []
        with as_progress(progress).task("publishing", len(rows), "images") as task:
            for block in blocks:
                records = [state.images[row] for row in block]
                ids, payload = np.array([one.id for one in records]), [make_payload(one) for one in records]
                parts.append(write_entries(collection, _rows(state, block).entries(head, reduction, ids, payload)))
                task.advance(len(block))
        collection.seal(index)
        alive = [state.images[row] for row in rows]
        facts = VersionFacts(
            next_id=state.next_id, fitted=sum(record.fitted for record in alive),
            placed=sum(record.position is not None for record in alive), reach=place_map.reach, encoder=state.encoder,
            heads=[one.name for one in state.heads], active=state.active, dtype=dtype, index=index, patches=place,
            notes=[*place_map.notes, *notes],
        )  # fmt: skip
        return publisher.finish_state(state, reduction, Moments.total(parts), facts)


def _rows(state: MapState, rows: np.ndarray) -> SpaceRows:
    assert state.spaces is not None
    start, stop = int(rows[0]), int(rows[-1]) + 1
    every = SpaceRows.of(state.spaces, start, stop)
    return every if len(rows) == stop - start else every.take(rows - start)


def _write_all_patches(publisher: Publisher, place: dict[str, object], state: MapState) -> None:
    """Write patches of all images, including removed ones, which calibrations use."""
    assert state.compact is not None
    ids = [record.id for record in state.images]
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        own = ids[start : start + WRITTEN_AT_ONCE]
        chunk = state.compact.patch_tensors(start, start + len(own))["patches"]
        write_patches(publisher.store, place, own, chunk)
    seal_patches(publisher.store, place)


def check_publishable(state: MapState) -> None:
    """Raise BadSpec for a head that a store cannot hold."""
    if state.spaces is None:
        has = f"this map has the {state.head_kind} head"
        raise BadSpec(f"a store needs a second-order head, but {has}; build with --head second-order")
    if not state.head.in_space:
        was = state.database.decisions["representation"]
        raise BadSpec(f"a store needs a second-order head, but this map has {was} residuals; run tfa refit first")

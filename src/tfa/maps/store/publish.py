"""Publishing a version of a map in a store: a new collection beside the old, documents, and then the header, which
makes it the map all at once. The version before stays, to be taken back; what is older is dropped.

`publish_map` publishes a small map that was built in this process.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from tfa.maps.store.versions import SKELETON_IMAGES, put_skeleton, write_skeleton
from tfa.method.scorer import Scorer
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Collection, Entries, Payload, Store

if TYPE_CHECKING:
    from tfa.maps.map import Map

WRITTEN_AT_ONCE = 1000  # images written at a time


@dataclass(frozen=True, kw_only=True)
class VersionFacts:
    """What a header says of a version, beside what was written."""

    next_id: int
    encoder: Mapping[str, Any]
    heads: Sequence[str]
    active: str
    dtype: str = "float32"
    index: str | None = None
    patches: Mapping[str, Any] | None = None  # as `patches.begin_patches` says; None if answers are not verified
    fitted: int | None = None  # images that the spaces were fitted on; None: all
    placed: int = 0  # images with a position
    reach: float | None = None  # meters between images of one place
    notes: Sequence[str] = ()
    same_images: bool = False  # does the version before hold the very same ones?


class Publisher:
    """One publication: `claim`, `begin`, `write` as often as needed, `finish`. Until then nothing is seen of it.

    `url` is what the map is called in errors.
    """

    def __init__(self, store: Store, name: str, url: str | None = None) -> None:
        self.store, self.name, self.url = store, name, url or name
        self.version = 0  # that of the collection that is being written
        self._claim: Claim | None = None
        self._before: bytes | None = None

    @contextlib.contextmanager
    def claim(self, doing: str = "built") -> Iterator[Claim]:
        """Hold the map; what an abandoned builder left is dropped first, what this one leaves if it fails at its end.

        `doing` is shown to others: built, calibrated.
        """
        with claim_map(self.store, self.name, doing, self.url) as held:
            self._claim = held
            self.look()
            self.tidy()
            try:
                yield held
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to tell of
                    if held.other() is None:
                        self.tidy()
                raise
            finally:
                self._claim = None

    @property
    def before(self) -> StoreHeader | None:
        """The header that was there when the map was claimed; None if there was no map."""
        return None if self._before is None else parse_header(self._before, self.url)

    def begin(self, dims: int, dtype: str = "float32") -> Collection:
        """The next collection, empty: its number is beyond everything that is there."""
        assert self._claim is not None, "a publisher has claimed the map"
        self.next_version()
        name = collection_name(self.name, self.version)
        try:
            return self.store.create(name, dims, dtype)
        except StoreConflict as error:
            if name not in self.store.names(name):
                raise
            other = self._claim.other()
            raise make_busy_error(self.url, other, f"another builder made the collection {name!r} meanwhile") from error

    def next_version(self) -> int:
        """A number beyond everything that is there, for what is written from now on."""
        known = 0 if self.before is None else self.before.revision
        self.version = max([known, self.version, *list_versions(self.store, self.name)]) + 1
        return self.version

    def look(self) -> None:
        """What the map is now is what will be replaced."""
        self._before = self.store.read_latest(header_key(self.name))

    def write(
        self,
        collection: Collection,
        ids: np.ndarray,
        rows: SpaceRows,
        payload: Sequence[Payload],
        head: Scorer,
        reduction: Reduction,
    ) -> Moments:
        """Images by their rows under the head that will answer; what they add to the moments. Idempotent.

        A payload has path, digest, session (or None), position (or None) and fitted. It may be called from any
        process that has the store: the caller of `finish` adds up moments.
        """
        return write_entries(collection, rows.entries(head, reduction, ids, payload))

    def finish(self, skeleton_folder: Path, reduction: Reduction, moments: Moments, facts: VersionFacts) -> StoreHeader:
        """Write the documents, then make this version the map. `moments` are those of all that was written.

        `skeleton_folder` is a map as `versions.write_skeleton` writes it.
        """
        folder, before = version_folder(self.name, self.version), self.before
        put_skeleton(self.store, f"{folder}skeleton/", skeleton_folder)
        self.store.put(f"{folder}reduction", pack_reduction(reduction))
        self.store.put(f"{folder}moments", pack_moments(moments))
        same = facts.same_images and before is not None
        header = StoreHeader(
            name=self.name,
            revision=self.version,
            version=self.version,
            skeleton=self.version,
            moments=f"{folder}moments",
            count=moments.count,
            next_id=facts.next_id,
            dims=reduction.dims,
            dtype=facts.dtype,
            encoder=facts.encoder,
            heads=tuple(facts.heads),
            active=facts.active,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            index=facts.index,
            patches=facts.patches,
            fitted=moments.count if facts.fitted is None else facts.fitted,
            placed=facts.placed,
            reach=facts.reach,
            removed=before.removed if same and before is not None else 0,
            edits=0 if before is None else before.edits + (not same),
            editor=name_process(),
            notes=tuple(facts.notes),
        )
        return self.swap(header)

    def swap(self, header: StoreHeader) -> StoreHeader:
        """Put a header in the place of the one that was there at the claim, which it can be taken back to."""
        assert self._claim is not None, "a publisher has claimed the map"
        self._claim.check()
        before = self.before
        kept = None if before is None else {**before.to_dict(), "previous": None}
        header = StoreHeader.from_dict({**header.to_dict(), "previous": kept})
        fresh = header.to_bytes()
        if not self.store.swap(header_key(self.name), self._before, fresh):
            raise StoreConflict(f"{self.url} was edited while a new version was made; nothing was changed, do it again")
        self._before = fresh
        self.tidy()
        return header

    def tidy(self) -> None:
        """Drop every collection and document that neither the header nor the one before it reads of.

        Only who holds the claim may: all else would be another builder's work.
        """
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
        """Somebody else's collection may be called like a version of this map: it is left alone."""
        try:
            self.store.open(name)
        except StoreConflict:
            return False
        except StoreUnavailable:
            pass  # damaged, or the store is away: dropping it says so
        return True


def write_entries(collection: Collection, entries: Entries) -> Moments:
    """Write images, some at a time, and what they add to the moments."""
    for start in range(0, len(entries), WRITTEN_AT_ONCE):
        part = slice(start, start + WRITTEN_AT_ONCE)
        collection.write(Entries(entries.ids[part], entries.vectors[part], entries.payload[part], entries.full[part]))
    return Moments.of(entries.vectors)


# --- a map that was built in this process --------------------------------------------------------------------------


STORE_DIMS = 1024  # numbers of a reduced vector, unless another is wanted


def publish_map(
    place_map: Map,
    publisher: Publisher,
    *,
    dims: int = STORE_DIMS,
    dtype: str = "float32",
    index: str | None = None,
    progress: bool | Progress | None = None,
) -> StoreHeader:
    """Write all images that answer, and the map as their skeleton. They keep their ids."""
    state, notes = place_map.state, list[str]()
    check_publishable(state)
    if len(state.images) > SKELETON_IMAGES:
        all_rows = f"every reader keeps the rows of all {len(state.images):,} images in memory"
        notes = [f"{all_rows}; a map of tfa build --out URL keeps those of a sample of {SKELETON_IMAGES:,}"]
    head, rows = state.chosen().stored.scorer, place_map.rows
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
                parts.append(publisher.write(collection, ids, _rows(state, block), payload, head, reduction))
                task.advance(len(block))
        collection.seal(index)
        alive = [state.images[row] for row in rows]
        with tempfile.TemporaryDirectory(prefix="tfa-publish-") as folder:
            write_skeleton(Path(folder) / "skeleton.tfa", replace(state, revision=publisher.version))
            return publisher.finish(
                Path(folder) / "skeleton.tfa",
                reduction,
                Moments.total(parts),
                VersionFacts(
                    next_id=state.next_id,
                    fitted=sum(record.fitted for record in alive),
                    placed=sum(record.position is not None for record in alive),
                    reach=place_map.reach,
                    encoder=state.encoder,
                    heads=[one.name for one in state.heads],
                    active=state.active,
                    dtype=dtype,
                    index=index,
                    patches=place,
                    notes=[*place_map.notes, *notes],
                ),
            )


def _rows(state: MapState, rows: np.ndarray) -> SpaceRows:
    """Some images of a map, which need not stand one after the other."""
    assert state.spaces is not None
    start, stop = int(rows[0]), int(rows[-1]) + 1
    every = SpaceRows.of(state.spaces, start, stop)
    return every if len(rows) == stop - start else every.take(rows - start)


def _write_all_patches(publisher: Publisher, place: dict[str, object], state: MapState) -> None:
    """Patches of all images of a map, removed ones too: a calibration is judged on what was fitted."""
    assert state.compact is not None
    ids = [record.id for record in state.images]
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        own = ids[start : start + WRITTEN_AT_ONCE]
        [chunk] = state.compact.patch_tensors(start, start + len(own)).values()
        write_patches(publisher.store, place, own, chunk)
    seal_patches(publisher.store, place)


def check_publishable(state: MapState) -> None:
    """Refuse a map whose head a store cannot hold."""
    if state.spaces is None:
        raise BadSpec(
            "a map in a store has a second-order head, this one has the paper's; build it with --head second-order"
        )
    if not state.head.in_space:
        was = state.database.decisions["representation"]
        raise BadSpec(f"a map in a store has a second-order head, this one has {was} residuals; run tfa refit first")

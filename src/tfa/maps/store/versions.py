"""Read views of a map in a store. The header is read at most every 0.5 s, other documents when the header changes.

The skeleton of a version is a small map folder of a sample of the images, stored as documents and read by the ordinary
reader. It has the query side and decisions of every head, and the data that a calibration needs, without patches.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import hash_json
from tfa.core.text import format_command
from tfa.errors import BadCalibration, BadMap, StoreConflict
from tfa.maps.folder import reader, writer
from tfa.maps.folder.format import HEADER_FILE
from tfa.maps.state import DATABASE, MapState, NamedHead, tie_duplicates
from tfa.maps.store.header import StoreHeader, read_document, read_moments, read_reduction, read_store_header
from tfa.maps.store.rows import read_patches
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Collection, Store
from tfa.verification.patches import SourcedTokens

# --- skeleton ------------------------------------------------------------------------------------------------------

SKELETON_IMAGES = 4096  # maximum number of images in a skeleton
SAMPLE_BLOCK = 16  # consecutive photos per block of the sample, so that places keep their neighbors


def choose_sample(count: int, limit: int = SKELETON_IMAGES) -> np.ndarray:
    """Return the sample's indices: all images, or evenly spaced blocks of neighbors."""
    if count <= limit:
        return np.arange(count)
    blocks = limit // SAMPLE_BLOCK
    starts = np.linspace(0, count - SAMPLE_BLOCK, blocks).astype(np.int64)
    return (starts[:, None] + np.arange(SAMPLE_BLOCK)).ravel()


def write_skeleton(folder: Path, state: MapState) -> None:
    """Write a map without compact tokens, for `Publisher.finish`."""
    writer.write_new(folder, replace(state, compact=None, revision=1), overwrite=False)


def put_skeleton(store: Store, prefix: str, folder: Path) -> None:
    """Write every file of a map folder as a document, the header last."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    if HEADER_FILE not in names:
        raise BadMap(f"{folder} is not a map: it has no {HEADER_FILE}; pass a folder that tfa build wrote", folder)
    for name in sorted(names, key=lambda name: name == HEADER_FILE):
        store.put(f"{prefix}{name}", (folder / name).read_bytes())


def read_skeleton(store: Store, prefix: str) -> MapState:
    """Read a skeleton; its arrays are mapped from temporary files."""
    keys = store.keys(prefix)
    if f"{prefix}{HEADER_FILE}" not in keys:
        raise BadMap(f"{prefix}{HEADER_FILE} is missing in the store; rebuild the map")
    with tempfile.TemporaryDirectory(prefix="tfa-skeleton-", ignore_cleanup_errors=True) as place:
        folder = Path(place) / "skeleton.tfa"
        folder.mkdir()
        for key in keys:
            name = key.removeprefix(prefix)
            if Path(name).name == name:
                (folder / name).write_bytes(read_document(store, key))
        return reader.read_map(folder)  # mapped files stay readable after deletion


# --- versions and views --------------------------------------------------------------------------------------------

_LOOK_AGAIN = 0.5  # seconds between reads of the header


@dataclass(frozen=True)
class Version:
    """A collection and the head of its vectors."""

    head: NamedHead
    collection: Collection
    reduction: Reduction
    moments: Moments


@dataclass(frozen=True)
class MapView:
    """A map at one header."""

    header: StoreHeader
    content: bytes  # bytes of the header
    state: MapState  # skeleton with the active head
    patches: SourcedTokens | None
    versions: dict[str, Version]  # by head: the active one, and the previous one if it has the same images

    @property
    def active(self) -> Version:
        return self.versions[self.header.active]

    def chosen(self, calibration: str | None) -> Version:
        """Return the version of that head; None is the active one."""
        name = self.state.chosen(calibration).name
        if name not in self.versions:
            raise BadCalibration(
                f"head {name!r} is not active; a store holds vectors of one head, now {self.header.active!r}; "
                f"activate it with: {format_command('tfa', 'calibrate', 'URL', '--activate', name)}"
            )
        return self.versions[name]

    @cached_property
    def sample_ids(self) -> list[int]:
        return [record.id for record in self.state.images]


class Versions:
    """Reads views of a map and caches unchanged documents."""

    def __init__(self, store: Store, name: str, url: str, cached_bytes: int | None = None) -> None:
        self.store, self.name, self.url = store, name, url
        self._cached_bytes = cached_bytes
        self._lock = threading.Lock()
        self._view: MapView | None = None
        self._looked = 0.0
        self._cache: dict[str, Any] = {}  # content by document or collection

    def now(self, *, fresh: bool = False) -> MapView:
        """Return the current view; `fresh` always reads the header."""
        with self._lock:
            if self._view is not None and not fresh and time.monotonic() - self._looked < _LOOK_AGAIN:
                return self._view
            looked = time.monotonic()  # before reading the header, whose view lacks later edits
            self._view = self._read()
            self._looked = looked
            return self._view

    @property
    def last(self) -> MapView:
        """The last view, without a request."""
        return self._view or self.now()

    def keep_skeleton(self, header: StoreHeader, state: MapState) -> None:
        """Cache a skeleton that this process published."""
        with self._lock:
            self._cache[header.skeleton_folder] = _prepare_skeleton(replace(state, compact=None))

    def _read(self) -> MapView:
        before = None
        while True:
            header, content = read_store_header(self.store, self.name, self.url)
            if self._view is not None and content == self._view.content:
                return self._view
            try:
                return self._of(header, content)
            except (BadMap, StoreConflict):
                if content == before:  # otherwise it was replaced while it was read
                    raise
                before = content

    def _of(self, header: StoreHeader, content: bytes) -> MapView:
        kept: dict[str, Any] = {}

        def once(key: str, read: Any) -> Any:
            kept[key] = self._cache[key] if key in self._cache else read()
            return kept[key]

        folder = header.skeleton_folder
        skeleton = once(folder, lambda: _prepare_skeleton(read_skeleton(self.store, folder)))
        state = replace(skeleton, active=header.active, next_id=header.next_id, revision=header.revision)
        place = header.patches
        patches = None
        if place is not None:
            patches = once(place["prefix"], lambda: read_patches(self.store, place, self._cached_bytes))
        versions = {}
        before = header.before
        for one in (before, header):  # the newer version wins if both have the same head
            if one is None or (one is before and not _is_reusable(one, header, state)):
                continue
            head = state.chosen(one.active)
            collection = once(one.collection, lambda one=one: self._collection(one))
            reduction = once(one.reduction, lambda one=one: read_reduction(self.store, one.reduction))
            moments = once(one.moments, lambda one=one: read_moments(self.store, one.moments))
            width = sum(head.stored.scorer.rows.widths)
            if reduction.matrix.shape != (one.dims, width) or moments.first.shape != (one.dims,):
                raise BadMap(f"{self.url} has documents of other dimensions than its vectors; rebuild the map")
            versions[one.active] = Version(head, collection, reduction, moments)
        self._cache = kept
        return MapView(header, content, state, patches, versions)

    def _collection(self, header: StoreHeader) -> Collection:
        found = self.store.open(header.collection)
        if found.dimensions != header.dims:
            raise BadMap(
                f"{self.url}: the collection {found.name!r} has {found.dimensions} dimensions, must be {header.dims}; "
                "rebuild the map"
            )
        return found


def _prepare_skeleton(state: MapState) -> MapState:
    tied = tie_duplicates(state)
    for head in tied.heads:
        head.stored.scorer.prepare()
    return tied


def fingerprint_head(head: NamedHead) -> str:
    """Return a digest that differs between two calibrations of one name."""
    return hash_json([head.decisions, head.evidence, head.calibration])


def _is_reusable(before: StoreHeader, header: StoreHeader, state: MapState) -> bool:
    """Return True if the previous version has the same images and a head of `state`."""
    if before.edits != header.edits or before.dims != header.dims or before.active not in header.heads:
        return False
    return before.active == DATABASE or before.active_digest == fingerprint_head(state.chosen(before.active))

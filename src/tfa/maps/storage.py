"""Storage of a map's rows: in memory, usually mapped from a folder, or in a store.

A `Storage` returns snapshots that rank images, reads records, and applies edits. `MemoryStorage` holds all rows in this
process; `tfa.maps.store.storage.StoreStorage` reads the top candidates from a store.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfa.core.arrays import backend_for
from tfa.core.files import OpenFolder
from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec, StoreUnavailable
from tfa.maps.answer import Ranking
from tfa.maps.confidence import DatabaseScores, measure_reach
from tfa.maps.describe import compute_unseen_share, describe_map
from tfa.maps.folder import reader, writer
from tfa.maps.folder.format import HEADER_FILE, read_map_header
from tfa.maps.state import (
    DATABASE,
    MapState,
    NamedHead,
    append_images,
    reuse_prepared_arrays,
    share_first_files,
    tie_duplicates,
)
from tfa.maps.stored_head import StoredHead
from tfa.maps.upkeep import (
    discard_upload,
    drop_repeated_files,
    find_image_records,
    load_tokens,
    read_map_photo,
    write_upload,
)
from tfa.method.device_scorer import DeviceScorer, DeviceSearch
from tfa.method.evidence import z_scores
from tfa.online.sequence_filter import Motion, choose_motion, project_to_meters
from tfa.photos.token_cache import EncodedImages
from tfa.search.gallery import DAMAGED, ExactSearch
from tfa.search.reduced import ReducedSearch
from tfa.search.store import Where
from tfa.types import CalibrationReport, ImageRecord, MapInfo
from tfa.verification.patches import CompactTokens, SourcedTokens

if TYPE_CHECKING:
    from tfa.maps.map import Map

_log = getLogger("tfa.maps")
_PHOTOS_PER_SEARCH = 64  # photos searched at a time


class Snapshot(ABC):
    """A map at one revision; an edit makes another snapshot."""

    state: MapState  # heads, encoder and images; a map in a store has a sample of its images here

    @property
    @abstractmethod
    def patches(self) -> CompactTokens | SourcedTokens | None:
        """Stored patches for reranking, or None."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """Meters between images of one place (`tfa.maps.confidence`)."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of searchable images."""

    @abstractmethod
    def check_head(self, calibration: str | None) -> None:
        """Raise BadCalibration if a calibration cannot answer."""

    @abstractmethod
    def rank(self, calibration: str | None, tokens: Tokens, width: int, where: Where | None) -> Iterator[Ranking]:
        """Rank the top `width` images of each photo; photos without an admissible image are left out."""


@dataclass(frozen=True)
class SearchableHead:
    """A head with its searchable images, their gallery rows and a search index."""

    name: str
    stored: StoredHead
    images: Sequence[ImageRecord]
    rows: np.ndarray
    ids: np.ndarray  # ids of the images, ascending
    searcher: ExactSearch
    on_device: DeviceScorer | None = None  # None if queries are scored by numpy

    @classmethod
    def of(cls, head: NamedHead, images: Sequence[ImageRecord], rows: np.ndarray, device: str) -> SearchableHead:
        ids = np.array([image.id for image in images], np.int64)
        stored, galleries = head.stored, head.stored.scorer.rows
        if stored.reduced is not None:  # its few dimensions are searched on the CPU
            return cls(head.name, stored, images, rows, ids, ReducedSearch(galleries, ids, rows, stored.reduced))
        if (backend := backend_for(device, double=False)).torch_device is None:
            return cls(head.name, stored, images, rows, ids, ExactSearch(galleries, ids, rows))
        scorer = DeviceScorer(stored.scorer, backend)
        return cls(head.name, stored, images, rows, ids, DeviceSearch(scorer, ids, rows), scorer)

    @cached_property
    def image_scores(self) -> DatabaseScores:
        """Scores between the images."""
        return DatabaseScores(self.stored.scorer, self.rows, self.ids, self.searcher)

    def rank(self, tokens: Tokens, width: int, admitted: np.ndarray | None) -> Ranking:
        """Rank the top images of each photo among those `admitted`, `(m,)`; z-scores are over all images."""
        query_vectors = (self.on_device or self.stored.scorer).query_vectors
        starts = range(0, len(tokens), _PHOTOS_PER_SEARCH)
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # scores of damaged rows raise BadMap
                vectors = [query_vectors(tokens.select(slice(start, start + _PHOTOS_PER_SEARCH))) for start in starts]
                results = [self._search(block, width, admitted) for block in vectors]
        except np.linalg.LinAlgError:  # an eigendecomposition of NaN does not converge
            raise BadMap(DAMAGED) from None
        columns, scores, z = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        same = self.stored.scorer.duplicates
        return Ranking(
            photos=np.arange(len(tokens)), head=self.name, images=self.images, columns=columns, scores=scores,
            standardized=z, vectors=vectors, scorer=self.stored.scorer, rows=self.rows, image_scores=self.image_scores,
            # Duplicates share the patches of their first image, so that the first wins in reranking, too.
            patch_rows=self.rows if same is None else same[self.rows],
        )  # fmt: skip

    def _search(
        self, vectors: Any, width: int, admitted: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return columns, scores and z-scores of the top images of each query, `(q, c)` each."""
        result = self.searcher.search(vectors, width if admitted is None else len(self.images))
        columns, scores = np.searchsorted(self.ids, result.ids), result.scores
        if admitted is not None:  # all images were ranked, so every row admits equally many
            kept = admitted[columns]
            columns, scores = (table[kept].reshape(len(table), -1)[:, :width] for table in (columns, scores))
        z = z_scores(scores.astype(np.float64), result.mean[:, None], result.spread[:, None])
        return columns, scores, z


class MemorySnapshot(Snapshot):
    """A snapshot with all rows in this process."""

    def __init__(self, state: MapState, device: str = "cpu") -> None:
        self.state, self.device = tie_duplicates(state), device
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self.rows = np.array(rows, dtype=np.int64)  # gallery rows of `images`
        self.images = [state.images[row] for row in rows]
        self._heads: dict[str, SearchableHead] = {}
        self._motions: dict[float, Motion] = {}

    @property
    def patches(self) -> CompactTokens | None:
        return self.state.compact

    @cached_property
    def reach(self) -> float:
        return measure_reach(self.images)

    def __len__(self) -> int:
        return len(self.images)

    def check_head(self, calibration: str | None) -> None:
        self.state.chosen(calibration)

    def searchable(self, calibration: str | None) -> SearchableHead:
        """Return the head of that name (None: the active one) with its search index."""
        head = self.state.checked(calibration)
        if head.name not in self._heads:
            self._heads[head.name] = SearchableHead.of(head, self.images, self.rows, self.device)
        return self._heads[head.name]

    def rank(self, calibration: str | None, tokens: Tokens, width: int, where: Where | None) -> Iterator[Ranking]:
        admitted = self._admit(where)
        if len(tokens) and (len(self.images) if admitted is None else admitted.any()):
            yield self.searchable(calibration).rank(tokens, width, admitted)

    def _admit(self, where: Where | None) -> np.ndarray | None:
        """Return which images pass the filter, bool `(m,)`; None for all."""
        if where is None:
            return None
        if where.sessions and all(image.session is None for image in self.images):
            raise BadSpec(
                f"session {where.sessions[0]!r} not found: no image of this map has a session; "
                "set sessions with tfa add --session, or tfa merge"
            )
        return np.array([where.admits(_filter_payload(image)) for image in self.images], bool)

    def motion(self, reach: float) -> Motion:
        """Return the motion model of a camera in this map, cached; `reach` is the filter's."""
        if reach not in self._motions:
            self._motions[reach] = choose_motion(len(self.images), read_places(self.images), reach)
        return self._motions[reach]

    def prepare(self) -> None:
        """Pack quantized rows for fast queries, or only the reduced ones. Answers do not change."""
        checked = [self.state.checked(head.name) for head in self.state.heads]
        heads = {head.name: SearchableHead.of(head, self.images, self.rows, self.device) for head in checked}
        for head in checked:
            searcher = heads[head.name].searcher
            if isinstance(searcher, ReducedSearch):
                for side in head.stored.scorer.sides:
                    side.prepare()
            else:
                head.stored.scorer.prepare()
            searcher.prepare()
        self._heads = heads  # last, so that a failure changes nothing


def _filter_payload(image: ImageRecord) -> dict[str, Any]:
    """Return the fields of an image that a filter reads."""
    return {"session": image.session, "position": None if image.position is None else image.position.to_dict()}


def read_places(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """Return positions in meters, `(m, 2)`; None unless all images have a position of the same kind."""
    places = [record.position for record in images if record.position is not None]
    kinds = {place.is_global for place in places}
    if len(places) < len(images) or len(kinds) != 1:
        return None
    if kinds == {True}:
        degrees = np.array([[place.lat, place.lon] for place in places], np.float64)
        return project_to_meters(degrees[:, 0], degrees[:, 1])
    return np.array([[place.x, place.y] for place in places], np.float64)


# --- storages ------------------------------------------------------------------------------------------------------


class Storage(ABC):
    """Storage of a map's rows."""

    has_all_rows: ClassVar[bool]  # whether all rows are in memory, which tracking, refit, save and explain need
    removal_note: ClassVar[str]  # note after a removal
    refit_advice: ClassVar[str]  # advice after many additions

    path: Path | None = None  # folder of the map, if it has one

    @property
    @abstractmethod
    def name(self) -> str | None:
        """Name of the map; None if it is not saved."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Path or URL of the map, for messages."""

    @abstractmethod
    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """Return the current snapshot, at most half a second old unless `fresh`."""

    @property
    def last_seen(self) -> tuple[int, MapState]:
        """Number of images and state of the last snapshot, without a request."""
        snapshot = self.snapshot()
        return len(snapshot), snapshot.state

    @property
    @abstractmethod
    def version(self) -> str:
        """Text that changes with every edit, of the last snapshot."""

    def prepare(self) -> None:  # noqa: B027  # optional
        """Prepare for fast single queries, also after edits."""

    def use_device(self, device: str) -> None:  # noqa: B027  # a store computes scores itself
        """Score queries on this device."""

    # --- images --------------------------------------------------------------------------------------------------

    @abstractmethod
    def records(self) -> Iterator[ImageRecord]:
        """Iterate over the searchable images in the order they were added."""

    @abstractmethod
    def record(self, image_id: int) -> ImageRecord | None:
        """Return a searchable image by its id, or None."""

    @abstractmethod
    def find_digests(self, digests: Sequence[str]) -> dict[str, int]:
        """Return the id of each digest found; a searchable image takes precedence over a removed one still stored."""

    @abstractmethod
    def find_records(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        """Return the searchable images of these paths and ids. Raises UnknownImage."""

    @abstractmethod
    def compute_unseen_share(self) -> float:
        """Return the share of images that the head was not fitted on."""

    # --- photos --------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_photo(self, name: str, digest: str, content: bytes) -> str:
        """Store an uploaded photo with the map and return its path. Durable on return."""

    def discard_photos(self, paths: Sequence[str]) -> None:  # noqa: B027  # optional
        """Delete unused photos of `put_photo` after a failed edit."""

    @abstractmethod
    def read_photo(self, record: ImageRecord) -> bytes | None:
        """Read the photo of an image; None if it is missing or changed."""

    # --- edits ---------------------------------------------------------------------------------------------------

    def refresh(self, editing: Storage | None = None) -> Storage:
        """Return this storage, or a new one if another process changed the folder.

        `editing` is a branch whose edit will replace this storage, so its changes do not count.
        """
        return self

    def branch(self, *, saved: bool = True) -> Storage:
        """Return an up-to-date copy to edit while this one answers; it has no folder unless `saved`.

        A store needs no copy: its edits are atomic, and its snapshots do not change.
        """
        return self

    def select_new_paths(self, paths: Sequence[Path]) -> tuple[list[Path], int]:
        """Select photos that may be new by their paths, and count the others."""
        return drop_repeated_files(paths), 0

    def select_new_photos(self, encoded: EncodedImages) -> EncodedImages:
        """Select photos whose content is not in the map."""
        return encoded

    @abstractmethod
    def add(self, tokens: Tokens, records: Sequence[ImageRecord]) -> list[int]:
        """Add images and return their new ids; ids in `records` are ignored."""

    @abstractmethod
    def remove(self, records: Sequence[ImageRecord]) -> list[int]:
        """Remove images that `find_records` returned from the answers; return their ids."""

    @abstractmethod
    def relocate(self, move: Callable[[str], str], progress: Progress) -> None:
        """Change the path of every image to `move(path)`, in one step."""

    @abstractmethod
    def calibrate(
        self, place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
    ) -> CalibrationReport:
        """Add a calibration and activate it; `options` are fields of `CalibrateOptions`."""

    @abstractmethod
    def adopt_calibration(self, place_map: Map, other: MapState, name: str) -> None:
        """Copy a calibration from a branch of `place_map` and describe images that were added since."""

    @abstractmethod
    def activate(self, name: str, progress: Progress) -> str:
        """Activate the head of that name and return its name."""

    @abstractmethod
    def drop_calibration(self, name: str) -> None:
        """Delete a calibration; if it was active, the uncalibrated head answers."""

    # --- describe ------------------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, notes: Sequence[str]) -> MapInfo:
        """Describe the map."""

    @abstractmethod
    def make_sample(self) -> MemoryStorage:
        """Return the sample that the head was fitted on, in memory."""

    def close(self) -> None:  # noqa: B027  # optional
        """Close connections."""


class MemoryStorage(Storage):
    """A state in memory; if it has a folder, each edit is first written there in one atomic step."""

    has_all_rows = True
    removal_note = "removed photos no longer answer; to fit the head without them, run tfa refit"
    refit_advice = "refit with: tfa refit"

    def __init__(self, state: MapState, path: Path | None = None, facts: MapInfo | None = None) -> None:
        """Hold a state; `facts` describe the whole map if this is a sample of it."""
        self.path, self._facts, self._prepared, self._device = path, facts, False, "cpu"
        self._header: tuple[int, ...] | None = None  # identity of the header file last compared with this state
        self._unreadable = ""  # last read error of the folder, logged once
        self.replace_state(state)

    def replace_state(self, state: MapState) -> None:
        """Answer from this state."""
        self._snapshot = MemorySnapshot(state, self._device)
        if self._prepared:
            self._snapshot.prepare()

    def use_device(self, device: str) -> None:
        if device != self._device:
            self._device = device
            self.replace_state(self._snapshot.state)

    @property
    def name(self) -> str | None:
        return None if self.path is None else self.path.stem

    @property
    def location(self) -> str:
        return str(self.path or "MAP")

    def snapshot(self, *, fresh: bool = False) -> MemorySnapshot:
        return self._snapshot

    @property
    def version(self) -> str:
        return str(self._snapshot.state.digest)

    def prepare(self) -> None:
        self._prepared = True
        self._join_pieces()
        self._snapshot.prepare()

    def _join_pieces(self) -> None:
        """Reread the map after many small additions, which were joined on disk."""
        pieces = max(len(term.gallery.chunks) for term in self._snapshot.state.head.scorer.terms)
        if self.path is None or pieces <= writer.MAX_SEGMENTS:
            return
        joined = self._read(self.path)
        if joined.version == self.version:  # otherwise another process edited the map
            self._snapshot = joined._snapshot

    def refresh(self, editing: Storage | None = None) -> MemoryStorage:
        """Compare with the header on disk, which costs one `stat` if the file is unchanged.

        An unreadable map, such as one being copied, is logged and checked again by the next call.
        """
        if self.path is None or (header := _identify_header(self.path)) == self._header:
            return self
        try:
            digest = read_map_header(self.path)["digest"]  # after `header`, so that later edits are noticed
            if editing is not None and digest == editing.version:
                return self
            fresh = self if digest == self.version else self._read(self.path)
        except (BadMap, OSError) as error:
            _identify_header(self.path)  # raises if the folder was removed
            if str(error) != self._unreadable:
                revision = self._snapshot.state.revision
                _log.warning("cannot read %s on disk, still serving revision %d: %s", self.name, revision, error)
            self._unreadable = str(error)
            return self
        fresh._header, fresh._unreadable = header, ""
        return fresh

    def branch(self, *, saved: bool = True) -> MemoryStorage:
        path = self.path if saved else None
        if path is not None and read_map_header(path)["digest"] != self.version:
            return self._read(path)
        return MemoryStorage(self._snapshot.state, path)

    def _read(self, path: Path) -> MemoryStorage:
        """Read the map on disk and reuse rows that are packed already."""
        state, older = reader.read_map(path), self._snapshot.state
        return MemoryStorage(reuse_prepared_arrays(state, older) if share_first_files(state, older) else state, path)

    def records(self) -> Iterator[ImageRecord]:
        return iter(self._snapshot.images)

    def record(self, image_id: int) -> ImageRecord | None:
        return next((one for one in self._snapshot.images if one.id == image_id), None)

    def find_digests(self, digests: Sequence[str]) -> dict[str, int]:
        ids = {one.digest: one.id for one in (*self._snapshot.state.images, *self._snapshot.images)}
        return {digest: ids[digest] for digest in digests if digest in ids}

    def find_records(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        return find_image_records(self._snapshot.images, photos)

    def compute_unseen_share(self) -> float:
        return compute_unseen_share(self._snapshot.images)

    def select_new_paths(self, paths: Sequence[Path]) -> tuple[list[Path], int]:
        names = {record.path for record in self._snapshot.images}
        fresh = [path for path in drop_repeated_files(paths) if str(path.resolve()) not in names]
        return fresh, len(paths) - len(fresh)

    def put_photo(self, name: str, digest: str, content: bytes) -> str:
        assert self.path is not None, "photos are uploaded to a saved map"
        return str(write_upload(self.path, name, digest, content).resolve())

    def discard_photos(self, paths: Sequence[str]) -> None:
        names = {record.path for record in self._snapshot.state.images}  # including removed images
        for path in paths:
            if self.path is not None and path not in names:
                discard_upload(self.path, Path(path))

    def read_photo(self, record: ImageRecord) -> bytes | None:
        return read_map_photo(record, self.path)

    # --- edits ---------------------------------------------------------------------------------------------------

    def commit(self, state: MapState, write: Callable[[OpenFolder, MapState], MapState]) -> None:
        """Replace the state by its next revision, on disk first if there is a folder.

        `write` is the function of `maps.folder.writer` for the change. Raises BadMap, and changes nothing, if another
        process locks or has changed the folder.
        """
        before = self._snapshot.state.digest
        held = nullcontext(None) if self.path is None else writer.hold_for_edit(self.path, before)
        with held as folder:
            if folder is not None:
                state = write(folder, writer.number_revision(folder, state))
        self.replace_state(state)

    def save(self, path: Path, overwrite: bool) -> None:
        """Write the map to a folder; later edits are written there, too."""
        self.replace_state(writer.write_new(path, self._snapshot.state, overwrite=overwrite))
        self.path = path

    def add(self, tokens: Tokens, records: Sequence[ImageRecord]) -> list[int]:
        state = self._snapshot.state
        numbered = [replace(record, id=state.next_id + at) for at, record in enumerate(records)]
        self.commit(append_images(state, tokens, numbered), writer.write_addition)
        return [record.id for record in numbered]

    def remove(self, records: Sequence[ImageRecord]) -> list[int]:
        state, ids = self._snapshot.state, [record.id for record in records]
        # Their rows stay, because the fitted geometry may refer to them.
        self.commit(state.changed(removed=state.removed.union(ids)), writer.commit)
        return ids

    def relocate(self, move: Callable[[str], str], progress: Progress) -> None:
        state = self._snapshot.state
        root = None if state.photo_root is None else move(state.photo_root)
        images = [replace(record, path=move(record.path)) for record in state.images]
        self.commit(state.changed(images=images, photo_root=root), writer.write_all)

    def calibrate(
        self, place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
    ) -> CalibrationReport:
        from tfa.maps.calibrate import calibrate_map

        fresh, report = calibrate_map(place_map, photos, options, skip_bad, progress)
        self.commit(fresh, writer.write_calibration)
        return report

    def activate(self, name: str, progress: Progress) -> str:
        before = self._snapshot.state
        state = before.with_active(name)
        if state is not before:
            self.commit(state, writer.commit)
        return state.active

    def drop_calibration(self, name: str) -> None:
        self.commit(self._snapshot.state.without_calibration(name), writer.commit)

    def adopt_calibration(self, place_map: Map, other: MapState, name: str) -> None:
        state = self._snapshot.state
        gone = {*range(state.next_id)} - {record.id for record in state.images}  # removed images, dropped meanwhile
        rows = np.array([row for row, one in enumerate(other.images) if one.id not in gone], np.int64)
        head, images = other.chosen(name).keeping(rows), [other.images[row] for row in rows]
        pairs = zip(state.images, images, strict=False)
        alike = len(images) <= len(state.images) and all((a.id, a.digest) == (b.id, b.digest) for a, b in pairs)
        if state.head_digest(DATABASE) != other.head_digest(DATABASE) or not alike:
            raise BadMap("the map was refitted during the calibration; run the calibration again")
        if head.stored.in_space and state.spaces is not None:
            head = head.over(state.spaces)
        elif added := state.images[len(images) :]:
            head = head.grown(load_tokens(place_map, added))
        self.commit(state.with_calibration(head), writer.write_calibration)

    # --- describe ------------------------------------------------------------------------------------------------

    def describe(self, notes: Sequence[str]) -> MapInfo:
        snapshot, facts = self._snapshot, self._facts
        if facts is None:
            return describe_map(snapshot.state, snapshot.images, self.path, notes=list(notes))
        if len(snapshot) >= facts.images:
            return facts
        note = f"near duplicates, hubs and isolated images are from a sample of {len(snapshot):,} images"
        return replace(facts, notes=[*facts.notes, note])

    def make_sample(self) -> MemoryStorage:
        return self


def _identify_header(folder: Path) -> tuple[int, ...]:
    """Identify a header file by its stat, since each header is a new file. Raises StoreUnavailable if it is gone."""
    try:
        about = os.stat(folder / HEADER_FILE)
    except (FileNotFoundError, NotADirectoryError):
        text = "was moved or removed while it was served; put it back, or start the service with another map"
        raise StoreUnavailable(f"{folder} {text}", folder) from None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

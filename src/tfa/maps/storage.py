"""Where the rows of a map live, and nothing else: in memory, usually mapped from a folder, or in a store.

A `Storage` gives snapshots that rank images for queries, reads records, and takes edits. `MemoryStorage` holds every
row in this process; `tfa.maps.store.storage.StoreStorage` reads the best rows from a store.
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
_PHOTOS_PER_SEARCH = 64  # photos searched at a time, however many are given


# --- what a map is at one moment -----------------------------------------------------------------------------------


class Snapshot(ABC):
    """A map at one moment; an edit makes another snapshot."""

    state: MapState  # heads and encoder; of a map in a store with a sample of the images

    @property
    @abstractmethod
    def patches(self) -> CompactTokens | SourcedTokens | None:
        """Patches for reranking; None if none are stored."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """Meters between images of one place (`tfa.maps.confidence`)."""

    @abstractmethod
    def __len__(self) -> int:
        """Images that answer."""

    @abstractmethod
    def check_head(self, calibration: str | None) -> None:
        """Refuse a calibration that cannot answer."""

    @abstractmethod
    def rank(self, calibration: str | None, tokens: Tokens, width: int, where: Where | None) -> Iterator[Ranking]:
        """Rank the best `width` images of each photo; photos that no image may answer are in no ranking."""


@dataclass(frozen=True)
class SearchableHead:
    """A head, the images that answer, the gallery rows they stand in, and what searches them."""

    name: str
    stored: StoredHead
    images: Sequence[ImageRecord]
    rows: np.ndarray
    ids: np.ndarray  # of the images: they grow along the map
    searcher: ExactSearch

    @classmethod
    def of(cls, head: NamedHead, images: Sequence[ImageRecord], rows: np.ndarray) -> SearchableHead:
        """Search the rows where they lie, by the reduced ones if the head has any."""
        ids = np.array([image.id for image in images], np.int64)
        stored, galleries = head.stored, head.stored.scorer.rows
        if stored.reduced is None:
            return cls(head.name, stored, images, rows, ids, ExactSearch(galleries, ids, rows))
        return cls(head.name, stored, images, rows, ids, ReducedSearch(galleries, ids, rows, stored.reduced))

    @cached_property
    def image_scores(self) -> DatabaseScores:
        """What the images score with each other."""
        return DatabaseScores(self.stored.scorer, self.rows, self.ids, self.searcher)

    def rank(self, tokens: Tokens, width: int, admitted: np.ndarray | None) -> Ranking:
        """Rank the best images of each photo, among those `admitted` `m`; z-scores are taken over all images."""
        starts, query_vectors = range(0, len(tokens), _PHOTOS_PER_SEARCH), self.stored.scorer.query_vectors
        try:
            vectors = [query_vectors(tokens.select(slice(start, start + _PHOTOS_PER_SEARCH))) for start in starts]
        except np.linalg.LinAlgError:  # an eigendecomposition of what are no numbers does not converge
            raise BadMap(DAMAGED) from None
        results = [self._search(block, width, admitted) for block in vectors]
        columns, scores, z = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        same = self.stored.scorer.duplicates
        return Ranking(
            photos=np.arange(len(tokens)), head=self.name, images=self.images, columns=columns, scores=scores,
            standardised=z, vectors=vectors, scorer=self.stored.scorer, rows=self.rows, image_scores=self.image_scores,
            # Photos of one content are compared as one, so that the first of them wins here too.
            patch_rows=self.rows if same is None else same[self.rows],
        )  # fmt: skip

    def _search(
        self, vectors: Any, width: int, admitted: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best images of each query `q c`: which they are, their scores and their z-scores."""
        result = self.searcher.search(vectors, width if admitted is None else len(self.images))
        columns, scores = np.searchsorted(self.ids, result.ids), result.scores
        if admitted is not None:  # as many in every row: all are there
            kept = admitted[columns]
            columns, scores = (table[kept].reshape(len(table), -1)[:, :width] for table in (columns, scores))
        z = z_scores(scores.astype(np.float64), result.mean[:, None], result.spread[:, None])
        return columns, scores, z


class MemorySnapshot(Snapshot):
    """A state whose rows are all in this process."""

    def __init__(self, state: MapState) -> None:
        self.state = tie_duplicates(state)
        rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
        self.rows = np.array(rows, dtype=np.int64)  # of the gallery: those of `images`, in their order
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
        """The head of that name (None: the active one) with what searches its images."""
        head = self.state.chosen(calibration)
        if head.name not in self._heads:
            self._heads[head.name] = SearchableHead.of(head, self.images, self.rows)
        return self._heads[head.name]

    def rank(self, calibration: str | None, tokens: Tokens, width: int, where: Where | None) -> Iterator[Ranking]:
        admitted = self._admit(where)
        if len(tokens) and (len(self.images) if admitted is None else admitted.any()):
            yield self.searchable(calibration).rank(tokens, width, admitted)

    def _admit(self, where: Where | None) -> np.ndarray | None:
        """Which images may answer, bool `m`; None if all."""
        if where is None:
            return None
        if where.sessions and all(image.session is None for image in self.images):
            raise BadSpec(
                f"there is no session {where.sessions[0]!r}: no image of the map has one; "
                "photos get theirs from tfa add --session, or from tfa merge"
            )
        return np.array([where.admits(_filter_payload(image)) for image in self.images], bool)

    def motion(self, reach: float) -> Motion:
        """How a camera moves along this map; made once for all that are followed. `reach` is that of the filter."""
        if reach not in self._motions:
            self._motions[reach] = choose_map_motion(self.images, reach)
        return self._motions[reach]

    def prepare(self) -> None:
        """Pack rows of integers, of reduced rows those only; answers stay as they are."""
        heads = {head.name: SearchableHead.of(head, self.images, self.rows) for head in self.state.heads}
        for head in self.state.heads:
            searcher = heads[head.name].searcher
            if isinstance(searcher, ReducedSearch):
                for side in head.stored.scorer.sides:
                    side.prepare()
            else:
                head.stored.scorer.prepare()
            searcher.prepare()
        self._heads = heads  # last: a failure leaves what answers as it is


def _filter_payload(image: ImageRecord) -> dict[str, Any]:
    """Return the values of an image that a filter looks at."""
    return {"session": image.session, "position": None if image.position is None else image.position.to_dict()}


def choose_map_motion(images: Sequence[ImageRecord], reach: float) -> Motion:
    """Move by the order of the images; by position if all have one of the same kind and are in no driving order."""
    return choose_motion(len(images), read_places(images), reach)


def read_places(images: Sequence[ImageRecord]) -> np.ndarray | None:
    """Read the positions of the images, `m 2` in meters; None unless every one has a position of the same kind."""
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
    """Where the rows of a map live."""

    # Is every row in this process? If not, a map is not followed, refitted, saved or explained.
    has_all_rows: ClassVar[bool]
    removal_note: ClassVar[str]  # what a removal leaves behind
    refit_advice: ClassVar[str]  # how a map is brought up to date with its images

    path: Path | None = None  # folder of the map, if it has one

    @property
    @abstractmethod
    def name(self) -> str | None:
        """Name of the map; None if it is not saved."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The map in advice: its path or its URL."""

    @abstractmethod
    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """The map as it is, or was a moment ago; `fresh` looks whether others changed it."""

    @property
    def last_seen(self) -> tuple[int, MapState]:
        """Images and state as they were last looked at."""
        snapshot = self.snapshot()
        return len(snapshot), snapshot.state

    @property
    @abstractmethod
    def version(self) -> str:
        """Text that differs after every edit, as it was last looked at."""

    def prepare(self) -> None:  # noqa: B027  # optional
        """Make ready for many single queries, also after edits."""

    # --- images --------------------------------------------------------------------------------------------------

    @abstractmethod
    def records(self) -> Iterator[ImageRecord]:
        """All images that answer, in the order they came in."""

    @abstractmethod
    def record(self, image_id: int) -> ImageRecord | None:
        """An image that answers, by its id."""

    @abstractmethod
    def find_digests(self, digests: Sequence[str]) -> dict[str, int]:
        """Ids of the images of these contents, by digest; removed ones that are still stored among them."""

    @abstractmethod
    def find_records(self, photos: Sequence[str | Path | int]) -> list[ImageRecord]:
        """The images that answer of these paths and ids."""

    @abstractmethod
    def compute_unseen_share(self) -> float:
        """Share of the images that the head was not fitted on."""

    # --- photos --------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_photo(self, name: str, digest: str, content: bytes) -> str:
        """Store an uploaded photo with the map; returns the path of its image. It is durable on return."""

    def discard_photos(self, paths: Sequence[str]) -> None:  # noqa: B027  # optional
        """Delete photos of `put_photo` that no image names, after an edit that failed."""

    @abstractmethod
    def read_photo(self, record: ImageRecord) -> bytes | None:
        """Read the file that an image was made of; None if it is not there, or is another one now."""

    # --- edits ---------------------------------------------------------------------------------------------------

    def refresh(self, editing: Storage | None = None) -> Storage:
        """Return the map as other processes left it: this storage unless a folder was changed.

        `editing` is a branch whose edit will replace this storage: it is not taken for a change.
        """
        return self

    def branch(self, *, saved: bool = True) -> Storage:
        """Return a copy to edit while this one answers, up to date, without a folder unless `saved`.

        A store needs no copy: each of its edits is one atomic step, and its snapshots stay as they are.
        """
        return self

    def select_new_paths(self, paths: Sequence[Path]) -> tuple[list[Path], int]:
        """Choose the photos that may be new by their paths, and count the others."""
        return drop_repeated_files(paths), 0

    def select_new_photos(self, encoded: EncodedImages) -> EncodedImages:
        """Leave out photos whose content the map holds."""
        return encoded

    @abstractmethod
    def add(self, tokens: Tokens, records: Sequence[ImageRecord]) -> list[int]:
        """Add images, whose ids in `records` do not count; returns the new ids."""

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> list[int]:
        """Take images out of the answers; returns the ids of those that are gone."""

    @abstractmethod
    def calibrate(
        self, place_map: Map, photos: Any, options: Mapping[str, Any], skip_bad: bool | None, progress: Progress
    ) -> CalibrationReport:
        """Add a calibration and let it answer; `options` are fields of `CalibrateOptions`."""

    @abstractmethod
    def adopt_calibration(self, place_map: Map, other: MapState, name: str) -> None:
        """Take over a calibration of a branch of this map, at this version or an earlier one.

        Images that were added since are described by it now; `place_map` is the map that this storage belongs to.
        """

    @abstractmethod
    def activate(self, name: str, progress: Progress) -> str:
        """Let the head of that name answer; returns its name."""

    @abstractmethod
    def drop_calibration(self, name: str) -> None:
        """Delete a calibration; if it was the active one, the database-only head answers."""

    # --- describe ------------------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, notes: Sequence[str]) -> MapInfo:
        """Describe the map."""

    @abstractmethod
    def make_sample(self) -> MemoryStorage:
        """The images that decisions were judged on, as a map in memory."""

    def close(self) -> None:  # noqa: B027  # optional
        """Close connections."""


class MemoryStorage(Storage):
    """A state in memory; if it has a folder, edits are written there first, each in one atomic step."""

    has_all_rows = True
    removal_note = "removed photos no longer answer; their descriptors stay in the map until tfa refit"
    refit_advice = "fit again with: tfa refit"

    def __init__(self, state: MapState, path: Path | None = None, facts: MapInfo | None = None) -> None:
        """`facts` describe the whole map if this is a sample of it."""
        self.path, self._facts, self._prepared = path, facts, False
        self._header: tuple[int, ...] | None = None  # the header file that this state was last compared with
        self._unreadable = ""  # the last error of reading the folder, which is logged once
        self.replace_state(state)

    def replace_state(self, state: MapState) -> None:
        """Answer by this state from now on."""
        self._snapshot = MemorySnapshot(state)
        if self._prepared:
            self._snapshot.prepare()

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
        """Read the map again once it has grown by many small pieces: on disk they were joined."""
        pieces = max(len(term.gallery.chunks) for term in self._snapshot.state.head.scorer.terms)
        if self.path is None or pieces <= writer.MAX_SEGMENTS:
            return
        joined = self._read(self.path)
        if joined.version == self.version:  # else another process was faster
            self._snapshot = joined._snapshot

    def refresh(self, editing: Storage | None = None) -> MemoryStorage:
        """Compare with the header on disk, which costs one `stat` while it is the same file.

        A map that is not whole there, such as one being copied, is logged and compared again by the next call.
        """
        if self.path is None or (header := _identify_header(self.path)) == self._header:
            return self
        try:
            digest = read_map_header(self.path)["digest"]  # after `header`: what is written later is another file
            if editing is not None and digest == editing.version:
                return self
            fresh = self if digest == self.version else self._read(self.path)
        except (BadMap, OSError) as error:
            _identify_header(self.path)  # refuses if it was removed meanwhile
            if str(error) != self._unreadable:
                revision = self._snapshot.state.revision
                _log.warning("%s on disk cannot be read, revision %d answers: %s", self.name, revision, error)
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
        """Read the map on disk; rows that this storage has packed for queries are reused."""
        state, older = reader.read_map(path), self._snapshot.state
        return MemoryStorage(reuse_prepared_arrays(state, older) if share_first_files(state, older) else state, path)

    def records(self) -> Iterator[ImageRecord]:
        return iter(self._snapshot.images)

    def record(self, image_id: int) -> ImageRecord | None:
        return next((one for one in self._snapshot.images if one.id == image_id), None)

    def find_digests(self, digests: Sequence[str]) -> dict[str, int]:
        ids = {record.digest: record.id for record in self._snapshot.state.images}
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
        names = {record.path for record in self._snapshot.state.images}  # a removed image may still be stored there
        for path in paths:
            if self.path is not None and path not in names:
                discard_upload(self.path, Path(path))

    def read_photo(self, record: ImageRecord) -> bytes | None:
        return read_map_photo(record, self.path)

    # --- edits ---------------------------------------------------------------------------------------------------

    def commit(self, state: MapState, write: Callable[[OpenFolder, MapState], MapState]) -> None:
        """Make `state`, the next revision of this map's own, the map's; on disk first if it has a folder.

        `write` is the function of `maps.folder.writer` for what changed. Nothing is written, and the map stays as it
        is, if another process holds the folder or has changed it.
        """
        before = self._snapshot.state.digest
        held = nullcontext(None) if self.path is None else writer.hold_for_edit(self.path, before)
        with held as folder:
            if folder is not None:
                state = write(folder, writer.number_revision(folder, state))
        self.replace_state(state)

    def save(self, path: Path, overwrite: bool) -> None:
        """Write the map as a folder; from then on edits are written there too."""
        self.replace_state(writer.write_new(path, self._snapshot.state, overwrite=overwrite))
        self.path = path

    def add(self, tokens: Tokens, records: Sequence[ImageRecord]) -> list[int]:
        state = self._snapshot.state
        numbered = [replace(record, id=state.next_id + at) for at, record in enumerate(records)]
        self.commit(append_images(state, tokens, numbered), writer.write_addition)
        return [record.id for record in numbered]

    def remove(self, ids: Sequence[int]) -> list[int]:
        state = self._snapshot.state
        # Their rows stay: they may carry the geometry.
        self.commit(state.changed(removed=state.removed.union(ids)), writer.commit)
        return list(ids)

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
        head, images = other.chosen(name), other.images
        pairs = zip(state.images, images, strict=False)
        alike = len(images) <= len(state.images) and all((a.id, a.digest) == (b.id, b.digest) for a, b in pairs)
        if state.head_digest(DATABASE) != other.head_digest(DATABASE) or not alike:
            raise BadMap("the map was fitted again while it was calibrated; calibrate it again")
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
        note = f"near duplicates, hubs and lonely images are those of a sample of {len(snapshot):,}"
        return replace(facts, notes=[*facts.notes, note])

    def make_sample(self) -> MemoryStorage:
        return self


def _identify_header(folder: Path) -> tuple[int, ...]:
    """Tell one header from the next without reading it: each is a new file. Refused if there is none."""
    try:
        about = os.stat(folder / HEADER_FILE)
    except (FileNotFoundError, NotADirectoryError):
        sentence = "is not there any more: it was moved or removed while it was served"
        remedy = "put it back, or start the service with another map"
        raise StoreUnavailable(f"{folder} {sentence}; {remedy}", folder) from None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

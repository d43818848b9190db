"""A served map: queries read an immutable map, and an edit creates the next one and swaps it in.

The map's `Storage` holds its rows; `has_all_rows` tells whether cameras and explanations are possible.
"""

from __future__ import annotations

import errno
import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tfa.core.progress import Progress
from tfa.core.tokens import Tokens
from tfa.encoders import Encoder
from tfa.errors import BadImage, BadMap, BadTokens, TfaError
from tfa.explain.why import explain_score
from tfa.maps import PlaceMap
from tfa.maps.storage import Storage
from tfa.maps.upkeep import UPLOADS
from tfa.photos.find_positions import read_photo_position
from tfa.photos.images import as_rgb
from tfa.service.bodies import Upload
from tfa.service.cameras import ANONYMOUS, Confirmations, MapCameras
from tfa.service.decoder_process import FIT
from tfa.service.decoders import FairTurns, SharedEncoder, shared_decoders
from tfa.service.middleware import Metrics
from tfa.service.problems import Refused, refuse_busy
from tfa.service.query_queue import QueryQueue
from tfa.service.settings import PILLOW_MOST, ServiceSettings
from tfa.types import (
    CalibrateOptions,
    CalibrationReport,
    EditReport,
    EncoderOptions,
    ImageRecord,
    Position,
    QueryOptions,
)

_T = TypeVar("_T")
_log = getLogger("tfa.service")
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)  # errors of a read-only folder
_ENCODING = EncoderOptions(batch_size=1, skip_bad=True)  # for calibrations; single photos let queries in between


@dataclass(frozen=True)
class NewPhoto:
    """A decoded upload that can be added."""

    name: str  # file name to store it under
    content: bytes
    image: Image.Image
    position: Position | None = None


def encode_uploads(images: Sequence[Image.Image], encoder: Encoder) -> Tokens:
    """Encode photos one by one, so that queries are served in between."""
    encoded = [encoder.encode([image]) for image in images]
    patches = np.concatenate([patches for patches, _ in encoded])
    cls = None if encoded[0][1] is None else np.concatenate([token for _, token in encoded if token is not None])
    if not np.isfinite(patches).all():
        raise BadTokens(f"{encoder.id} returns values that are not finite for one of these photos; remove that photo")
    return Tokens(patches, cls, grid=encoder.grid)


class LiveMap:
    """One served map. Queries never wait for edits; edits run one at a time in the map's editing thread.

    `current` is the present map. An edit works on a branch of the storage, writes to disk, and only then replaces
    `current`, so callers that need a consistent state keep a reference. A map in a store stays the same object.
    """

    def __init__(
        self, place_map: PlaceMap, encoder: SharedEncoder, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        storage = place_map.storage
        if storage.name is None:
            raise BadMap("cannot serve an unsaved map; save it first")
        self.name, self.encoder = storage.name, encoder
        self.path_name = self.name if storage.path is None else storage.path.name
        self.current = PlaceMap(storage.branch(), encoder, EncoderOptions(cache=place_map.cache))
        self.current.notes = list(place_map.notes)
        self._settings, self._metrics = settings, metrics
        self._looking = threading.Lock()  # held to replace `current`
        self._edited: Storage | None = None  # branch of the running edit
        owners = [key.name for key in settings.all_api_keys] + [ANONYMOUS] * (not settings.closed)
        has_rows = storage.has_all_rows
        self.cameras = MapCameras(self.current, settings.cameras, owners) if settings.cameras and has_rows else None
        self.confirmations = Confirmations(self.current) if has_rows else None
        confirm = (lambda answer: None) if self.confirmations is None else self.confirmations.confirm
        self.queries = QueryQueue(
            self.name, lambda: self.current_map, encoder, settings, metrics, self.cameras, confirm
        )
        # Places for the running batch and the next one; one caller gets at most three quarters.
        self.turns = FairTurns(2 * settings.batch_size, settings.batch_size * 3 // 2, settings.max_waiting)
        self.edit_turns = FairTurns(2, 1, settings.max_waiting)
        self._editor = ThreadPoolExecutor(1, thread_name_prefix=f"tfa-edits-{self.name}")
        self._lock, self._closed = threading.Lock(), False
        metrics.queue_length.labels(self.name).set_function(lambda: len(self.queries) + len(self.turns))
        metrics.map_images.labels(self.name).set_function(lambda: self.size[0])
        metrics.map_revision.labels(self.name).set_function(lambda: self.size[1])
        metrics.cameras.labels(self.name).set_function(lambda: 0 if self.cameras is None else len(self.cameras))
        # Last computed evidence and report, and the map version they belong to.
        self.report_cache: tuple[str, dict[str, dict[str, Any]]] | None = None

    # --- the map ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Replace `current` if another process changed the folder; refused if it is gone. Reads no store."""
        with self._looking:
            storage = self.current.storage.refresh(self._edited)
            if storage is not self.current.storage:
                self._publish(self._prepare(self._open(storage)))
                _log.info("loaded revision %d of %s, written by another process", self.size[1], self.name)

    @property
    def current_map(self) -> PlaceMap:
        """The present map; reading a store may take a moment."""
        self.look()
        self._check_encoder(self.current)
        return self.current

    @property
    def trouble(self) -> str | None:
        """Reason why the map cannot answer now; None if it can. May contact the store."""
        try:
            self.current_map  # noqa: B018  # reads the header
        except TfaError as error:
            return error.public
        return None

    @property
    def size(self) -> tuple[int, int]:
        """Images and revision, as last read; reads no store."""
        count, state = self.current.storage.last_seen
        return count, state.revision

    def prepare(self) -> None:
        """Pack the map for queries, in turn with edits, so that the first queries are not slow."""
        self._editor.submit(lambda: self.current.prepare()).result()

    def check(self, options: QueryOptions) -> None:
        """Refuse invalid options before a photo is decoded. Reads no store."""
        if self.current.storage.has_all_rows:
            self.current.check(options)

    def refuse_cameras(self) -> Refused:
        """Return the refusal of a query that names a camera."""
        reason = "cameras are turned off in this service; start it with --cameras N, or"
        if not self.current.storage.has_all_rows:
            why = "adaptation needs the scores of all images, and a store returns only the best"
            reason = f"{self.name} is in a store and has no cameras: {why};"
        return Refused(409, f"{reason} query without a camera")

    def explain(self, tokens: Tokens, record: ImageRecord, calibration: str | None) -> dict[str, Any]:
        if not self.current.storage.has_all_rows:
            raise Refused(501, f"{self.name} is in a store, which has no tokens to explain matches; use a map folder")
        image = None
        if self.is_uploaded(record):  # decode a client's file in a confined process, as when it was added
            upload = Upload(record.path, self.read_photo(record))
            photo = shared_decoders().decode(upload, self._settings, self.encoder.reads)
            image = encode_uploads([self.encoder.prepare(photo.image)], self.encoder)
        return explain_score(self.current, tokens, record.id, calibration, image)

    def _open(self, storage: Storage) -> PlaceMap:
        """Open the map in this storage; refused if it needs another encoder."""
        opened = self.current.with_storage(storage)
        opened.notes = list(self.current.notes)
        self._check_encoder(opened)
        return opened

    def _check_encoder(self, place_map: PlaceMap) -> None:
        if place_map.state.encoder["fingerprint"] != self.encoder.model:
            raise BadMap(f"{self.path_name} was rebuilt with another encoder; restart the service")

    def _prepare(self, place_map: PlaceMap) -> PlaceMap:
        """Pack a map for queries. The edit is already on disk, so a failure is only logged."""
        try:
            place_map.prepare()  # unchanged rows are packed already
        except Exception:
            revision = place_map.state.revision
            _log.exception("cannot pack revision %d of %s: queries may be slower", revision, self.name)
        return place_map

    def _publish(self, place_map: PlaceMap) -> None:
        """Use this map for queries from now on."""
        self.current = place_map
        if self.cameras is not None:
            self.cameras.publish(place_map)
        if self.confirmations is not None:
            self.confirmations.publish(place_map)

    # --- images ----------------------------------------------------------------------------------------------------

    def images(self, offset: int, limit: int, name_filter: str) -> tuple[int, list[ImageRecord]]:
        """Count the images with `name_filter` in their file name, ignoring case, and return some of them."""
        name_filter, shown, matching = name_filter.casefold(), list[ImageRecord](), 0
        for record in self.current.records():
            if name_filter and name_filter not in Path(record.path).name.casefold():
                continue
            if offset <= matching < offset + limit:
                shown.append(record)
            matching += 1
            if not name_filter and matching >= offset + limit:
                return self.size[0], shown
        return matching, shown

    def read_photo(self, record: ImageRecord) -> bytes:
        """Read the photo file of an image; refused if it is missing."""
        content = self.current.storage.read_photo(record)
        if content is None:
            name = Path(record.path).name
            sentence = f"photo file of image {record.id} ({name}) not found where it was added from"
            raise Refused(404, f"{sentence}; queries work without it")
        return content

    def is_uploaded(self, record: ImageRecord) -> bool:
        """Return True if the photo of an image was sent by a client and is in the map."""
        folder, path = self.current.storage.path, Path(record.path)
        return path.is_relative_to((folder / UPLOADS).resolve()) if folder is not None else not path.is_absolute()

    def last_confirmed(self, image: ImageRecord) -> int | None:
        """Return when a sure answer last named the image, in seconds since 1970; None if unknown."""
        return None if self.confirmations is None else self.confirmations.last_of(image)

    # --- edits -----------------------------------------------------------------------------------------------------

    def edit(self, kind: str, change: Callable[[PlaceMap], _T], since: str | None = None) -> Future[tuple[_T, int]]:
        """Queue `change`; the result is its return value and the new revision.

        The edit is counted if the version differs from `since` [default: the version before the edit].
        """
        with self._lock:
            if self._closed:
                raise refuse_busy("the service is stopping; retry the edit when it is back")
            return self._editor.submit(self._edit, kind, change, since)

    def _edit(self, kind: str, change: Callable[[PlaceMap], _T], since: str | None) -> tuple[_T, int]:
        try:
            working = self._open(self.current.storage.branch())
            self._edited = storage = working.storage
            before = since or storage.version
            result = change(working)
            if storage.version != before:
                self._metrics.edits.labels(self.name, kind).inc()
            if storage.version != self.current.storage.version:
                self._prepare(working)
                with self._looking:
                    self._publish(working)
            return result, storage.last_seen[1].revision
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            _log.warning("cannot write the edit '%s' of %s: %s", kind, self.name, error)
            sentence = f"cannot write to the folder of {self.name} ({error.strerror}); nothing was changed"
            raise Refused(507, f"{sentence}. Queries still work") from error
        finally:
            self._edited = None  # an edit that was written but not published is read from disk

    def add(self, photos: Sequence[NewPhoto], session: str | None, place_map: PlaceMap) -> EditReport:
        """Add uploads with the map's fitted head; skip photos that the map already has."""
        fresh: dict[str, NewPhoto] = {}
        skipped: list[tuple[str, str]] = []
        digests = [hashlib.sha256(photo.content).hexdigest() for photo in photos]
        storage = place_map.storage
        # A photo that was removed may be added again.
        held = {one: id for one, id in storage.find_digests(digests).items() if storage.record(id) is not None}
        for digest, photo in zip(digests, photos, strict=True):
            if digest in held:
                skipped.append((photo.name, f"already in the map as image {held[digest]}"))
            elif digest in fresh:
                skipped.append((photo.name, f"same photo as {fresh[digest].name}"))
            else:
                fresh[digest] = photo
        if not fresh:
            return EditReport(skipped=skipped)
        tokens = encode_uploads([photo.image for photo in fresh.values()], place_map.encoder)
        records = list[ImageRecord]()
        try:
            for digest, photo in fresh.items():
                path = storage.put_photo(photo.name, digest, photo.content)
                record = ImageRecord(id=0, path=path, digest=digest, fitted=False, session=session)
                records.append(record)  # before anything that can fail, so that the stored file is discarded then
                place = photo.position or read_photo_position(photo.content, photo.name)
                records[-1] = replace(record, position=place)
            return replace(place_map.add_records(tokens, records), skipped=skipped)
        except BaseException:
            storage.discard_photos([record.path for record in records])
            raise

    def calibrate(
        self, files: Sequence[Path], options: CalibrateOptions, progress: Progress
    ) -> tuple[CalibrationReport, dict[str, Any], int]:
        """Calibrate a branch with photos, then adopt the new head in the present map.

        Returns the report, the decisions without a calibration, and the revision.
        """
        base = self.current.storage
        encoding = replace(_ENCODING, cache=self.current.cache)
        apart = PlaceMap(base.branch(saved=False), self.encoder, encoding)
        since, before = base.version, dict(apart.state.database.decisions)
        report = apart.calibrate(files, progress=progress, **vars(options))
        edit = self.edit("calibrate", lambda current: current.adopt_calibration(apart, options.name), since)
        return report, before, edit.result()[1]

    def close(self) -> None:
        """Finish accepted edits and queries; refuse new ones."""
        with self._lock:
            self._closed = True
        self._editor.shutdown(wait=True)
        self.queries.close()
        if self.cameras is not None:
            self.cameras.close()
        if self.confirmations is not None:
            self.confirmations.close()


SMALLEST, LARGEST = 32, 2048  # longer side of a copy, in pixels
_COPY_BYTES = 64_000_000  # cache size
_COPY_SECONDS = 60.0  # time limit for decoding a map image
_QUALITY = 85


class Copies:
    """JPEG copies of map images, with a least recently used cache."""

    def __init__(self, settings: ServiceSettings, max_bytes: int = _COPY_BYTES) -> None:
        # A map may have photos that no client may send.
        self._settings = replace(settings, max_pixels=PILLOW_MOST, decode_seconds=_COPY_SECONDS)
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes, self._max_bytes = 0, max_bytes

    def find(self, record: ImageRecord, size: int) -> bytes | None:
        """Return a copy that is in the cache, or None."""
        with self._lock:
            if (record.digest, size) in self._made:
                self._made.move_to_end((record.digest, size))
            return self._made.get((record.digest, size))

    def make(self, record: ImageRecord, content: bytes, size: int, *, uploaded: bool) -> bytes:
        """Return a JPEG of a photo file whose longer side has at most `size` pixels."""
        try:
            try:
                copy = shared_decoders().decode(Upload("photo", content), self._settings, (size, size, FIT)).image
            except Refused as refusal:
                if uploaded or refusal.status != 415:
                    raise
                copy = as_rgb(content)  # a format that clients may not send, such as HEIC
                copy.thumbnail((size, size), Image.Resampling.LANCZOS)
        except (Refused, BadImage):
            raise Refused(404, f"cannot decode the photo file of image {record.id}") from None
        written = io.BytesIO()
        copy.save(written, "JPEG", quality=_QUALITY)  # without EXIF, which may hold a private position
        self._keep((record.digest, size), written.getvalue())
        return written.getvalue()

    def _keep(self, key: tuple[str, int], content: bytes) -> None:
        with self._lock:
            self._bytes += len(content) - len(self._made.pop(key, b""))
            self._made[key] = content
            while self._bytes > self._max_bytes and len(self._made) > 1:
                self._bytes -= len(self._made.popitem(last=False)[1])

"""State that queries leave in a live map: cameras that adapt answers, and confirmed images.

Each camera has a tracker (`tfa.maps.tracker`) that persists between queries; a file in the map's folder stores its
adaptation. A sure, reranked answer confirms its best image. Files are read and written outside of queries, so a full or
read-only disk causes a log line and no failed query.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tfa.core.files import BadFile, write_tensors
from tfa.core.plain import Value, hints, opt, req
from tfa.core.tokens import Tokens
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.loop_closer import LoopCloser
from tfa.maps.state import DATABASE
from tfa.maps.tracker import Tracker
from tfa.maps.upkeep import LATEST, Confirmed, format_time, make_image_key
from tfa.online.adaptation import WINDOW_ROWS, Adaptation
from tfa.types import Answer, ImageRecord, QueryOptions

_log = getLogger("tfa.service")


class SavedState(ABC):
    """State of a map that a thread saves in the map's folder; `what` names it in the log."""

    def __init__(self, place_map: PlaceMap, what: str) -> None:
        assert place_map.path is not None
        self._folder, self._what, self._failing = place_map.path, what, False
        self._lock = threading.Lock()  # held during queries, so no file access under it
        self._files = threading.Lock()  # held during file access, never during a query
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix=f"tfa-{what}")

    @abstractmethod
    def _save(self) -> list[str]:
        """Save what changed; return the problems, which are retried later."""

    def _keep(self) -> None:
        """Save, and log the first failure and the next success."""
        with self._files:
            problems = self._save()
            if problems and not self._failing:
                _log.warning("%s", problems[0])
            elif self._failing and not problems:
                _log.warning("%s of %s can be saved again", self._what, self._folder.name)
            self._failing = bool(problems)

    def close(self) -> None:
        """Save everything, after the last query."""
        self._keeper.shutdown(wait=True)
        self._keep()


# --- cameras ---------------------------------------------------------------------------------------------------------

ANONYMOUS = ""  # owner of cameras without an API key
SAVED_EVERY = 32  # photos of a camera between saves
_MOST_BYTES = 2**30  # memory of all cameras of a map; a very large map has fewer cameras
_CLOSERS = 4  # cameras of an owner that close loops; a new one replaces the least recently used
LOOP_FRAMES = 4096  # photos until loops start over: at most 450 MB in a temporary file
FILES = "session-*.safetensors"  # name of a camera's file in the map format


class CameraKey(NamedTuple):
    """A camera's name and owner; only the owner's API key sees the camera."""

    owner: str  # name of an API key
    name: str

    @property
    def file_name(self) -> str:
        """Name of the camera's file; the hash keeps names apart that differ only in case."""
        known_by = f"{self.owner}\n{self.name}" if self.owner else self.name
        return f"session-{self.name}-{hashlib.sha256(known_by.encode()).hexdigest()[:8]}.safetensors"


class CameraInfo(Value):
    """State of a camera."""

    OMITTED: ClassVar = frozenset({"notice"})

    name: str = req("Name of the camera.")
    owner: str | None = req("API key that named it; null without API keys.")
    seen: int = req("Photos queried so far.")
    counted: int = req("Photos used for adaptation; near-repeats are ignored.")
    calibration: str | None = req("Calibration that answers; with another one the camera starts over.")
    last_used: str = req("Time of the last photo, UTC.")
    sequence: bool = req("Whether its photos are frames of a drive.")
    lost: float | None = req("Probability that the last frame shows no place of the map.")
    shift: float | None = req("Length of the centering vector; null before the first photo.")
    bias_spread: float | None = req("Spread of the score bias; null with few photos.")
    notice: str | None = opt(None, "Warning if its last photos differ from those the map was calibrated for.")


@dataclass
class TrackedCamera:
    """A camera and its tracker, which belongs to one head of the map."""

    key: CameraKey
    tracker: Tracker
    head: str  # digest of the head
    last_used: float = field(default_factory=time.time)
    saved: int = 0  # photos seen at the last save
    tried: int = 0  # photos seen at the last attempt to save
    closer: LoopCloser | None = None  # in memory only

    @property
    def seen(self) -> int:
        return self.tracker.adaptation.seen

    def due(self) -> bool:
        """Return True once every `SAVED_EVERY` photos, also after a failed attempt."""
        if self.seen - self.tried < SAVED_EVERY:
            return False
        self.tried = self.seen
        return True

    def describe(self, notice: str | None = None) -> CameraInfo:
        calibration = None if self.tracker.calibration == DATABASE else self.tracker.calibration
        state = self.tracker.state
        return CameraInfo(
            name=self.key.name,
            owner=self.key.owner or None,
            calibration=calibration,
            last_used=str(format_time(self.last_used)),
            notice=notice,
            **{name: state[name] for name in hints(CameraInfo) if name in state and name != "calibration"},
        )


class MapCameras(SavedState):
    """The cameras of one map, least recently used first, at most `most` for each owner.

    Limits are per owner, so that one API key cannot evict the cameras of another.
    """

    def __init__(self, place_map: PlaceMap, most: int, owners: Sequence[str] = (ANONYMOUS,)) -> None:
        super().__init__(place_map, "cameras")
        self._most, self._owners = most, tuple(owners)
        self._cameras: OrderedDict[CameraKey, TrackedCamera] = OrderedDict()
        # Files that this service loaded or wrote; another service of the map may have others, and rewrite these.
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._take(place_map)
        self._load()
        self._keeper.submit(self._keep)

    def _take(self, place_map: PlaceMap) -> None:
        state = place_map.state
        self._map, self._digests = place_map, {head.name: state.head_digest(head.name) for head in state.heads}

    def __len__(self) -> int:
        return len(self._cameras)

    @property
    def most(self) -> int:
        """Cameras per owner, limited by memory for large maps."""
        rows = WINDOW_ROWS * 4 * max(len(self._map), 1)  # bytes of float32 scores of the last photos with every image
        compact = self._map.state.compact
        cells = None if compact is None else compact.compaction.cells
        rows += 0 if cells is None else cells.nbytes  # cell means of the camera
        return max(1, min(self._most, _MOST_BYTES // rows // len(self._owners)))

    # --- queries ---------------------------------------------------------------------------------------------------

    def answer(self, key: CameraKey, tokens: Tokens, options: QueryOptions, flaw: str | None = None) -> Answer:
        """Answer the next photo of a camera; `flaw` says what is wrong with its pixels.

        One thread calls this, in the order of arrival. A photo adapts the camera after it was answered.
        """
        with self._lock:
            camera = self._camera(key, options)
            camera.tracker.rebind(self._map, options, sequence=options.sequence)
            answer = camera.tracker.step(tokens, flaw)
            camera.last_used = time.time()
            self._cameras[key] = camera
            self._cameras.move_to_end(key)
            due = camera.due()
            own = [other for other in self._cameras if other.owner == key.owner]
            for oldest in own[: -self.most]:
                del self._cameras[oldest]
                due = True
        if due:
            self._keeper.submit(self._keep)
        return replace(answer, camera=key.name, **self._close_loops(camera, tokens) if options.loops else {})

    def _close_loops(self, camera: TrackedCamera, tokens: Tokens) -> dict[str, Any]:
        """Pass a photo through the camera's loop closer, without the lock: only the query thread uses closers."""
        with self._lock:
            same = self._select(camera.key.owner, None)
        for oldest in [one for one in same if one.closer is not None and one is not camera][: 1 - _CLOSERS]:
            oldest.closer = None
        if camera.closer is None or camera.closer.frames >= LOOP_FRAMES:
            camera.closer = LoopCloser(self._map.encoder)
        return {"loop": camera.closer.step(tokens), "node": camera.closer.frames - 1}

    def _camera(self, key: CameraKey, options: QueryOptions) -> TrackedCamera:
        """Return the camera, or a new one if it does not exist or used another head."""
        head = self._map.state.chosen(options.calibration).name
        known = self._cameras.get(key)
        if known is not None and known.head == self._digests[head]:
            return known
        return TrackedCamera(key, Tracker(self._map, options, sequence=False), self._digests[head])

    # --- the map changes -------------------------------------------------------------------------------------------

    def publish(self, place_map: PlaceMap) -> None:
        """Use this map for later photos; drop cameras whose head it no longer has."""
        with self._lock:
            self._take(place_map)
            for camera in list(self._cameras.values()):
                if camera.head not in self._digests.values():
                    _log.warning(
                        "camera %s was adapted to a head that %s no longer has; it starts over",
                        camera.key.name,
                        self._folder.name,
                    )
                    del self._cameras[camera.key]
        self._keeper.submit(self._keep)

    # --- list and reset --------------------------------------------------------------------------------------------

    def list_all(self, owner: str | None = None) -> list[CameraInfo]:
        """Describe the cameras of an owner, or of all owners (None), most recently used first."""
        with self._lock:
            return [camera.describe() for camera in reversed(self._select(owner, None))]

    def get(self, name: str, owner: str | None = None) -> CameraInfo | None:
        """Describe a camera; if several owners have one of this name, the most recently used."""
        with self._lock:
            found = self._select(owner, name)
            if not found:
                return None
            return found[-1].describe(found[-1].tracker.shift_monitor.warning(self._folder.name))

    def reset(self, name: str | None = None) -> list[str]:
        """Delete the cameras of this name (None: all) of every owner, also on disk, and return their names."""
        with self._lock:
            gone = [camera.key for camera in self._select(None, name)]
            for key in gone:
                del self._cameras[key]
        self._keep()
        return [key.name for key in gone]

    def _select(self, owner: str | None, name: str | None) -> list[TrackedCamera]:
        return [
            camera for key, camera in self._cameras.items() if owner in (None, key.owner) and name in (None, key.name)
        ]

    # --- files -----------------------------------------------------------------------------------------------------

    def _save(self) -> list[str]:
        """Save changed cameras and remove the files of dropped ones."""
        with self._lock:
            keys = list(self._cameras)
        problems = []
        for key in keys:
            try:
                self._keep_one(key)
            except (TfaError, OSError) as error:  # such as a full or read-only disk
                problems.append(f"cannot save camera {key.name}, will retry: {error}")
            except Exception:  # one camera must not keep others from being saved
                _log.exception("cannot save camera %s of %s", key.name, self._folder.name)
        with self._lock:
            kept = {key.file_name for key in self._cameras}
        try:
            for name in self._stamps.keys() - kept:
                if self._stamps[name] == _stamp(self._folder / name):
                    (self._folder / name).unlink(missing_ok=True)
                del self._stamps[name]
        except OSError as error:
            problems.append(f"cannot remove old cameras of {self._folder.name}: {error}")
        return problems

    def _keep_one(self, key: CameraKey) -> None:
        with self._lock:
            camera = self._cameras.get(key)
            if camera is None:
                return
            tracker = camera.tracker
            # Rebind unused cameras too, so that they hold no older map in memory.
            tracker.rebind(self._map, tracker.options, sequence=tracker.sequence and len(self._map) > 1)
            seen = camera.seen
            if seen == camera.saved:
                return
            about = {"session": key.name, "owner": key.owner, "head": camera.head, "calibration": tracker.calibration}
            contents = tracker.adaptation.contents({**about, "last_used": camera.last_used})
        write_tensors(self._folder / key.file_name, *contents)  # without the lock, so that queries continue
        camera.saved, self._stamps[key.file_name] = seen, _stamp(self._folder / key.file_name)

    def _load(self) -> None:
        """Load saved cameras whose head the map still has."""
        loaded = []
        for path in self._folder.glob(FILES):
            stamp = _stamp(path)
            try:
                camera = self._load_camera(path)
                if camera.key.owner not in self._owners:  # of another service, or of a deleted API key
                    _log.info("leaving %s: its API key is not known to this service", path.name)
                    continue
                loaded.append(camera)
            except OSError as error:  # it may be sound, and belong to a service of another user
                _log.warning("leaving %s, which cannot be read: %s", path.name, error)
                continue
            except (TfaError, ValueError, KeyError, TypeError, OverflowError) as error:
                _log.warning("removing %s, its camera starts over: %s", path.name, error)
            self._stamps[path.name] = stamp
        loaded.sort(key=lambda camera: camera.last_used)
        self._cameras.update((camera.key, camera) for camera in loaded)
        for owner in self._owners:
            for camera in self._select(owner, None)[: -self.most]:
                del self._cameras[camera.key]

    def _load_camera(self, path: Path) -> TrackedCamera:
        adaptation, about = Adaptation.load(path)
        name, calibration, used = str(about["session"]), str(about["calibration"]), float(about["last_used"])
        if self._digests.get(calibration) != about["head"]:
            raise BadFile(f"its head is no longer in {self._folder.name}")
        key = CameraKey(str(about.get("owner", ANONYMOUS)), name)
        if key.file_name != path.name or not 0 <= used <= LATEST:
            raise BadFile("its camera has another name, or a time out of range")
        tracker = Tracker(self._map, QueryOptions(calibration=calibration), sequence=False, adaptation=adaptation)
        return TrackedCamera(key, tracker, about["head"], used, adaptation.seen, adaptation.seen)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes if a file is written again; None if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


WRITTEN_EVERY = 60.0  # minimum seconds between writes


class Confirmations(SavedState):
    """Times at which sure answers confirmed the images of a map in a folder."""

    def __init__(self, place_map: PlaceMap) -> None:
        super().__init__(place_map, "confirmations")
        self._changed, self._tried = False, time.monotonic()
        try:
            self._confirmed = Confirmed.read(self._folder)
        except (TfaError, OSError) as error:
            _log.warning("cannot read confirmations, starting over: %s", error)
            self._confirmed = Confirmed()
        self.publish(place_map)

    def publish(self, place_map: PlaceMap) -> None:
        """Use the images of this map from now on."""
        keys = {record.id: make_image_key(record) for record in place_map.images}
        with self._lock:
            self._keys, self._confirmed = keys, self._confirmed.watched(place_map.images, int(time.time()))

    def confirm(self, answer: Answer) -> None:
        """Record the best image of an answer that is sure and was reranked."""
        if not answer or not answer[0].sure or answer[0].inliers is None:
            return
        with self._lock:
            key = self._keys.get(answer[0].id)
            if key is None:  # removed in the meantime
                return
            self._confirmed.last[key] = int(time.time())
            self._changed = True
            due = time.monotonic() - self._tried >= WRITTEN_EVERY
            if due:
                self._tried = time.monotonic()
        if due:
            self._keeper.submit(self._keep)

    def last_of(self, image: ImageRecord) -> int | None:
        """Return the time of the last confirmation, in seconds since 1970."""
        with self._lock:
            return self._confirmed.last_of(image)

    def _save(self) -> list[str]:
        with self._lock:
            if not self._changed:
                return []
            written = Confirmed(dict(self._confirmed.since), dict(self._confirmed.last))
            self._changed = False
        try:
            written.with_later(self._on_disk()).write(self._folder)  # another service may also serve the map
        except (TfaError, OSError) as error:  # such as a full or read-only disk
            with self._lock:
                self._changed = True
            return [f"cannot save confirmations of {self._folder.name}, will retry: {error}"]
        return []

    def _on_disk(self) -> Confirmed:
        try:
            return Confirmed.read(self._folder)
        except TfaError:  # a damaged file is replaced
            return Confirmed()

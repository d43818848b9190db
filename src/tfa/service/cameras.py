"""What a live map remembers of its queries: cameras that adapt answers, and images that answers confirmed.

Each camera has a tracker (`tfa.maps.tracker`) that lives from query to query; a file of the map's folder keeps what its
photos taught. A reranked answer that is sure confirms the image it names. Files are read and written outside of
queries: a disk that is full or read-only costs the log a line, no query.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import ClassVar, NamedTuple

from tfa.core.files import BadFile, write_tensors
from tfa.core.plain import Value, hints, opt, req
from tfa.core.tokens import Tokens
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.state import DATABASE
from tfa.maps.tracker import Tracker
from tfa.maps.upkeep import Confirmed, make_image_key
from tfa.online.adaptation import WINDOW_ROWS, Adaptation
from tfa.types import Answer, ImageRecord, QueryOptions

# --- failures to write -----------------------------------------------------------------------------------------------

_log = getLogger("tfa.service")


class LogOnce:
    """Logs the first failure of a repeated write, and its recovery in the words of `recovered`."""

    def __init__(self, recovered: str) -> None:
        self._recovered, self._failing = recovered, False

    def note(self, problems: Sequence[str]) -> None:
        """Take the problems of the last attempt to write; none if it succeeded."""
        if problems and not self._failing:
            _log.warning("%s", problems[0])
        elif self._failing and not problems:
            _log.warning("%s", self._recovered)
        self._failing = bool(problems)


# --- cameras ---------------------------------------------------------------------------------------------------------

ANONYMOUS = ""  # who queries without an API key
SAVED_EVERY = 32  # photos of a camera
_MOST_BYTES = 2**30  # of what the cameras of a map remember: of a very large map they are fewer
FILES = "session-*.safetensors"  # maps on disk know a camera's file by this name


class CameraKey(NamedTuple):
    """A camera is known by its name to the API key that named it, and to no other reader."""

    owner: str  # the name of an API key
    name: str

    @property
    def file_name(self) -> str:
        """Name of the file it is saved in. Names that differ in case alone have files that do not."""
        known_by = f"{self.owner}\n{self.name}" if self.owner else self.name
        return f"session-{self.name}-{hashlib.sha256(known_by.encode()).hexdigest()[:8]}.safetensors"


class CameraInfo(Value):
    """What a camera has seen and learnt."""

    OMITTED: ClassVar = frozenset({"notice"})

    name: str = req("Name of the camera.")
    owner: str | None = req("API key that named it; null without API keys.")
    seen: int = req("Photos so far.")
    counted: int = req("Photos used for adaptation; near-repeats are ignored.")
    calibration: str | None = req("Calibration that answers; with another one the camera starts over.")
    last_used: str = req("Time of the last photo, UTC.")
    sequence: bool = req("Whether its photos are frames of a drive.")
    lost: float | None = req("Probability that the last frame of the drive shows no place of the map.")
    shift: float | None = req("Length of the vector that photos are centered by; null before the first.")
    bias_spread: float | None = req("Spread of what is added to scores; null with few photos.")
    notice: str | None = opt(None, "Says so if its last photos do not look like those the map was made for.")


@dataclass
class TrackedCamera:
    """A camera and its tracker, which belongs to one head of the map."""

    key: CameraKey
    tracker: Tracker
    head: str  # digest of its content
    last_used: float = field(default_factory=time.time)
    saved: int = 0  # photos it had seen when it was written
    tried: int = 0  # and when that was last tried

    @property
    def seen(self) -> int:
        return self.tracker.adaptation.seen

    def due(self) -> bool:
        """Is it time to save? True once for so many photos, also where the last attempt failed."""
        if self.seen - self.tried < SAVED_EVERY:
            return False
        self.tried = self.seen
        return True

    def describe(self, notice: str | None = None) -> CameraInfo:
        """Say what it has seen and learnt."""
        calibration = None if self.tracker.calibration == DATABASE else self.tracker.calibration
        used = datetime.fromtimestamp(self.last_used, UTC).isoformat(timespec="seconds")
        state = self.tracker.state
        return CameraInfo(
            name=self.key.name,
            owner=self.key.owner or None,
            calibration=calibration,
            last_used=used,
            notice=notice,
            **{name: state[name] for name in hints(CameraInfo) if name in state and name != "calibration"},
        )


class MapCameras:
    """The cameras of one map, the least recently used first; of each owner at most `most` are kept.

    `owners` are the names of the API keys there are: one cannot push out what another's photos taught.
    """

    def __init__(self, place_map: PlaceMap, most: int, owners: Sequence[str] = (ANONYMOUS,)) -> None:
        assert place_map.path is not None
        self._folder, self._most, self._owners = place_map.path, most, tuple(owners)
        self._write_log = LogOnce(f"the cameras of {self._folder.name} are kept again")
        self._lock = threading.Lock()  # held within queries: no file is touched under it
        self._files = threading.Lock()  # held to read and write files, never within a query
        self._cameras: OrderedDict[CameraKey, TrackedCamera] = OrderedDict()
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="tfa-cameras")
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
        """How many are kept of each owner, however large the map is."""
        rows = WINDOW_ROWS * 4 * max(len(self._map), 1)  # bytes: float32 scores of the last photos with every image
        return max(1, min(self._most, _MOST_BYTES // rows // len(self._owners)))

    # --- queries ---------------------------------------------------------------------------------------------------

    def answer(self, key: CameraKey, tokens: Tokens, options: QueryOptions) -> Answer:
        """Answer the next photo of a camera.

        One thread calls this, in the order the service took the photos in. A photo teaches after it was answered.
        """
        with self._lock:
            camera = self._camera(key, options)
            camera.tracker.rebind(self._map, options, sequence=options.sequence)
            answer = camera.tracker.answer("", tokens)
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
        return replace(answer, camera=key.name)

    def _camera(self, key: CameraKey, options: QueryOptions) -> TrackedCamera:
        """The one of that key; a new one if there is none, or if it was answered by another head before."""
        head = self._map.state.chosen(options.calibration).name
        known = self._cameras.get(key)
        if known is not None and known.head == self._digests[head]:
            return known
        return TrackedCamera(key, Tracker(self._map, options, sequence=False), self._digests[head])

    # --- the map changes -------------------------------------------------------------------------------------------

    def publish(self, place_map: PlaceMap) -> None:
        """From now on photos are answered by this map. What was learnt by a head that it no longer has is dropped."""
        with self._lock:
            self._take(place_map)
            for camera in list(self._cameras.values()):
                if camera.head not in self._digests.values():
                    _log.warning(
                        "camera %s was learnt by a head that %s no longer has; it starts anew",
                        camera.key.name,
                        self._folder.name,
                    )
                    del self._cameras[camera.key]
        self._keeper.submit(self._keep)

    # --- look and forget -------------------------------------------------------------------------------------------

    def list_all(self, owner: str | None = None) -> list[CameraInfo]:
        """Describe every camera of an owner, or of all (None), the most recently used first."""
        with self._lock:
            return [camera.describe() for camera in reversed(self._select(owner, None))]

    def get(self, name: str, owner: str | None = None) -> CameraInfo | None:
        """Describe the camera of that name; of several owners' the most recently used."""
        with self._lock:
            found = self._select(owner, name)
            if not found:
                return None
            return found[-1].describe(found[-1].tracker.shift_monitor.warning(self._folder.name))

    def reset(self, name: str | None = None) -> list[str]:
        """Forget the cameras of that name (None: all), whoever made them, also on disk; the names of those gone."""
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

    def _keep(self) -> None:
        """Write what is new and remove what is gone. What fails is logged and tried again later, and at the end."""
        with self._files:
            with self._lock:
                keys = list(self._cameras)
            problems = []
            for key in keys:
                try:
                    self._keep_one(key)
                except (TfaError, OSError) as error:  # a full disk, one that is read-only
                    problems.append(f"camera {key.name} cannot be saved, which is tried again later: {error}")
                except Exception:  # one camera must not keep others from being saved
                    _log.exception("camera %s of %s is not kept", key.name, self._folder.name)
            with self._lock:
                kept = {key.file_name for key in self._cameras}
            try:
                for path in self._folder.glob(FILES):
                    if path.name not in kept:
                        path.unlink(missing_ok=True)
            except OSError as error:
                problems.append(f"old cameras of {self._folder.name} cannot be removed: {error}")
            self._write_log.note(problems)

    def _keep_one(self, key: CameraKey) -> None:
        with self._lock:
            camera = self._cameras.get(key)
            if camera is None:
                return
            tracker = camera.tracker  # a camera that is not used keeps no older map in memory
            tracker.rebind(self._map, tracker.options, sequence=tracker.sequence and len(self._map) > 1)
            seen = camera.seen
            if seen == camera.saved:
                return
            about = {"session": key.name, "owner": key.owner, "head": camera.head, "calibration": tracker.calibration}
            contents = tracker.adaptation.contents({**about, "last_used": camera.last_used})
        write_tensors(self._folder / key.file_name, *contents)  # queries go on while it is written
        camera.saved = seen

    def _load(self) -> None:
        """Take up what was kept, as far as the map still has the heads."""
        loaded = []
        for path in self._folder.glob(FILES):
            try:
                loaded.append(self._load_camera(path))
            except (TfaError, OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("%s is removed, its camera starts anew: %s", path.name, error)
        loaded.sort(key=lambda camera: camera.last_used)
        self._cameras.update((camera.key, camera) for camera in loaded)
        for owner in self._owners:
            for camera in self._select(owner, None)[: -self.most]:
                del self._cameras[camera.key]

    def _load_camera(self, path: Path) -> TrackedCamera:
        adaptation, about = Adaptation.load(path)
        name, calibration, used = str(about["session"]), str(about["calibration"]), float(about["last_used"])
        if self._digests.get(calibration) != about["head"]:
            raise BadFile(f"it was learnt by a head that {self._folder.name} no longer has")
        key = CameraKey(str(about.get("owner", ANONYMOUS)), name)
        if key.owner not in self._owners:
            raise BadFile("it is of an API key that this service does not have")
        tracker = Tracker(self._map, QueryOptions(calibration=calibration), sequence=False, adaptation=adaptation)
        return TrackedCamera(key, tracker, about["head"], used, adaptation.seen, adaptation.seen)

    def close(self) -> None:
        """Save what was learnt, once queries have ended."""
        self._keeper.shutdown(wait=True)
        self._keep()


# --- confirmations ---------------------------------------------------------------------------------------------------

WRITTEN_EVERY = 60.0  # seconds at most between a confirmation and the next one that writes them


class Confirmations:
    """Times at which the images of a map in a folder were confirmed; it grows no further than the map."""

    def __init__(self, place_map: PlaceMap) -> None:
        assert place_map.path is not None
        self._folder = place_map.path
        self._write_log = LogOnce(f"what was confirmed of {self._folder.name} is kept again")
        self._lock = threading.Lock()  # held within queries: no file is touched under it
        self._files = threading.Lock()
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="tfa-confirmed")
        self._changed, self._tried = False, time.monotonic()
        try:
            self._confirmed = Confirmed.read(self._folder)
        except (TfaError, OSError) as error:
            _log.warning("what was confirmed is not known and is counted anew: %s", error)
            self._confirmed = Confirmed()
        self.publish(place_map)

    def publish(self, place_map: PlaceMap) -> None:
        """From now on the images are those of this map."""
        keys = {record.id: make_image_key(record) for record in place_map.images}
        with self._lock:
            self._keys, self._confirmed = keys, self._confirmed.watched(place_map.images, int(time.time()))

    def confirm(self, answer: Answer) -> None:
        """Note an answer; one that is not sure, or was not reranked, says nothing."""
        if not answer or not answer[0].sure or answer[0].inliers is None:
            return
        with self._lock:
            key = self._keys.get(answer[0].id)
            if key is None:  # removed since
                return
            self._confirmed.last[key] = int(time.time())
            self._changed = True
            due = time.monotonic() - self._tried >= WRITTEN_EVERY
            if due:
                self._tried = time.monotonic()
        if due:
            self._keeper.submit(self._keep)

    def last_of(self, image: ImageRecord) -> int | None:
        """When it was last confirmed, in seconds since 1970."""
        with self._lock:
            return self._confirmed.last_of(image)

    def _keep(self) -> None:
        with self._files:
            with self._lock:
                if not self._changed:
                    return
                written = Confirmed(dict(self._confirmed.since), dict(self._confirmed.last))
                self._changed = False
            problems = []
            try:
                written.with_later(self._on_disk()).write(self._folder)  # another service may serve the map, too
            except (TfaError, OSError) as error:  # a full disk, one that is read-only
                problems.append(
                    f"what was confirmed of {self._folder.name} cannot be saved, tried again later: {error}"
                )
                with self._lock:
                    self._changed = True
            self._write_log.note(problems)

    def _on_disk(self) -> Confirmed:
        try:
            return Confirmed.read(self._folder)
        except TfaError:  # damaged: it is replaced
            return Confirmed()

    def close(self) -> None:
        """Write what was noted, once queries have ended."""
        self._keeper.shutdown(wait=True)
        self._keep()

"""Cameras of a live map: earlier photos of a named camera adapt the answers to its later ones.

Each camera has a tracker (`tfa.maps.tracker`) that lives from query to query; a file of the map's folder keeps what its
photos taught. Files are read and written outside of queries: a disk that is full or read-only costs the log a line, no
query.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from tfa.core.files import BadFile, write_tensors
from tfa.core.tokens import Tokens
from tfa.errors import TfaError
from tfa.maps import PlaceMap
from tfa.maps.state import DATABASE
from tfa.maps.tracker import Tracker
from tfa.online.adaptation import WINDOW_ROWS, Adaptation
from tfa.service.log_once import LogOnce
from tfa.types import Answer, QueryOptions

ANONYMOUS = ""  # who queries without an API key
SAVED_EVERY = 32  # photos of a camera
_MOST_BYTES = 2**30  # of what the cameras of a map remember: of a very large map they are fewer
FILES = "session-*.safetensors"  # maps on disk know a camera's file by this name
_log = getLogger("tfa.service")


class CameraKey(NamedTuple):
    """A camera is known by its name to the API key that named it, and to no other reader."""

    owner: str  # the name of an API key
    name: str

    @property
    def file_name(self) -> str:
        """Name of the file it is saved in. Names that differ in case alone have files that do not."""
        known_by = f"{self.owner}\n{self.name}" if self.owner else self.name
        return f"session-{self.name}-{hashlib.sha256(known_by.encode()).hexdigest()[:8]}.safetensors"


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

    def summary(self) -> dict[str, Any]:
        """What it has seen, in JSON."""
        calibration = None if self.tracker.calibration == DATABASE else self.tracker.calibration
        used = datetime.fromtimestamp(self.last_used, UTC).isoformat(timespec="seconds")
        known_by = {"name": self.key.name, "owner": self.key.owner or None}
        return {**self.tracker.state, **known_by, "calibration": calibration, "last_used": used}


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

    def answer(self, key: CameraKey, tokens: Tokens, question: QueryOptions, sequence: bool) -> Answer:
        """The answer to the next photo of a camera.

        One thread calls this, in the order the service took the photos in. A photo teaches after it was answered.
        """
        with self._lock:
            camera = self._camera(key, question)
            camera.tracker.rebind(self._map, question, sequence=sequence)
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
        return answer

    def _camera(self, key: CameraKey, question: QueryOptions) -> TrackedCamera:
        """The one of that key; a new one if there is none, or if it was answered by another head before."""
        head = self._map.state.chosen(question.calibration).name
        known = self._cameras.get(key)
        if known is not None and known.head == self._digests[head]:
            return known
        return TrackedCamera(key, Tracker(self._map, question, sequence=False), self._digests[head])

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

    def listed(self, owner: str | None = None) -> list[dict[str, Any]]:
        """Every camera of an owner, or of all (None), the most recently used first."""
        with self._lock:
            return [camera.summary() for camera in reversed(self._of(owner, None))]

    def get(self, name: str, owner: str | None = None) -> dict[str, Any] | None:
        """Of several owners' the most recently used."""
        with self._lock:
            found = self._of(owner, name)
            if not found:
                return None
            camera = found[-1]
            return {**camera.summary(), "notice": camera.tracker.shift_monitor.warning(self._folder.name)}

    def reset(self, name: str | None = None) -> list[str]:
        """Forget the cameras of that name (None: all), whoever made them, also on disk; the names of those gone."""
        with self._lock:
            gone = [camera.key for camera in self._of(None, name)]
            for key in gone:
                del self._cameras[key]
        self._keep()
        return [key.name for key in gone]

    def _of(self, owner: str | None, name: str | None) -> list[TrackedCamera]:
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
                loaded.append(self._loaded(path))
            except (TfaError, OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("%s is removed, its camera starts anew: %s", path.name, error)
        loaded.sort(key=lambda camera: camera.last_used)
        self._cameras.update((camera.key, camera) for camera in loaded)
        for owner in self._owners:
            for camera in self._of(owner, None)[: -self.most]:
                del self._cameras[camera.key]

    def _loaded(self, path: Path) -> TrackedCamera:
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

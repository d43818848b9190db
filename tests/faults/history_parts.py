"""Parts of the random histories: photos and maps, editors that are killed, edits, and the model of a map."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.fakes import FakeEncoder
from tests.faults.storage.disk_operations import killed_at
from tests.maps.conftest import photo
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, StoreConflict
from tfa.maps import PlaceMap
from tfa.maps.folder import writer
from tfa.maps.merge import merge_maps
from tfa.maps.store import edits, header, storage, versions
from tfa.photos.images import as_rgb
from tfa.types import BuildOptions, HeadSpec

PLACES, COPIES, FIRST, CAMERA = 20, 3, 8, 6  # photos: of places, pixel copies, in a new map, of the calibrating camera
FEW, MANY = 4, 18  # images between which additions and removals keep a map
DIMS = 12  # search dimensions in a store
LENGTH = 200  # operations of a history
ROUNDING = 2**-10  # of scores, whose rows are float16
SEGMENTS = 3  # of a map in a folder
MINUTE = 61.0  # seconds after which an edit counts as abandoned
KINDS = {
    "second-order": BuildOptions(head="second-order"),
    "no-patches": BuildOptions(head="second-order", rerank=False),
    "paper": BuildOptions(head="paper", storage="float16"),
    "reduced": BuildOptions(head="second-order", dims=8),
    "dual": BuildOptions(head="paper-dual", storage="int7"),
}
CALIBRATIONS = ("night", "fog")
SESSIONS = (None, "noon", "rain, dusk")
CONCURRENT = re.compile(  # what a map says about an edit that another one overtook
    "by another process|refitted during the calibration|no previous version to roll back to"
)
CHANGING = {"create", "drop", "put", "put_pieces", "swap", "erase", "write", "delete", "seal"}  # calls of a store

SETTLING = ("calibrate", "activate", "drop", "rollback", "copy")  # edits that wait for others first
Operation = tuple[Any, ...]  # a verb and its arguments


# --- photos and maps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Photos `pool/*.png` that a map may hold, photos of a darker camera, and maps of the first photos."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> World:
        world = cls(folder)
        for place in range(PLACES):
            photo(folder / "pool" / f"{world.name(place)}.png", place)
        for place in range(COPIES):  # the same pixels in another file
            made = folder / "pool" / f"copy-{place}.png"
            as_rgb(folder / "pool" / f"{world.name(place)}.png").save(made, compress_level=1)
        for place in range(CAMERA):
            photo(folder / "camera" / f"{place}.png", place, light=0.7)
        with world.cached():
            for kind in KINDS:
                world.build(world.names[:FIRST], kind).save(folder / f"{kind}.tfa")
            world.build(world.names[FIRST - 2 : FIRST + 3], "second-order").save(folder / "other.tfa")
        return world

    @staticmethod
    def name(place: int) -> str:
        return f"@{place}@{2 * place}@" if place % 2 else f"plain-{place}"

    @cached_property
    def names(self) -> list[str]:
        return [*map(self.name, range(PLACES)), *(f"copy-{place}" for place in range(COPIES))]

    def place(self, name: str) -> int:
        number = self.names.index(name)
        return number if number < PLACES else number - PLACES

    def path(self, name: str) -> Path:
        return self.folder / "pool" / f"{name}.png"

    @cached_property
    def tokens(self) -> dict[str, Tokens]:
        encoded = {name: FakeEncoder().encode([as_rgb(self.path(name))]) for name in self.names}
        return {name: Tokens(*one, grid=(4, 4)) for name, one in encoded.items()}

    def build(self, names: Sequence[str], kind: str) -> PlaceMap:
        paths = [self.path(name) for name in names]
        return PlaceMap.build(paths, encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=KINDS[kind])

    @contextlib.contextmanager
    def cached(self) -> Iterator[None]:
        """Use a token cache of this world, read a store's header whenever it is used, and join additions often."""
        before, clock, segments = os.environ.get("TFA_CACHE"), versions._LOOK_AGAIN, writer.MAX_SEGMENTS
        os.environ["TFA_CACHE"], versions._LOOK_AGAIN = str(self.folder / "cache"), 0.0
        writer.MAX_SEGMENTS = SEGMENTS
        try:
            yield
        finally:
            versions._LOOK_AGAIN, writer.MAX_SEGMENTS = clock, segments
            if before is None:
                del os.environ["TFA_CACHE"]
            else:
                os.environ["TFA_CACHE"] = before


class Clock:
    """Stands for the module `time` in the editors of a store, whose minutes pass at once."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset, self.real = offset, False

    def time(self) -> float:
        return time.time() + self.offset

    def monotonic(self) -> float:
        return time.monotonic() + self.offset

    def sleep(self, seconds: float) -> None:
        if self.real:  # another editor is at work
            time.sleep(seconds)
        else:
            self.offset += seconds

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        modules = (edits, header)
        for module in modules:
            module.time = self  # type: ignore[attr-defined]
        try:
            yield
        finally:
            for module in modules:
                module.time = time  # type: ignore[attr-defined]


# --- kills ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The editor is gone: no call reaches the store any more."""


class Mortal:
    """A store, or a collection of it, whose user dies before or after a changing call."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **named: Any) -> Any:
            self._life.spend(name)
            result = found(*args, **named)
            if name in ("open", "create"):
                result = Mortal(result, self._life)
            self._life.spend(name)
            return result

        return call


@dataclass
class Life:
    """Ends after some changing calls: each counts twice, before and after it happens."""

    left: int
    end: Callable[[], object]
    over: bool = False

    def spend(self, name: str) -> None:
        if not self.over:
            self.left -= name in CHANGING
            self.over = self.left < 0
        if self.over:
            self.end()

    @contextlib.contextmanager
    def lived(self) -> Iterator[None]:
        """Let every map in a store that is opened meanwhile use a mortal store."""
        real = storage.open_map_store

        def opened(url: str) -> tuple[Any, str]:
            found, name = real(url)
            return Mortal(found, self), name

        storage.open_map_store = opened  # type: ignore[assignment]
        try:
            yield
        finally:
            storage.open_map_store = real


def raise_killed() -> None:
    raise Killed


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- operations ----------------------------------------------------------------------------------------------------


def open_map(url: str) -> PlaceMap:
    return PlaceMap.load(url, encoder=FakeEncoder())


def perform(world: World, place_map: PlaceMap, operation: Operation, url: str) -> Any:
    """Do one edit and return its result."""
    verb, *args = operation
    if verb == "add":
        return place_map.add([world.path(name) for name in args[0]], session=args[1]).added
    if verb == "remove":
        return place_map.remove(args[0]).removed
    if verb == "calibrate":
        return place_map.calibrate(world.folder / "camera", args[0], score=args[1]).name
    if verb == "activate":
        return place_map.activate(args[0])
    if verb == "drop":
        return place_map.drop_calibration(args[0])
    if verb == "refit":
        return place_map.refit()
    if verb == "rollback":
        return place_map.storage.rollback()  # type: ignore[attr-defined]
    if verb == "rebuild":
        built = open_map(str(world.folder / f"{args[0]}.tfa"))
        built.publish(url, dims=DIMS).close()
        return None
    if verb == "merge":
        merged, _ = merge_maps([place_map, open_map(str(world.folder / "other.tfa"))])
        merged.save(url, overwrite=True)
        return None
    raise AssertionError(verb)


def run_child(pipe: Any, folder: str, url: str, operation: Operation, life: int | None, offset: float) -> None:
    """Edit the map in this process, which ends itself after `life` changes."""
    world, clock = World(Path(folder)), Clock(offset)
    clock.real = life is None
    with contextlib.ExitStack() as stack:
        stack.enter_context(world.cached())
        stack.enter_context(clock.installed())
        if life is not None and "://" in url:
            pipe.send("ready")
            pipe.recv()
            stack.enter_context(Life(life, kill_process).lived())
            place_map = open_map(url)
        else:
            place_map = open_map(url)
            pipe.send("ready")
            pipe.recv()
        if life is not None and "://" not in url:
            stack.enter_context(killed_at(life))
        pipe.send(attempt(world, place_map, operation, url))
    pipe.close()
    os._exit(0)


def attempt(world: World, place_map: PlaceMap, operation: Operation, url: str) -> tuple[str, Any]:
    """Do an edit that may be refused because of another one. It fails if it finds the map damaged."""
    try:
        return "done", perform(world, place_map, operation, url)
    except (StoreConflict, BadMap) as error:
        refused = isinstance(error, StoreConflict) or CONCURRENT.search(str(error))
        return "refused" if refused else "failed", str(error)


# --- the model -----------------------------------------------------------------------------------------------------

Photo = tuple[str, str | None]  # name and session


@dataclass(frozen=True)
class Model:
    """What a map must hold. Marks are numbers that are used once."""

    photos: Mapping[int, Photo]
    fit: int  # mark of the fitted head
    fitted: frozenset[int]
    next_id: int  # smallest id of a new image
    calibrations: tuple[tuple[str, int], ...] = ()  # names with marks
    active: str = "none"
    collection: int = 0  # mark of the rows in a store
    previous: Model | None = None  # of a map in a store
    maybe: Mapping[int, Photo] = field(default_factory=dict)  # images of interrupted additions

    def head(self, name: str) -> tuple[int, int]:
        return self.fit, dict(self.calibrations).get(name, -1)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.photos.values()}


@dataclass(frozen=True)
class Seen:
    """What a map holds."""

    photos: Mapping[int, Photo]
    fitted: frozenset[int]
    calibrations: tuple[str, ...]
    active: str
    next_id: int
    revision: int
    count: int

    @classmethod
    def of(cls, place_map: PlaceMap) -> Seen:
        images, state = place_map.images, place_map.state
        photos = {one.id: (Path(one.path).stem, one.session) for one in images}
        assert len(photos) == len(images), "an id occurs twice"
        return cls(
            photos, frozenset(one.id for one in images if one.fitted), tuple(place_map.calibrations), state.active,
            state.next_id, state.revision, len(place_map),
        )  # fmt: skip

    def differs(self, model: Model) -> str:
        """Return the differences from the model; empty if there are none."""
        lost = {key: value for key, value in model.photos.items() if self.photos.get(key) != value}
        extra = {key: value for key, value in self.photos.items() if model.photos.get(key) != value}
        facts = {
            "lost": (lost, {}),
            "unexpected": (extra, {}),
            "count": (self.count, len(model.photos)),
            "fitted": (self.fitted, model.fitted & set(model.photos)),
            "calibrations": (self.calibrations, tuple(name for name, _ in model.calibrations)),
            "active": (self.active, model.active),
            "next id": (self.next_id >= model.next_id, True),
        }
        wrong = [f"{key}: {ours}, must be {theirs}" for key, (ours, theirs) in facts.items() if ours != theirs]
        return "; ".join(wrong)

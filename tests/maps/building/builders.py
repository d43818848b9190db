"""Helpers for sharded builds: encoders that workers load by name, and contents of a store."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fakes import FakeEncoder
from tfa.core import files
from tfa.maps.building import BuildReport, Sharding, build_sharded
from tfa.maps.store.header import read_moments, read_reduction, read_store_header
from tfa.maps.store.versions import read_skeleton
from tfa.search import store
from tfa.types import HeadSpec

SPEC = HeadSpec(words=6)
LOG = "TFA_TEST_ENCODED"  # names a folder in which each encoded image leaves a line
store._BUILT_IN["sqlite"] = "tests.maps.building.sqlite_store:SqliteStore.connect"


class LoggedEncoder(FakeEncoder):
    """Records how many images it encodes, in any process."""

    def encode(self, images: Sequence[Image.Image]) -> Any:
        if folder := os.environ.get(LOG):
            with open(Path(folder) / f"{os.getpid()}", "a") as file:
                file.write("x" * len(images))
        return super().encode(images)


class HeldEncoder(LoggedEncoder):
    """Stops when the work folder that a file `hold` names has three shards, so that it can be killed while it works."""

    def encode(self, images: Sequence[Image.Image]) -> Any:
        while self._is_held():
            time.sleep(0.01)
        return super().encode(images)

    def _is_held(self) -> bool:
        try:
            work = (Path(os.environ[LOG]) / "hold").read_text()
        except FileNotFoundError:
            return False
        return len(list(Path(work).glob("*/descriptors-*.safetensors"))) >= 3


def hold(log: Path, work: Path) -> None:
    """Let a `HeldEncoder` stop after three shards of this work, until the file is removed."""
    (log / "new").write_text(str(work))
    (log / "new").rename(log / "hold")


class DyingEncoder(LoggedEncoder):
    """The first worker that encodes is killed; once, as a file says."""

    def encode(self, images: Sequence[Image.Image]) -> Any:
        try:
            os.close(os.open(Path(os.environ[LOG]) / "died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().encode(images)
        os.kill(os.getpid(), signal.SIGKILL)


class AlwaysDyingEncoder(LoggedEncoder):
    def encode(self, images: Sequence[Image.Image]) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def no_room(parts):
    """The first part fits."""
    yield next(iter(parts))
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDiskEncoder(LoggedEncoder):
    """In a process where it is loaded the disk is full, while a file says so."""

    def __init__(self) -> None:
        super().__init__()
        write = files._write_parts

        def full(path: Path, parts, folder=None):
            if path.name.lstrip(".").startswith("descriptors") and (Path(os.environ[LOG]) / "full").exists():
                return write(path, no_room(parts), folder)
            return write(path, parts, folder)

        files._write_parts = full


def counted(folder: Path) -> int:
    """Images encoded so far."""
    return sum(len(path.read_text()) for path in folder.iterdir() if path.name.isdecimal())


class Published:
    """What a build has put into its store, by id."""

    def __init__(self, url: str) -> None:
        self.store, name = store.open_map_store(url)
        self.header, _ = read_store_header(self.store, name, url)
        self.collection = self.store.open(self.header.collection)
        [entries] = self.collection.pages(100_000)
        self.ids, self.vectors = entries.ids, entries.vectors
        self.payload, self.full = entries.payload, entries.full
        self.state = read_skeleton(self.store, self.header.skeleton_folder)
        self.reduction = read_reduction(self.store, self.header.reduction)
        self.moments = read_moments(self.store, self.header.moments)

    @property
    def names(self) -> list[str]:
        return [Path(one["path"]).name for one in self.payload]


def build(photos: Any, url: str, **settings: Any) -> BuildReport:
    own = {"dims": 24, "shard_size": 10, "sample": 32}
    own |= {name: settings.pop(name) for name in ("executor", "work", "patches_at", *own) if name in settings}
    given = {"encoder": LoggedEncoder, "spec": SPEC, **settings}
    return build_sharded(photos, url, sharding=Sharding(**own), **given)


def same(one: Published, other: Published) -> None:
    """Equal maps, to what rounding may do."""
    assert one.ids.tolist() == other.ids.tolist()
    assert list(one.payload) == list(other.payload)
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)
    np.testing.assert_allclose(one.vectors @ one.vectors.T, other.vectors @ other.vectors.T, atol=1e-5)  # scores
    np.testing.assert_allclose(one.moments.second, other.moments.second, atol=1e-4)
    assert one.state.database.decisions == other.state.database.decisions

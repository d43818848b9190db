"""The work folder of a build: a file for the result of each shard, which proves that the shard is done.

A file is written under a temporary name and renamed, and says of which build it is. What is damaged, or of another
build, counts as missing and is computed again. `StoredPass` is a pass whose results are such files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from tfa.core.files import BadFile, map_tensors, parse_json, write_tensors
from tfa.errors import TfaError
from tfa.maps.building.photo_list import Shard, SkippedPhotos

_FORMAT = "tfa-shard-1"
_FACTS = "facts"  # the tensor that holds JSON


@dataclass(frozen=True)
class WorkResult:
    """What a file holds."""

    tensors: Mapping[str, np.ndarray]
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]


@dataclass(frozen=True)
class WorkFolder:
    """Results of one build. All workers must see the same folder."""

    path: Path
    digest: str  # of everything that the results follow from

    def write(self, name: str, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any] | None = None) -> None:
        text = json.dumps(dict(facts or {}), ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
        every = {**tensors, _FACTS: np.frombuffer(text, np.uint8)}
        proof = {"format": _FORMAT, "digest": self.digest, "name": name, "sha256": _sha256(every)}
        write_tensors(self._file(name), every, proof)

    def read(self, name: str) -> WorkResult | None:
        """A result whose every byte is as it was written; None if there is none."""
        try:
            tensors, proof = map_tensors(self._file(name))
            known = {"format": _FORMAT, "digest": self.digest, "name": name, "sha256": _sha256(tensors)}
            if proof != known:
                return None
            facts = parse_json(tensors[_FACTS].tobytes())
        except (BadFile, OSError, ValueError, KeyError):
            return None
        return WorkResult({key: array for key, array in tensors.items() if key != _FACTS}, facts)

    def needed(self, name: str) -> WorkResult:
        """A result that another worker has made."""
        result = self.read(name)
        if result is None:
            raise TfaError(
                f"{self._file(name)} is not there, or is damaged, though a worker has made it; all workers must see "
                "one work folder: name one that they share with --set build.work=FOLDER, and build again: what is "
                "done is not repeated",
                self._file(name),
            )
        return result

    def erase(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def remove(self) -> None:
        """After the map is published: everything is in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"


def _sha256(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# --- passes whose results are files --------------------------------------------------------------------------------


_GROUPS = 16  # sums that are kept at most: those of descriptors are as large as 270 MB each


@dataclass(frozen=True)
class ItemReport:
    """What the driver hears of a shard or a group."""

    number: int
    images: int
    before: bool = False  # was the result there already?
    skipped: SkippedPhotos = field(default_factory=list)
    placed: int = 0  # images with a position

    @classmethod
    def of(cls, number: int, facts: Mapping[str, Any], *, before: bool) -> ItemReport:
        """By what was kept: `payload` of images and photos `skipped`, or the `count` of a sum."""
        payload = facts.get("payload", ())
        placed = sum(one["position"] is not None for one in payload)
        skipped = [(uri, reason) for uri, reason in facts.get("skipped", ())]
        return cls(number, facts.get("count", len(payload)), before, skipped, placed)


@dataclass(frozen=True)
class Group:
    """A fixed run of shards: sums are over groups, in their order, on any worker."""

    number: int
    shards: tuple[int, ...]

    @classmethod
    def all_of(cls, shards: int) -> list[Group]:
        size = -(-shards // _GROUPS)
        starts = range(0, shards, size)
        return [cls(n, tuple(range(start, min(start + size, shards)))) for n, start in enumerate(starts)]


Item = TypeVar("Item", Shard, Group)


@dataclass(frozen=True)
class StoredPass(ABC, Generic[Item]):
    """A pass whose results are files of the work folder: what is there is not computed again.

    A small object that can be sent to another process, and a function of one item.
    """

    kind: ClassVar[str]  # how its files are named
    folder: WorkFolder

    def __call__(self, item: Item) -> ItemReport:
        known = self.read_done(item.number)
        if known is not None:
            return ItemReport.of(item.number, known, before=True)
        tensors, facts = self.compute(item)
        self.folder.write(name_result(self.kind, item.number), tensors, facts)
        return ItemReport.of(item.number, facts, before=False)

    def read_done(self, number: int) -> Mapping[str, Any] | None:
        """What was said of an item that is done."""
        kept = self.folder.read(name_result(self.kind, number))
        return None if kept is None else kept.facts

    @abstractmethod
    def compute(self, item: Item) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What is kept of an item: arrays, and facts as `Done.of` reads them."""


def name_result(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"

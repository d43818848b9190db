"""Work folder of a build: a file per result, so that an interrupted build can resume.

Files are written atomically and contain the digest of their build. A file that is damaged or belongs to another build
counts as missing. `StoredPass` is a pass whose results are such files.
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
    """The content of a result file."""

    tensors: Mapping[str, np.ndarray]
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.tensors[name]


@dataclass(frozen=True)
class WorkFolder:
    """Results of one build, in a folder that all workers share."""

    path: Path
    digest: str  # digest of all inputs of the results

    def write(self, name: str, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any] | None = None) -> None:
        text = json.dumps(dict(facts or {}), ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
        every = {**tensors, _FACTS: np.frombuffer(text, np.uint8)}
        proof = {"format": _FORMAT, "digest": self.digest, "name": name, "sha256": _sha256(every)}
        write_tensors(self._file(name), every, proof)

    def read(self, name: str) -> WorkResult | None:
        """Read a result and compare its checksum; None if it is missing or damaged."""
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
        """Read a result that a worker must have written."""
        result = self.read(name)
        if result is None:
            raise TfaError(
                f"{self._file(name)} is missing or damaged although a worker wrote it; all workers must share one "
                "work folder: set it with --set build.work=FOLDER, and rerun the build to resume it",
                self._file(name),
            )
        return result

    def erase(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the folder after the map is published."""
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


_GROUPS = 16  # maximum number of stored sums, which for descriptors have up to 270 MB each


@dataclass(frozen=True)
class ItemReport:
    """A worker's report on a shard or a group."""

    number: int
    images: int
    before: bool = False  # whether the result existed already
    skipped: SkippedPhotos = field(default_factory=list)
    placed: int = 0  # images with a position

    @classmethod
    def of(cls, number: int, facts: Mapping[str, Any], *, before: bool) -> ItemReport:
        """Make it from facts: `payload` of images and `skipped` photos, or the `count` of a sum."""
        payload = facts.get("payload", ())
        placed = sum(one["position"] is not None for one in payload)
        skipped = [(uri, reason) for uri, reason in facts.get("skipped", ())]
        return cls(number, facts.get("count", len(payload)), before, skipped, placed)


@dataclass(frozen=True)
class Group:
    """A fixed group of consecutive shards; sums do not depend on the workers."""

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
    """A picklable function of one item whose results are files of the work folder; existing ones are reused."""

    kind: ClassVar[str]  # prefix of its files
    folder: WorkFolder

    def __call__(self, item: Item) -> ItemReport:
        known = self.read_done(item.number)
        if known is not None:
            return ItemReport.of(item.number, known, before=True)
        tensors, facts = self.compute(item)
        self.folder.write(name_result(self.kind, item.number), tensors, facts)
        return ItemReport.of(item.number, facts, before=False)

    def read_done(self, number: int) -> Mapping[str, Any] | None:
        """Return the facts of an item that is done, or None."""
        kept = self.folder.read(name_result(self.kind, number))
        return None if kept is None else kept.facts

    @abstractmethod
    def compute(self, item: Item) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Compute arrays and facts of an item, as `ItemReport.of` reads them."""


def name_result(kind: str, number: int) -> str:
    return f"{kind}-{number:06d}"

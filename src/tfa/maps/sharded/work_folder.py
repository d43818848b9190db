"""The work folder of a build: a file for the result of each shard, whose presence is the proof that it is done.

A file is written under a temporary name and renamed, and says of which build it is. What is damaged, or of another
build, counts as not there and is made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import BadFile, cache_folder, map_tensors, write_tensors
from tfa.base.reading import parse_json
from tfa.errors import TfaError

FORMAT = "tfa-shard-1"
FACTS = "facts"  # the tensor that holds JSON


@dataclass(frozen=True)
class Result:
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

    @classmethod
    def default(cls, digest: str) -> WorkFolder:
        """Beside the cache of tokens; another build has another one."""
        return cls(cache_folder() / "builds" / digest[:32], digest)

    def write(self, name: str, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any] | None = None) -> None:
        text = json.dumps(dict(facts or {}), ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
        every = {**tensors, FACTS: np.frombuffer(text, np.uint8)}
        proof = {"format": FORMAT, "digest": self.digest, "name": name, "sha256": _sha256(every)}
        write_tensors(self._file(name), every, proof)

    def read(self, name: str) -> Result | None:
        """A result whose every byte is as it was written; None if there is none."""
        try:
            tensors, proof = map_tensors(self._file(name))
            known = {"format": FORMAT, "digest": self.digest, "name": name, "sha256": _sha256(tensors)}
            if proof != known:
                return None
            facts = parse_json(tensors[FACTS].tobytes())
        except (BadFile, OSError, ValueError, KeyError):
            return None
        return Result({key: array for key, array in tensors.items() if key != FACTS}, facts)

    def needed(self, name: str) -> Result:
        """A result that another worker has made."""
        result = self.read(name)
        if result is None:
            raise TfaError(
                f"{self._file(name)} is not there, or is damaged, though a worker has made it; all workers must see "
                "one work folder: name one that they share with --work, and build again: what is done is not repeated",
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

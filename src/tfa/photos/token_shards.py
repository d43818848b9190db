"""The files of the token cache: float16 safetensors shards of a few dozen images, a folder for each encoder.

Tensor `<digest>.patches` is `n d`, `<digest>.cls` is `d_g`; the digest is the sha256 of the image file.
A shard is written whole or not at all. Whatever else lies in the folder is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import read_tensor_header, write_tensors
from tfa.base.locks import tidy
from tfa.errors import BadTokens, TfaError

_MAPPED = 4  # shards kept mapped at once: mapped pages count as resident memory


@dataclass(frozen=True)
class Span:
    """A float16 tensor inside a shard."""

    shard: Path
    start: int  # byte
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    patches: Span
    cls: Span | None


class Shelf:
    """The shards of one encoder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self._read: dict[tuple[str, int, int], dict[str, Entry]] = {}  # by name, size and time of the file

    def entries(self) -> dict[str, Entry]:
        """What is on the shelf by image digest. Looks at the folder each time, at each file once."""
        read = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with contextlib.suppress(FileNotFoundError):  # another process may tidy up
                status = path.stat()
                key = (path.name, status.st_size, status.st_mtime_ns)
                read[key] = self._read[key] if key in self._read else _read_shard(path, self.fingerprint)
        self._read = read
        return {digest: entry for shard in read.values() for digest, entry in shard.items()}

    def write(self, tokens: Mapping[str, tuple[np.ndarray, np.ndarray | None]], metadata: Mapping[str, str]) -> None:
        """Add one shard with patches and global token of each digest."""
        tensors = {}
        for digest, (patches, cls) in tokens.items():
            tensors[f"{digest}.patches"] = patches
            if cls is not None:
                tensors[f"{digest}.cls"] = cls
        # Named by what it holds, so that a damaged shard is replaced when its images are encoded again.
        name = hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.safetensors"
        write_tensors(path, tensors, {**metadata, "fingerprint": self.fingerprint})

    def tidy(self) -> None:
        """Remove what killed processes left half written."""
        tidy(self.folder, ".*.tmp")


def list_digests(folder: Path) -> set[str]:
    """List the digests of all images on a shelf, whatever their encoder."""
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(TfaError, OSError, ValueError, AttributeError):  # a damaged file has none
            tensors, _, _ = read_tensor_header(path)
            found.update(name.removesuffix(".patches") for name in tensors if name.endswith(".patches"))
    return found


def _read_shard(path: Path, fingerprint: str) -> dict[str, Entry]:
    """Entries of a shard; none if it is truncated, of another encoder, or not a shard."""
    try:
        tensors, metadata, start = read_tensor_header(path)
        if metadata.get("fingerprint") != fingerprint:
            return {}
        spans = {name: _span(path, start, tensor) for name, tensor in tensors.items()}
    except (TfaError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name.removesuffix(".patches"): Entry(span, spans.get(name.removesuffix(".patches") + ".cls"))
        for name, span in spans.items()
        if name.endswith(".patches") and len(span.shape) == 2
    }


def _span(path: Path, start: int, tensor: dict[str, Any]) -> Span:
    shape, (first, last) = tuple(int(side) for side in tensor["shape"]), tensor["data_offsets"]
    if tensor["dtype"] != "F16" or last - first != 2 * math.prod(shape):
        raise ValueError(f"{path} has a tensor of dtype {tensor['dtype']} and shape {shape}")
    return Span(path, start + first, shape)


class MappedTokens(Sequence):
    """Patches `n d` of one image after the other, read from memory-mapped shards when used."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.shapes = np.array([entry.patches.shape for entry in entries], dtype=np.int64).reshape(-1, 2)
        self._map = lru_cache(_MAPPED)(_map_shard)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._view(self._entries[index].patches)

    def global_tokens(self) -> np.ndarray | None:
        """`b d_g`, copied; None for an encoder without global tokens."""
        spans = [entry.cls for entry in self._entries if entry.cls is not None]
        if not spans:
            return None
        if len(spans) != len(self._entries):
            raise BadTokens(f"the token cache has global tokens for {len(spans)} of {len(self)} images of one encoder")
        return np.stack([self._view(span) for span in spans])

    def _view(self, span: Span) -> np.ndarray:
        content = self._map(span.shard)[span.start : span.start + 2 * math.prod(span.shape)]
        return content.view(np.float16).reshape(span.shape)


def _map_shard(path: Path) -> np.ndarray:
    try:
        return np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise BadTokens(f"the token cache lost {path} ({error.strerror}); encode the images again", path) from None

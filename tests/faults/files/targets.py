"""What is damaged: real files that the package wrote, and who reads them.

A literal catalogue; the module of a target is imported when it is needed, so that a process that tries CSV files does
not import torch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

GIGABYTE = 1 << 30
CORPORA = Path(__file__).parent / "corpora"

# Name of a target → the module and function that makes it, what the table calls it, attempts: bounded and full.
TARGETS: dict[str, tuple[str, str, str, int, int]] = {
    "judged map": ("maps", "judged", "saved maps", 60, 6_000),
    "paper map": ("maps", "paper", "saved maps", 60, 6_000),
    "signed map": ("maps", "signed", "maps with a valid header", 60, 10_000),
    "stored map": ("maps", "stored", "documents of a map in a store", 60, 10_000),
    "token cache": ("maps", "shards", "token cache shards", 60, 20_000),
    "adaptation": ("maps", "adaptation", "camera states of a service", 20, 20_000),
    "camera file": ("maps", "cameras", "camera states of a service", 20, 4_000),
    "confirmations": ("maps", "confirmations", "confirmation times", 20, 6_000),
    "loop state": ("maps", "loops", "states of loop closing", 10, 2_000),
    "png": ("images", "png", "photos and their EXIF data", 25, 4_000),
    "jpeg": ("images", "jpeg", "photos and their EXIF data", 25, 6_000),
    "webp": ("images", "webp", "photos and their EXIF data", 25, 4_000),
    "tiff": ("images", "tiff", "photos and their EXIF data", 25, 4_000),
    "gif": ("images", "gif", "photos and their EXIF data", 25, 8_000),
    "exif": ("images", "exif", "photos and their EXIF data", 25, 8_000),
    "positions": ("tables", "positions", "position tables", 60, 12_000),
    "tracks": ("tables", "tracks", "GPX tracks", 30, 6_000),
    "photo lists": ("tables", "manifests", "lists of photos", 30, 4_000),
    "records": ("tables", "records", "benchmark records", 50, 9_000),
    "truth": ("tables", "truth", "benchmark records", 20, 4_000),
    "evaluation": ("tables", "evaluation", "benchmark records", 15, 2_000),
    "vocabulary": ("tables", "vocabulary", "released vocabularies", 40, 12_000),
    "pickled truth": ("layouts", "pickled", "dataset ground truth", 60, 6_000),
    "listed truth": ("layouts", "listed", "dataset ground truth", 30, 6_000),
    "positives": ("layouts", "positives", "dataset ground truth", 30, 5_000),
    "tables of truth": ("layouts", "tables", "dataset ground truth", 30, 3_000),
    "poses": ("layouts", "poses", "dataset ground truth", 30, 6_000),
    "bags": ("recordings", "bags", "bags and videos", 40, 6_000),
    "videos": ("recordings", "videos", "bags and videos", 15, 2_000),
    "safetensors": ("weights", "safetensors", "encoder weights", 15, 1_500),
    "torch": ("weights", "pth", "encoder weights", 15, 1_500),
    "settings": ("settings", "toml", "settings files", 60, 30_000),
    "requests": ("requests", "requests", "requests to a service", 60, 30_000),
}

FAILING_ON_PURPOSE = ("raises", "crashes", "hangs", "fills", "takes", "mumbles")


@dataclass(frozen=True)
class Layer:
    """What lies inside a file: damaged there, it gets past the checks of the outside."""

    unwrap: Callable[[bytes], bytes]
    wrap: Callable[[bytes, bytes], bytes]  # the damaged inside, the whole original
    json: bool = True  # is the inside JSON?


@dataclass(frozen=True)
class Target:
    name: str
    files: Mapping[str, bytes]  # by path below the target's folder, in whose subfolders they lie already
    # Read a folder in which the named file was replaced; the last argument says whether it differs at all.
    read: Callable[[Path, str, bool], object]
    layers: Mapping[str, Layer] = field(default_factory=dict)
    same_size: bool = False  # are other sizes refused at once, and therefore dull?
    memory: int = GIGABYTE  # that an attempt may take

    @property
    def victims(self) -> Sequence[str]:
        return sorted(self.files)


def load_target(name: str, folder: Path) -> Target:
    module, maker = TARGETS[name][:2] if name in TARGETS else ("failures", "make")
    folder.mkdir(parents=True, exist_ok=True)
    target: Target = getattr(import_module(f"tests.faults.files.of_{module}"), maker)(name, folder)
    for file, content in target.files.items():
        assert (folder / file).read_bytes() == content
    for file in target.victims[:9]:
        target.read(folder, file, False)  # undamaged it is accepted, and what is imported late is imported
    return target


def corpus_folder(name: str) -> Path:
    return CORPORA / name.replace(" ", "-")


def corpus(name: str) -> list[str]:
    """The stored inputs of a target, which found a bug or reach code that the undamaged files do not.

    Each lies in its corpus folder, below the path of the file that it replaces.
    """
    return sorted(files_below(corpus_folder(name), "**/*"))


def files_below(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The files that match, by their path below `folder`."""
    found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


# --- layers --------------------------------------------------------------------------------------------------------

PLAIN_JSON = Layer(lambda data: data, lambda inner, data: inner)
PADDED_JSON = Layer(lambda data: data, lambda inner, data: inner.ljust(len(data)))


def _header(data: bytes) -> bytes:
    return data[8 : 8 + struct.unpack("<Q", data[:8])[0]]


def _with_header(header: bytes, data: bytes) -> bytes:
    """A safetensors file with another header, of the same size if that is possible."""
    old = _header(data)
    padded = header.ljust(len(old))
    return struct.pack("<Q", len(padded)) + padded + data[8 + len(old) :]


TENSOR_HEADER = Layer(_header, _with_header)


def compact_json(data: bytes) -> bytes:
    """The same JSON without blanks, so that a changed one has room within the same size."""
    return json.dumps(json.loads(data), separators=(",", ":")).encode()

"""Records: a head's answers to every query of a dataset, stored so that anyone can rescore them.

    results/sped/dataset.json                             names, positives, conditions
    results/sped/dinov2-s14-focus@322/records.zip         records of all heads under one encoder, stored uncompressed
      tfa-c64.npz                                         record of one head
        facts.json                                        JSON values
        rankings.npy, confidence.npy, sample.npy          arrays

A record holds rankings, not recalls: `run` writes it and `scores` scores it without a model. It is written once and
never changed; only a new revision of the algorithm replaces it. Everything except `timings` is determined by its
inputs, whose digest it stores.

`zipfile` and `numpy.load` read these files too. One archive holds many heads because small files waste half a block
each. Members of an npz file are compressed with LZMA. Reading is bounded by constants of this module and never
unpickles.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from tfa.core.files import (
    check_format,
    explain_disk_errors,
    hash_json,
    make_folder,
    parse_json,
    parse_npy,
    parse_npy_header,
    require_format,
    write_atomically,
    write_json,
)
from tfa.encoders.catalogue import use_current_name
from tfa.errors import TfaError

try:
    import fcntl
except ImportError:  # Windows cannot lock folders
    fcntl = None  # type: ignore[assignment]

# --- files ---------------------------------------------------------------------------------------------------------


ARCHIVE = "records.zip"
_SUFFIX, _FACTS, _ARRAY = ".npz", "facts.json", ".npy"
_TYPES = ("|b1", "|u1", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8")
_ARCHIVE_BYTES = 500_000_000  # maximum bytes of an archive on disk, and of each npz file in it
CONTENT_BYTES = 250_000_000  # maximum uncompressed bytes of all members of an npz file
_DICTIONARY_BYTES = 1 << 23  # memory needed to decompress zipfile's own LZMA settings
_CHUNK_BYTES = 4096  # compressed bytes per step: LZMA expands them up to some 7,000 times
_BROKEN = (
    zipfile.BadZipFile, lzma.LZMAError, struct.error, EOFError, KeyError, NotImplementedError, OverflowError,
    RuntimeError, UnicodeError,
)  # fmt: skip


class BadRecord(TfaError):
    """A record is damaged or of a version that this release does not read."""


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, waiting for other processes and threads. No effect on Windows."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@dataclass(frozen=True)
class RecordPath:
    """Location of one head's record: an archive and the head's name."""

    archive: Path
    head: str

    def __str__(self) -> str:
        return str(self.archive / self.member)

    @property
    def member(self) -> str:
        return f"{self.head}{_SUFFIX}"

    @property
    def dataset_folder(self) -> Path:
        return self.archive.parent.parent

    def exists(self) -> bool:
        return self.archive.exists() and self.member in _read_names(self.archive)

    def read_bytes(self) -> bytes:
        """Read the npz file of the record."""
        with _opened(self.archive) as archive:
            if self.member not in archive.namelist():
                raise BadRecord(f"{self} does not exist")
            return _read_stored(archive, self.member)

    def write_bytes(self, content: bytes, *, replace: bool = False) -> None:
        """Write an npz file into the archive and keep its other members; refuse to replace one unless `replace`.

        The new archive replaces the old one atomically. Processes that write to one archive wait for each other.
        """
        with explain_disk_errors(self.archive):
            make_folder(self.archive.parent)
        with _lock_folder(self.archive.parent):
            members = _read_members(self.archive) if self.archive.exists() else {}
            if self.member in members and not replace:
                raise BadRecord(f"{self} exists; records are never overwritten. Remove it, or write to another folder")
            members[self.member] = content
            packed = _zip(members, zipfile.ZIP_STORED)
            write_atomically(self.archive, lambda temporary: temporary.write_bytes(packed))


def record_path(results: Path, dataset: str, encoder: str, head: str) -> RecordPath:
    return RecordPath(results / dataset / encoder.replace("/", "_") / ARCHIVE, head)


def find_records(results: Path) -> list[RecordPath]:
    """List the records below a results folder, or a dataset's folder, or in one archive, in order."""
    if not results.exists():
        raise BadRecord(f"{results} does not exist; write records with: tfa bench run --out {results}")
    archives = [results] if results.is_file() else sorted(results.rglob(ARCHIVE))
    names = {archive: sorted(_read_names(archive)) for archive in archives}
    return [RecordPath(archive, name.removesuffix(_SUFFIX)) for archive in archives for name in names[archive]]


def encode_npz(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Encode JSON values and arrays as an npz file; equal content gives equal bytes."""
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    members = {_FACTS: text.encode("utf-8", "backslashreplace")}
    for name, array in arrays.items():
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        assert array.dtype.str in _TYPES, f"{array.dtype} is not a type of records"
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
        members[name + _ARRAY] = buffer.getvalue()
    return _zip(members, zipfile.ZIP_LZMA)


def decode_npz(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the JSON object and the arrays of an npz file; ValueError if it is damaged or too large."""
    with _unzipped(content) as archive:
        names = [name for name in archive.namelist() if name.endswith(_ARRAY)]
        arrays = {name.removesuffix(_ARRAY): _decode_array(_expand(archive, content, name)) for name in names}
        return _decode_facts(archive, content), arrays


def decode_facts(content: bytes) -> dict[str, Any]:
    """Read the JSON object of an npz file only."""
    with _unzipped(content) as archive:
        return _decode_facts(archive, content)


def _zip(members: Mapping[str, bytes], method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name)  # a fixed date, so that a file depends only on its content
            member.create_system = 3
            archive.writestr(member, content, method)
    return buffer.getvalue()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive of npz files; BadRecord if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > _ARCHIVE_BYTES:
            raise ValueError(f"it is larger than the limit of {_ARCHIVE_BYTES:,} bytes")
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_size > size for member in archive.infolist()):  # this size would be allocated
                raise ValueError("it is smaller than one of its members")
            others = [name for name in archive.namelist() if not name.endswith(_SUFFIX)]
            if others:  # a truncated archive looks like the last whole npz file in it
                raise ValueError(f"it holds {others[0][:80]!r}, which is not a record")
            yield archive
    except FileNotFoundError:
        raise BadRecord(f"{path} does not exist") from None
    except (OSError, ValueError, *_BROKEN) as error:
        raise BadRecord(f"{path} cannot be read: {error}") from None


def _read_names(path: Path) -> list[str]:
    with _opened(path) as archive:
        return archive.namelist()


def _read_members(path: Path) -> dict[str, bytes]:
    with _opened(path) as archive:
        return {name: _read_stored(archive, name) for name in archive.namelist()}


def _read_stored(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{name!r} in it is compressed; members must be stored uncompressed")
    return archive.read(name)


@contextlib.contextmanager
def _unzipped(content: bytes) -> Iterator[zipfile.ZipFile]:
    """Open an npz file in memory, within the size limit; ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if len(set(archive.namelist())) != len(archive.infolist()):
                raise ValueError("it has two members with the same name")
            size = sum(member.file_size for member in archive.infolist())
            if size > CONTENT_BYTES:
                raise ValueError(f"its members take {size:,} bytes, more than the limit of {CONTENT_BYTES:,}")
            yield archive
    except _BROKEN as error:
        raise ValueError(f"it is not a complete npz file ({type(error).__name__}: {error})") from None


def _expand(archive: zipfile.ZipFile, content: bytes, name: str) -> bytes:
    """Decompress a member within its declared size; zipfile itself would allocate any size a hostile file claims."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_LZMA:
        raise ValueError(f"{name} in it is not compressed with LZMA")
    lengths = struct.unpack_from("<HH", content, member.header_offset + 26)  # lengths of the name and the extra field
    _, properties, _, dictionary = struct.unpack_from("<HHBI", content, member.header_offset + 30 + sum(lengths))
    if properties != 5 or dictionary > _DICTIONARY_BYTES:
        raise ValueError(f"{name} in it needs {dictionary:,} bytes to decompress, more than {_DICTIONARY_BYTES:,}")
    with archive.open(member) as stream:
        expanded = b"".join(iter(partial(stream.read, _CHUNK_BYTES), b""))
    if len(expanded) != member.file_size:
        raise ValueError(f"{name} in it has {len(expanded):,} bytes, expected {member.file_size:,}")
    return expanded


def _decode_facts(archive: zipfile.ZipFile, content: bytes) -> dict[str, Any]:
    facts = parse_json(_expand(archive, content, _FACTS))
    if not isinstance(facts, dict):
        raise ValueError(f"{_FACTS} in it is not a JSON object")
    return facts


def _decode_array(content: bytes) -> np.ndarray:
    shape, fortran, dtype, left = parse_npy_header(io.BytesIO(content), len(content))
    if dtype.str not in _TYPES:
        raise ValueError(f"an array in it is of type {dtype.str!r}; allowed are {', '.join(_TYPES)}")
    return parse_npy(content[len(content) - left :], shape, fortran, dtype)


# --- records -------------------------------------------------------------------------------------------------------


FORMAT, VERSION = "tfa-record", 1
LABELS = "labels"  # data used by a trained system, elsewhere
TRUTH_FORMAT = "tfa-dataset"
TRUTH_FILE = "dataset.json"


@dataclass(frozen=True)
class Truth:
    """Ground truth of a dataset: one file, shared by its records."""

    name: str
    title: str
    database: tuple[str, ...]  # paths below the dataset's folder
    queries: tuple[str, ...]
    positives: tuple[np.ndarray, ...]  # per query, indices into database
    conditions: Mapping[str, np.ndarray]  # name → indices of its queries; {} without conditions
    rule: str  # description of what makes a positive

    @property
    def fingerprint(self) -> str:
        return hash_json(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "format": TRUTH_FORMAT,
            "version": VERSION,
            "name": self.name,
            "title": self.title,
            "rule": self.rule,
            "database": list(self.database),
            "queries": list(self.queries),
            "positives": [" ".join(map(str, right)) for right in self.positives],
            "conditions": {name: " ".join(map(str, own)) for name, own in self.conditions.items()},
        }

    def write(self, folder: Path) -> None:
        write_json(folder / TRUTH_FILE, {**self._content(), "fingerprint": self.fingerprint})

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / TRUTH_FILE
        values = require_format(path, TRUTH_FORMAT, VERSION, BadRecord)
        try:
            truth = cls(
                values["name"],
                values["title"],
                tuple(values["database"]),
                tuple(values["queries"]),
                tuple(_numbers(right) for right in values["positives"]),
                {name: _numbers(own) for name, own in values["conditions"].items()},
                values["rule"],
            )
            whole = truth.fingerprint == values.get("fingerprint")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}; restore it or rerun") from None
        if not whole:
            raise BadRecord(f"{path} was edited: its content does not match its fingerprint; restore it or rerun")
        return truth


@dataclass(frozen=True, eq=False)
class ScoreSample:
    """Small sample of the score matrix for a figure: 256 steps from its lowest to its highest score."""

    queries: tuple[int, ...]
    database: tuple[int, ...]
    low: float
    high: float
    steps: np.ndarray  # (queries, database), uint8

    @classmethod
    def of(cls, queries: np.ndarray, database: np.ndarray, scores: np.ndarray) -> Self:
        scores = np.asarray(scores, np.float64)
        finite = scores[np.isfinite(scores)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        high = high if high > low else low + 1  # avoid a division by zero if all scores are equal
        scores = np.nan_to_num(scores, nan=low, neginf=low, posinf=high)
        steps = np.round((scores - low) / (high - low) * 255).astype(np.uint8)
        return cls(tuple(queries.tolist()), tuple(database.tolist()), low, high, steps)

    @property
    def scores(self) -> np.ndarray:
        return self.low + (self.high - self.low) / 255 * self.steps.astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the steps."""
        return {"queries": list(self.queries), "database": list(self.database), "low": self.low, "high": self.high}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], steps: np.ndarray) -> Self:
        return cls(tuple(values["queries"]), tuple(values["database"]), values["low"], values["high"], steps)


@dataclass(frozen=True)
class Record:
    """Record of one head on one dataset under one encoder."""

    dataset: Mapping[str, Any]  # name, title, number of database images and queries, fingerprint of its Truth
    encoder: Mapping[str, Any]  # id (its current name), fingerprint, grid
    head: Mapping[str, Any]  # name, title, data_used, note, settings
    plan: Mapping[str, Any]  # Plan.to_dict()
    algorithm: Mapping[str, int]  # stage → revision; {} in records made before revisions were recorded
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    replicas: tuple[str, ...]
    seeds: tuple[int | None, ...]  # one per split
    # Per split: calibration, evaluated, condition, decisions and the kind of confidence.
    folds: tuple[tuple[Mapping[str, Any], ...], ...]
    rankings: np.ndarray  # (queries, splits, replicas, depth): database indices, or `nothing`
    confidence: np.ndarray  # (queries, splits, replicas) of the best answer; nan if not evaluated
    sample: ScoreSample
    timings: Mapping[str, float]  # seconds

    @property
    def nothing(self) -> int:
        """Index that means no image: not evaluated in this split, or a row of equal scores."""
        return int(np.iinfo(self.rankings.dtype).max)

    @property
    def depth(self) -> int:
        return int(self.rankings.shape[3])

    @property
    def inputs(self) -> dict[str, Any]:
        """Return everything that determines its content on one machine."""
        named = ("dataset", "encoder", "head", "plan", "algorithm")
        return {**{name: dict(getattr(self, name)) for name in named}, "depth": self.depth}

    @property
    def confidence_kinds(self) -> tuple[str, ...]:
        """Kinds of its confidences: z-score of the best answer in its row, or probability that it is right.

        A head that reranks only if admitted may have both; each fold names its kind.
        """
        return tuple(dict.fromkeys(fold["confidence"] for folds in self.folds for fold in folds))

    def evaluated(self, split: int) -> np.ndarray:
        """Return the queries evaluated in a split, sorted by index."""
        return np.sort(np.concatenate([np.asarray(fold["evaluated"], np.int64) for fold in self.folds[split]]))

    @property
    def name(self) -> str:
        return str(self.head["name"])

    @property
    def identity(self) -> str:
        """Digest of everything except timings, versions and hardware: two runs of the same inputs share it."""
        facts = {key: value for key, value in self._facts().items() if key not in ("versions", "hardware")}
        # Digest the arrays themselves: their compression may differ between machines.
        return hash_json({**facts, "arrays": {name: _digest(array) for name, array in self._arrays().items()}})

    def _facts(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "dataset": dict(self.dataset),
            "encoder": dict(self.encoder),
            "head": dict(self.head),
            "plan": dict(self.plan),
            "algorithm": dict(self.algorithm),
            "versions": dict(self.versions),
            "hardware": dict(self.hardware),
            "replicas": list(self.replicas),
            "seeds": list(self.seeds),
            "folds": [[fold_to_dict(fold) for fold in folds] for folds in self.folds],
            "sample": self.sample.to_dict(),
        }

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"rankings": self.rankings, "confidence": self.confidence, "sample": self.sample.steps}

    def write(self, path: RecordPath, *, replace: bool = False) -> None:
        facts = {**self._facts(), "identity": self.identity, "timings": dict(self.timings)}
        path.write_bytes(encode_npz(facts, self._arrays()), replace=replace)

    @classmethod
    def read(cls, path: RecordPath) -> Self:
        try:
            values, arrays = decode_npz(path.read_bytes())
        except ValueError as error:
            raise BadRecord(f"{path} cannot be read: {error}") from None
        check_format(values, path, FORMAT, VERSION, BadRecord)
        try:
            record = cls(
                dataset=values["dataset"],
                encoder=values["encoder"],
                head=values["head"],
                plan=values["plan"],
                algorithm=values["algorithm"],
                versions=values["versions"],
                hardware=values["hardware"],
                replicas=tuple(values["replicas"]),
                seeds=tuple(values["seeds"]),
                folds=tuple(tuple(fold_from_dict(fold) for fold in folds) for folds in values["folds"]),
                rankings=check_array(arrays["rankings"], "u", 4),
                confidence=check_array(arrays["confidence"], "f", 3),
                sample=ScoreSample.from_dict(values["sample"], check_array(arrays["sample"], "u", 2)),
                timings=values["timings"],
            )
            whole = record.identity == values.get("identity")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadRecord(f"{path} is damaged: {type(error).__name__} {error}; restore it or rerun") from None
        if not whole:
            raise BadRecord(f"{path} was edited: its content does not match its identity; restore it or rerun")
        return replace(record, encoder=use_current_name(record.encoder))


def truth_of(path: RecordPath) -> Truth:
    """Read the ground truth of a record: `dataset.json` in its dataset's folder."""
    return Truth.read(path.dataset_folder)


def fold_to_dict(fold: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fold of a record as JSON values."""
    lists = {key: np.asarray(fold[key]).tolist() for key in ("calibration", "evaluated")}
    plain = {key: fold[key] for key in ("condition", "confidence")}
    return {**lists, **plain, "decisions": dict(fold["decisions"])}


def fold_from_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    lists = {key: _indices(values[key]) for key in ("calibration", "evaluated")}
    return {**lists, **{key: values[key] for key in ("condition", "confidence", "decisions")}}


def check_array(array: np.ndarray, kind: str, dimensions: int) -> np.ndarray:
    """Return an array from a file if its kind (`u`: unsigned integers) and dimensions are as expected."""
    if array.dtype.kind != kind or array.ndim != dimensions:
        raise ValueError(f"an array is of type {array.dtype} and has {array.ndim} dimensions, not {dimensions}")
    return array


def _indices(numbers: Sequence[int]) -> np.ndarray:
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("queries of a fold must be a list of integers")
    return np.array(numbers, np.int64)


def _digest(array: np.ndarray) -> list[Any]:
    """Return the parts of an array that an identity includes: type, shape and content."""
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return [array.dtype.str, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _numbers(text: str) -> np.ndarray:
    return np.array(text.split(), np.int64)

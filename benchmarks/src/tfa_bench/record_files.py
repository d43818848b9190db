"""Files of records: archives of npz files, which `zipfile` and `numpy.load` read too.

    results/sped/dinov2-s14-focus@322/records.zip    the records of all heads under one encoder, stored as they are
      tfa-c64.npz                                    the record of one head
        facts.json                                   what is not an array
        rankings.npy, confidence.npy, sample.npy     arrays

One archive holds many heads because small files waste half a block each. Members of an npz file are compressed with
LZMA. Reading is bounded by constants of this module and never unpickles.
"""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import (
    explain_disk_errors,
    lock_folder,
    make_folder,
    parse_json,
    parse_npy,
    parse_npy_header,
    write_atomically,
)
from tfa.errors import TfaError

ARCHIVE = "records.zip"
_SUFFIX, _FACTS, _ARRAY = ".npz", "facts.json", ".npy"
_TYPES = ("|b1", "|u1", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8")
_ARCHIVE_BYTES = 500_000_000  # an archive on disk, and each npz file in it
CONTENT_BYTES = 250_000_000  # all members of an npz file together, uncompressed
_DICTIONARY_BYTES = 1 << 23  # memory that zipfile's own LZMA settings need to decompress
_CHUNK_BYTES = 4096  # compressed bytes at once: LZMA makes at most some 7,000 times as much of them
_BROKEN = (
    zipfile.BadZipFile, lzma.LZMAError, struct.error, EOFError, KeyError, NotImplementedError, OverflowError,
    RuntimeError, UnicodeError,
)  # fmt: skip


class BadRecord(TfaError):
    """A record is damaged, or of a version this release does not read."""


@dataclass(frozen=True)
class RecordPath:
    """The place of one head's record: an archive and the name of the head."""

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
        """Put an npz file into the archive, whose other members stay; refuse to replace one unless `replace`.

        The new archive replaces the old one in one step. Processes that write to one archive wait for each other.
        """
        with explain_disk_errors(self.archive):
            make_folder(self.archive.parent)
        with lock_folder(self.archive.parent):
            members = _read_members(self.archive) if self.archive.exists() else {}
            if self.member in members and not replace:
                raise BadRecord(f"{self} exists; records are never overwritten: remove it, or write to another folder")
            members[self.member] = content
            packed = _zip(members, zipfile.ZIP_STORED)
            write_atomically(self.archive, lambda temporary: temporary.write_bytes(packed))


def record_path(results: Path, dataset: str, encoder: str, head: str) -> RecordPath:
    return RecordPath(results / dataset / encoder.replace("/", "_") / ARCHIVE, head)


def find_records(results: Path) -> list[RecordPath]:
    """List the records below a results folder, or a dataset's folder, or in one archive, in order."""
    if not results.exists():
        raise BadRecord(f"{results} does not exist; write records with tfa bench run --out {results}")
    archives = [results] if results.is_file() else sorted(results.rglob(ARCHIVE))
    names = {archive: sorted(_read_names(archive)) for archive in archives}
    return [RecordPath(archive, name.removesuffix(_SUFFIX)) for archive in archives for name in names[archive]]


def encode_npz(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Make an npz file of JSON values and arrays; the same content gives the same bytes."""
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
            member = zipfile.ZipInfo(name)  # dated 1980: a file depends on its content only
            member.create_system = 3
            archive.writestr(member, content, method)
    return buffer.getvalue()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive of npz files; BadRecord if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > _ARCHIVE_BYTES:
            raise ValueError(f"it is larger than the {_ARCHIVE_BYTES:,} bytes that are read")
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_size > size for member in archive.infolist()):  # so much would be allocated
                raise ValueError("it is smaller than one of its members")
            others = [name for name in archive.namelist() if not name.endswith(_SUFFIX)]
            if others:  # an archive that was cut short looks like the last whole npz file in it
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
        raise ValueError(f"{name!r} in it is compressed; its members must be stored as they are")
    return archive.read(name)


@contextlib.contextmanager
def _unzipped(content: bytes) -> Iterator[zipfile.ZipFile]:
    """Open an npz file in memory, no larger uncompressed than a record may be; ValueError if it is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if len(set(archive.namelist())) != len(archive.infolist()):
                raise ValueError("it has two members of one name")
            size = sum(member.file_size for member in archive.infolist())
            if size > CONTENT_BYTES:
                raise ValueError(f"its members take {size:,} bytes, more than the {CONTENT_BYTES:,} that are read")
            yield archive
    except _BROKEN as error:
        raise ValueError(f"it is not a whole npz file ({type(error).__name__}: {error})") from None


def _expand(archive: zipfile.ZipFile, content: bytes, name: str) -> bytes:
    """Decompress a member within its declared size; zipfile itself allocates any memory a hostile file requires."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_LZMA:
        raise ValueError(f"{name} in it is not compressed with LZMA")
    lengths = struct.unpack_from("<HH", content, member.header_offset + 26)  # of name and extra field
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

"""Integer and float arrays inside JSON: little-endian bytes, compressed, in base85 beside their shape and type.

The first bytes of all numbers stand together, then their second bytes, …: alike bytes compress well. JSON files of
such arrays are themselves compressed, which takes back what base85 adds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base import reading
from tfa.base.files import write_atomically
from tfa.base.reading import JSON_BYTES, parse_json, read_bounded
from tfa.errors import TfaError

TYPES = ("|b1", "<u1", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8")
ARRAYS_BYTES = 250_000_000  # all arrays of a record together; unpacking widens small numbers to eight times as much
EXPANDER_BYTES = 256_000_000  # memory of the decompressor; preset 6 needs 9 million
# Without a container and its checksum: the record has one.
_RAW: dict[str, Any] = {"format": lzma.FORMAT_RAW, "filters": [{"id": lzma.FILTER_LZMA2, "preset": 6}]}


class BadRecord(TfaError):
    """A record is damaged, or of a version this release does not read."""


def pack(array: np.ndarray) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    kind = _kind(array)
    assert kind in TYPES, f"{array.dtype} is not a type of records"
    planes = array.astype(kind, copy=False).reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T
    squeezed = lzma.compress(planes.tobytes(), **_RAW)
    return {"type": kind, "shape": list(array.shape), "lzma": base64.b85encode(squeezed).decode("ascii")}


def array_digest(array: np.ndarray) -> list[Any]:
    """What a digest takes of an array: its type, shape and content."""
    array = np.ascontiguousarray(array)
    content = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return [_kind(array), list(array.shape), hashlib.sha256(content).hexdigest()]


def _kind(array: np.ndarray) -> str:
    return array.dtype.newbyteorder("<").str.replace("|u1", "<u1")


def unpack(packed: dict[str, Any]) -> np.ndarray:
    try:
        kind, shape = packed["type"], packed["shape"]
        if kind not in TYPES:
            raise BadRecord(f"a packed array is of type {kind!r}; allowed are {', '.join(TYPES)}")
        size = declared_bytes(packed)
        squeezed = base64.b85decode(packed["lzma"])
        planes = np.frombuffer(_expanded(lzma.LZMADecompressor(**_RAW), squeezed, size), np.uint8)
        if len(planes) != size:
            raise ValueError(f"its shape {shape} needs {size:,} bytes, it has {len(planes):,}")
        numbers = np.ascontiguousarray(planes.reshape(np.dtype(kind).itemsize, -1).T) if size else planes
        return numbers.reshape(-1).view(kind).reshape(shape)
    except (KeyError, TypeError, ValueError, lzma.LZMAError, EOFError) as error:
        raise BadRecord(f"a packed array is damaged: {error}") from None


def declared_bytes(packed: dict[str, Any]) -> int:
    """What an array takes unpacked, by its own word; ValueError where that is no size or too large a one."""
    shape = packed["shape"]
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side <= ARRAYS_BYTES for side in shape):
        raise ValueError("its shape is not a list of sizes")
    size = math.prod(shape) * np.dtype(packed["type"]).itemsize
    if size > ARRAYS_BYTES or math.prod(filter(None, shape)) > ARRAYS_BYTES:
        raise ValueError(f"its shape {shape} needs more than the {ARRAYS_BYTES:,} bytes that are read")
    return size


def check_arrays(value: Any) -> None:
    """Refuse JSON whose packed arrays take more, all together, than a record may: a small file can hold huge ones."""
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and isinstance(one.get("type"), str) and "shape" in one:
            total += declared_bytes(one) if one["type"] in TYPES else 0
        waiting += list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
    if total > ARRAYS_BYTES:
        raise ValueError(f"its arrays take {total:,} bytes, more than the {ARRAYS_BYTES:,} that are read")


def _expanded(expander: lzma.LZMADecompressor, squeezed: bytes, limit: int) -> bytes:
    """The content of compressed bytes; one byte above `limit` is all that is made of a longer one."""
    content = expander.decompress(squeezed, max_length=limit + 1)
    if len(content) <= limit and not expander.eof:
        raise EOFError("compressed data ended before the end-of-stream marker was reached")
    if len(content) > limit:
        raise ValueError(f"it holds more than {limit:,} bytes")
    return content


def write_packed(path: Path, content: dict[str, Any]) -> None:
    """JSON, compressed as .json.xz; the same content gives the same bytes."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    squeezed = lzma.compress(text.encode("utf-8"), preset=6)

    write_atomically(path, lambda temporary: temporary.write_bytes(squeezed))


def read_json(path: Path, error: type[TfaError], hint: str = "", *, packed: bool = False) -> Any:
    """The JSON of a file; `error` says that it is missing (and `hint` what to do) or cannot be read."""
    try:
        return read_packed(path) if packed else reading.read_json(path)
    except FileNotFoundError:
        raise error(f"{path} does not exist{hint}") from None
    except (OSError, ValueError) as problem:
        raise error(f"{path} cannot be read: {problem}") from None


def read_form(
    path: Path, form: str, version: int, error: type[TfaError], hint: str = "", *, packed: bool = False
) -> dict[str, Any]:
    """The JSON object of a file that says of which format and version it is."""
    values: dict[str, Any] = read_json(path, error, hint, packed=packed)
    if not isinstance(values, dict) or values.get("format") != form:
        raise error(f"{path} is not a {form} file{hint}")
    if values.get("version") != version:
        raise error(f"{path} is of version {values.get('version')}; this release reads version {version}: run again")
    return values


def read_packed(path: Path) -> Any:
    """What `write_packed` wrote; OSError or ValueError where it is not whole, or larger than a record may be."""
    squeezed = read_bounded(path, JSON_BYTES)
    try:
        values = parse_json(_expanded(lzma.LZMADecompressor(memlimit=EXPANDER_BYTES), squeezed, JSON_BYTES))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"its compressed content is damaged: {error}") from None
    check_arrays(values)
    return values

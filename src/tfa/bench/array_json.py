"""Integer and float arrays inside JSON: little-endian bytes, compressed, in base85 beside their shape and type.

The first bytes of all numbers stand together, then their second bytes, …: alike bytes compress well. JSON files of
such arrays are themselves compressed, which takes back what base85 adds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import write_atomically
from tfa.errors import TfaError

TYPES = ("|b1", "<u1", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8")
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
        kind, shape = packed["type"], tuple(packed["shape"])
        if kind not in TYPES:
            raise BadRecord(f"a packed array is of type {kind!r}; allowed are {', '.join(TYPES)}")
        planes = np.frombuffer(lzma.decompress(base64.b85decode(packed["lzma"]), **_RAW), np.uint8)
        numbers = np.ascontiguousarray(planes.reshape(np.dtype(kind).itemsize, -1).T)
        return numbers.reshape(-1).view(kind).reshape(shape)
    except (KeyError, TypeError, ValueError, lzma.LZMAError, EOFError) as error:
        raise BadRecord(f"a packed array is damaged: {error}") from None


def write_packed(path: Path, content: dict[str, Any]) -> None:
    """JSON, compressed as .json.xz; the same content gives the same bytes."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    squeezed = lzma.compress(text.encode("utf-8"), preset=6)

    write_atomically(path, lambda temporary: temporary.write_bytes(squeezed))


def read_json(path: Path, error: type[TfaError], hint: str = "", *, packed: bool = False) -> Any:
    """The JSON of a file; `error` says that it is missing (and `hint` what to do) or cannot be read."""
    try:
        return read_packed(path) if packed else json.loads(path.read_text("utf-8"))
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
    """What `write_packed` wrote; OSError or ValueError where it is not whole."""
    try:
        return json.loads(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"its compressed content is damaged: {error}") from None

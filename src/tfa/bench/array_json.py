"""Integer and float arrays inside JSON: little-endian bytes, compressed, in base85 beside their shape and type."""

from __future__ import annotations

import base64
import hashlib
import lzma
from typing import Any

import numpy as np

from tfa.errors import TfaError

TYPES = ("|b1", "<u1", "<u2", "<u4", "<i8", "<f2", "<f4", "<f8")


class BadRecord(TfaError):
    """A record is damaged, or of a version this release does not read."""


def pack(array: np.ndarray) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    kind = _kind(array)
    assert kind in TYPES, f"{array.dtype} is not a type of records"
    # xz, its container without a checksum of its own: the record has one.
    squeezed = lzma.compress(array.astype(kind, copy=False).tobytes(), check=lzma.CHECK_NONE, preset=6)
    return {"type": kind, "shape": list(array.shape), "xz": base64.b85encode(squeezed).decode("ascii")}


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
        content = lzma.decompress(base64.b85decode(packed["xz"]))
        return np.frombuffer(content, np.dtype(kind)).reshape(shape)
    except (KeyError, TypeError, ValueError, lzma.LZMAError, EOFError) as error:
        raise BadRecord(f"a packed array is damaged: {error}") from None

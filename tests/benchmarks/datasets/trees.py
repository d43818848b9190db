"""Small trees of images in the layouts that datasets come in."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, shade: int = 0) -> Path:
    """A tiny image; `shade` makes its bytes differ from those of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (shade % 256, shade // 256, 40)).save(path)
    return path


def pictures(folder: Path, names: Iterable[str], start: int = 0) -> list[Path]:
    return [picture(folder / name, start + number) for number, name in enumerate(names)]


def utm(east: float, north: float, note: str = "") -> str:
    return f"@{east:.2f}@{north:.2f}@10@S@@@@@@@@@@{note}@.jpg"


def ragged(rows: Iterable[Iterable[int]]) -> np.ndarray:
    """An object array of index arrays, as ground truth with unequal rows is stored."""
    listed = [np.array(list(row), np.int64) for row in rows]
    array = np.empty(len(listed), object)
    array[:] = listed
    return array


def save_objects(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array, allow_pickle=True)
    return path


def with_npy_header(pickled: bytes, shape: tuple[int, ...]) -> bytes:
    """A .npy file of objects around any pickle."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": shape})
    return stream.getvalue() + pickled


# --- what Python 2 wrote: byte strings (opcode U) where Python 3 has text and bytes ---


def python2_pairs(rows: list[tuple[int, list[int]]]) -> bytes:
    """The pickle Python 2 makes of an object array [[query, array of references], …]."""
    items = b"".join(b"K" + bytes([query]) + _python2_array(np.array(refs, "<i8")) for query, refs in rows)
    shape = b"K" + bytes([len(rows)]) + b"K\x02\x86"
    return b"\x80\x02" + _python2_reconstruct(shape, _python2_dtype(b"O8", b"|"), b"](" + items + b"e") + b"."


def _python2_array(array: np.ndarray) -> bytes:
    shape = b"K" + bytes([len(array)]) + b"\x85"
    return _python2_reconstruct(shape, _python2_dtype(b"i8", b"<"), _short(array.tobytes()))


def _python2_reconstruct(shape: bytes, dtype: bytes, data: bytes) -> bytes:
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _short(b"b") + b"\x87R"
    return start + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb"


def _python2_dtype(code: bytes, order: bytes) -> bytes:
    flags = b"K\x3f" if code.startswith(b"O") else b"K\x00"  # 63: items are Python objects
    state = b"(K\x03" + _short(order) + b"NNN" + b"J\xff\xff\xff\xff" * 2 + flags + b"tb"
    return b"cnumpy\ndtype\n" + _short(code) + b"K\x00K\x01\x87R" + state


def _short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text

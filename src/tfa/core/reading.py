"""Files that others wrote, read within bounds: so many bytes, so deep, and arrays as large as their file.

Every function raises ValueError with the half of a sentence that follows the name of the file; the caller says which
file it is and what to do. Nothing is allocated because a file says so, only because it has the bytes.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

JSON_BYTES = 128_000_000  # as parsed objects at most some twenty times as much
_TEXT_BYTES = 256_000_000
LINE_BYTES = 1_000_000
ARRAY_BYTES = 1_000_000_000
EMPTY_ROWS = 1_000_000
NPY_HEADER_BYTES = 10_000  # what numpy itself parses
XML_DEPTH = 100

_NPY_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_bounded(path: Path, limit: int = _TEXT_BYTES) -> bytes:
    """The bytes of a file that has no more than `limit`; also of a pipe or a device, whose size says nothing."""
    with open(path, "rb") as file:
        known = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if known <= limit else b""
    if known > limit or len(content) > limit:
        raise ValueError(f"it is larger than the {limit:,} bytes that are read")
    return content


def read_text(path: Path, limit: int = _TEXT_BYTES) -> str:
    """Text in UTF-8, with or without a byte-order mark, in lines of a sane length; no NUL, which no text file has."""
    content = read_bounded(path, limit)
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > LINE_BYTES:
            raise ValueError(f"its line {number:,} has {len(line):,} bytes, more than {LINE_BYTES:,}")
    if b"\0" in content:
        raise ValueError(f"it holds a NUL byte at {content.index(0):,} and is not a text file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not a text file in UTF-8 ({error.reason} at byte {error.start:,})") from None


def read_json(path: Path, limit: int = JSON_BYTES) -> Any:
    return parse_json(read_bounded(path, limit))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Infinite numbers and NaN, which JSON has not, are refused, and so are deep nests."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deep") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def parse_xml(content: bytes) -> Element:
    """The root of an XML text. Names are without their namespaces; a DOCTYPE, which may define entities that expand
    without bound or name other files, is refused, and so are deep nests."""
    parser, builder, depth = expat.ParserCreate(namespace_separator=" "), TreeBuilder(), 0

    def local(name: str) -> str:
        return name.rpartition(" ")[2]

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > XML_DEPTH:
            raise ValueError("its elements are nested too deep")
        builder.start(local(name), {local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(local(name))

    def refuse(*_: object) -> None:
        raise ValueError("it has a DOCTYPE, which is not read; remove that line")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML ({error})") from None
    return builder.close()


def read_npy(path: Path, limit: int = ARRAY_BYTES) -> np.ndarray:
    """The array of a `.npy` file of numbers or text. Objects, which are pickles, are refused."""
    with open(path, "rb") as file:
        shape, fortran, dtype, left = parse_npy_header(file, os.fstat(file.fileno()).st_size)
        if left > limit:
            raise ValueError(f"it is larger than the {limit:,} bytes that are read")
        if dtype.hasobject:
            raise ValueError("it holds pickled objects, which are not loaded")
        content = file.read(left)
    return parse_npy(content, shape, fortran, dtype)


def parse_npy(content: bytes, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> np.ndarray:
    """The array whose data these bytes are: exactly as many as its shape needs."""
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(content):
        raise ValueError(f"its header says {shape} of {dtype}, {needed:,} bytes; {len(content):,} follow")
    if not needed and math.prod(filter(None, shape)) > EMPTY_ROWS:  # they cost a file nothing and a loop everything
        raise ValueError(f"its header says {shape} of {dtype}: rows without content")
    array = np.frombuffer(content, dtype) if needed else np.empty(math.prod(shape), dtype)
    return with_letters(array).reshape(shape, order="F" if fortran else "C").copy()


def with_letters(array: np.ndarray) -> np.ndarray:
    """A flat array as it is. Text must be made of letters that Unicode has: Python takes others on trust."""
    if array.dtype.kind == "U" and array.size:
        codes = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if int(codes.max()) > sys.maxunicode:
            raise ValueError("it holds text with letters that Unicode does not have")
    return array


def parse_npy_header(stream: BinaryIO | io.BytesIO, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and type of a `.npy` file of `size` bytes, and how many bytes follow; the stream stands there."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _NPY_READERS:
            raise ValueError(f"version {version} of the npy format is not read here")
        start = stream.tell()
        length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
        if length > min(NPY_HEADER_BYTES, size - stream.tell()):
            raise ValueError(f"its header claims {length:,} bytes")
        stream.seek(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers of Python 2 need a second parsing, and numpy says so
            shape, fortran, dtype = _NPY_READERS[version](stream)
    except OSError:
        raise
    except ValueError:
        raise
    except Exception as error:  # a header is a Python literal, and literals fail in every way there is
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from None
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"its header says the shape {shape}")
    return shape, bool(fortran), dtype, size - stream.tell()

"""Reading arrays that others pickled, without running what they wrote.

A `.npy` file of objects (lists of unequal length, say) is a pickle, and a pickle may call any function. This
reader gives the pickle stand-ins in place of numpy's functions: they keep what they are given and do nothing.
The arrays are built afterwards, by us. Any other name in the file is refused. Pickles of Python 2 are read too.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tfa.bench.datasets.files import BadDataset

_CODES = re.compile(r"[?biufSU]\d*|O8?|O4")  # no structured or void types: ground truth has none


class _Dtype:
    """Stands for numpy.dtype."""

    def __init__(self, code: Any = "O", align: Any = False, copy: Any = False) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order, names = state[1], state[3]
        if names is not None:
            raise pickle.UnpicklingError("it holds a structured array")
        self.order = order.decode("latin1") if isinstance(order, bytes) else order

    def build(self) -> np.dtype[Any]:
        if not isinstance(self.code, str) or not _CODES.fullmatch(self.code) or self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it holds an array of type {self.code!r}")
        return np.dtype("O") if self.code.startswith("O") else np.dtype(self.order + self.code)


class _Ndarray:
    """Stands for numpy.ndarray, which pickles name but never call."""

    def __new__(cls, *args: Any) -> _Ndarray:
        raise pickle.UnpicklingError("it calls numpy.ndarray itself")

    def __setstate__(self, state: Any) -> None:
        """Present so that a pickle cannot set attributes of this class."""


class _Array:
    """Stands for _reconstruct(ndarray, (0,), b'b'): an empty array whose state follows."""

    def __init__(self, *args: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        _, shape, dtype, fortran, data = self.state
        kind = dtype.build()
        order: Any = "F" if fortran else "C"
        if kind == np.dtype("O"):
            flat = np.empty(len(data), object)
            for index, item in enumerate(data):  # one by one: numpy would stack lists of equal length
                flat[index] = _built(item)
            return flat.reshape(shape, order=order)
        return np.frombuffer(_bytes(data), kind).reshape(shape, order=order).copy()


class _Scalar:
    """Stands for scalar(dtype, bytes)."""

    def __init__(self, dtype: Any, data: Any = b"") -> None:
        self.dtype, self.data = dtype, data

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it gives a number a state")

    def build(self) -> Any:
        kind = self.dtype.build()
        if kind == np.dtype("O"):
            return _built(self.data)
        return np.frombuffer(_bytes(self.data), kind)[0]


class _Encoded:
    """Stands for _codecs.encode(text, "latin1"), which is how protocol 2 writes bytes."""

    def __new__(cls, text: Any, codec: Any = "latin1") -> Any:
        if codec not in ("latin1", "latin-1") or not isinstance(text, str):
            raise pickle.UnpicklingError(f"it encodes with {codec!r}")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Present so that a pickle cannot set attributes of this class."""


_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Ndarray,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # before and since numpy 2
    _ALLOWED[_module, "_reconstruct"] = _Array
    _ALLOWED[_module, "scalar"] = _Scalar


class _Refused(Exception):
    """A name that no array needs."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def load_object_array(path: Path) -> np.ndarray:
    """The array of a `.npy` file, plain or of objects. Nothing in the file is executed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadDataset(f"{path} is missing; this layout needs it") from None
    except OSError as error:
        raise BadDataset(f"{path} cannot be read: {error.strerror or error}") from None
    stream = io.BytesIO(content)
    try:
        shape, dtype = _header(stream)
        if not dtype.hasobject:
            stream.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # headers of Python 2 need a second parsing, and numpy says so
                return np.load(stream, allow_pickle=False)
        # latin1 gives every byte of a Python 2 string one character, so the bytes of numbers survive
        array = _built(_Unpickler(stream, encoding="latin1").load())
        if not isinstance(array, np.ndarray):
            raise pickle.UnpicklingError(f"it holds {type(array).__name__}")
        return array.reshape(shape)
    except _Refused as error:
        raise BadDataset(
            f"{path} was not loaded: its pickle calls {error}, which no array needs; "
            "nothing was executed. Get the file again from its owner"
        ) from None
    except Exception as error:  # damaged pickles fail in every way there is
        raise BadDataset(f"{path} is not a readable array file: {type(error).__name__}: {error}") from None


def _header(stream: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the npy format is not read here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        shape, _, dtype = readers[version](stream)
    return shape, dtype


def _built(value: Any) -> Any:
    """What was unpickled, with arrays in place of their stand-ins."""
    if isinstance(value, _Array | _Scalar):
        return value.build()
    if isinstance(value, _Dtype | type):
        raise pickle.UnpicklingError(f"it holds the type {value!r}")
    if isinstance(value, list | tuple):
        return type(value)(_built(item) for item in value)
    if isinstance(value, dict):
        return {_built(key): _built(item) for key, item in value.items()}
    return value


def _bytes(data: Any) -> bytes:
    return data.encode("latin1") if isinstance(data, str) else data

"""Read pickled arrays without executing anything.

A `.npy` file of objects (lists of unequal length, say) is a pickle, and a pickle may call any function. This reader
replaces numpy's functions by stand-ins that store their arguments and do nothing, and builds the arrays afterwards.
It rejects any other name in the file. It also reads Python 2 pickles.

A small pickle may also represent something huge: a memo with a billion entries, or lists that contain one list many
times. The first is rejected before reading, the second while building.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import parse_npy, parse_npy_header, read_bounded, with_letters
from tfa_bench.datasets.files import BadDataset

_MAX_PARTS = 50_000_000  # maximum values in one file, counting repeated references again
_MEMO_GAP = 100_000  # memo indices a pickler may skip
Counted = Callable[[Any], tuple[Any, int]]  # an unpickled value → the built value and its number of parts
_CODES = re.compile(r"[?biufSU]\d*|O8?|O4")  # no structured or void types: ground truth never uses them


class _Dtype:
    """Stand-in for numpy.dtype."""

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
    """Stand-in for numpy.ndarray, which pickles name but never call."""

    def __new__(cls, *args: Any) -> _Ndarray:
        raise pickle.UnpicklingError("it calls numpy.ndarray itself")

    def __setstate__(self, state: Any) -> None:
        """Present so that a pickle cannot set attributes of this class."""


class _Array:
    """Stand-in for _reconstruct(ndarray, (0,), b'b'): an empty array whose state follows."""

    def __init__(self, *args: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self, counted: Counted) -> tuple[np.ndarray, int]:
        _, shape, dtype, fortran, data = self.state
        kind = dtype.build()
        order: Any = "F" if fortran else "C"
        if kind != np.dtype("O"):
            array = with_letters(np.frombuffer(_bytes(data), kind)).reshape(shape, order=order).copy()
            return array, 1 + array.size
        flat, parts = np.empty(len(data), object), 1
        for index, item in enumerate(data):  # one by one: numpy would stack lists of equal length
            flat[index], own = counted(item)
            parts += own
        return flat.reshape(shape, order=order), parts


class _Scalar:
    """Stand-in for scalar(dtype, bytes)."""

    def __init__(self, dtype: Any, data: Any = b"") -> None:
        self.dtype, self.data = dtype, data

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it sets the state of a number")

    def build(self, counted: Counted) -> tuple[Any, int]:
        kind = self.dtype.build()
        if kind == np.dtype("O"):
            return counted(self.data)
        return with_letters(np.frombuffer(_bytes(self.data), kind))[0], 1


class _Encoded:
    """Stand-in for _codecs.encode(text, "latin1"), which protocol 2 uses to write bytes."""

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
    """A name that arrays do not need."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


def load_object_array(path: Path) -> np.ndarray:
    """Read the array of a `.npy` file, plain or of objects, without executing anything in it."""
    try:
        content = read_bounded(path)
        stream = io.BytesIO(content)
        shape, fortran, dtype, left = parse_npy_header(stream, len(content))
        if not dtype.hasobject:
            return parse_npy(content[len(content) - left :], shape, fortran, dtype)
        _check_memo(stream)
        # latin1 maps every byte of a Python 2 string to one character, so number bytes survive
        array = _Builder().built(_Unpickler(stream, encoding="latin1").load())
        if not isinstance(array, np.ndarray):
            raise pickle.UnpicklingError(f"it holds {type(array).__name__}")
        return array.reshape(shape)
    except FileNotFoundError:
        raise BadDataset(f"{path} is missing; this layout needs it") from None
    except OSError as error:
        raise BadDataset(f"{path} cannot be read: {error.strerror or error}") from None
    except _Refused as error:
        raise BadDataset(
            f"{path} was not loaded: its pickle calls {error}, which arrays do not need; "
            "nothing was executed. Download the file again"
        ) from None
    except Exception as error:  # damaged pickles raise many exception types
        raise BadDataset(
            f"{path} is not a readable array file: {type(error).__name__}: {error}; download it again"
        ) from None


def load_rows(path: Path) -> np.ndarray:
    """Read an array with at least one axis."""
    array = load_object_array(path)
    if array.ndim == 0:
        raise BadDataset(f"{path} holds one value, must hold a list of rows; download it again")
    return array


def _check_memo(stream: io.BytesIO) -> None:
    """Reject a memo with gaps: the unpickler allocates all entries below the highest index."""
    start, filled = stream.tell(), 0
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            assert isinstance(argument, int)
            filled += 1
            if argument > 2 * filled + _MEMO_GAP:
                raise pickle.UnpicklingError(f"its memo index {argument:,} is too large for {filled:,} objects")
    stream.seek(start)


class _Builder:
    """Convert unpickled values into arrays. A value referenced twice is built once and counted twice."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, int, Any]] = {}  # id → built value, its parts, and the source object
        self._open: set[int] = set()

    def built(self, value: Any) -> Any:
        """Return the value with arrays instead of stand-ins."""
        return self._counted(value)[0]

    def _counted(self, value: Any) -> tuple[Any, int]:
        """Return the built value and its number of parts."""
        if isinstance(value, _Dtype | type):
            raise pickle.UnpicklingError(f"it holds the type {value!r}")
        if not isinstance(value, _Array | _Scalar | list | tuple | dict):
            return value, 1
        key = id(value)
        if key in self._open:
            raise pickle.UnpicklingError("it contains itself")
        if key not in self._done:
            self._open.add(key)
            made, parts = self._made(value)
            if parts > _MAX_PARTS:
                raise pickle.UnpicklingError(f"it represents more than {_MAX_PARTS:,} values")
            self._done[key] = made, parts, value
            self._open.remove(key)
        return self._done[key][:2]

    def _made(self, value: Any) -> tuple[Any, int]:
        if isinstance(value, _Array):
            return value.build(self._counted)
        if isinstance(value, _Scalar):
            return value.build(self._counted)
        if isinstance(value, dict):
            pairs = [(self._counted(key), self._counted(item)) for key, item in value.items()]
            return {key[0]: item[0] for key, item in pairs}, 1 + sum(key[1] + item[1] for key, item in pairs)
        items = [self._counted(item) for item in value]
        return type(value)(item for item, _ in items), 1 + sum(parts for _, parts in items)


def _bytes(data: Any) -> bytes:
    return data.encode("latin1") if isinstance(data, str) else data

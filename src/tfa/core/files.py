"""Write files that survive crashes, lock what is being written, and read files within bounds.

A file is written to a temporary file in the same folder, synced and renamed into place. Writers hold an flock on
temporary files and folders. The kernel releases it when the process dies, so leftovers of a killed process are
recognized and removed.

Untrusted files are read within limits of size, line length and nesting. These functions raise ValueError with the end
of a sentence; the caller adds the file name and the fix. Memory is allocated for the actual bytes of a file, never for
the size in its header.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import secrets
import shutil
import struct
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from tfa.errors import TfaError, from_os_error

# --- locks ----------------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows cannot lock folders, so nothing is tidied there
    fcntl = None  # type: ignore[assignment]

STALE_SECONDS = 3600  # age from which an unlocked temporary file is a leftover; newer ones may not be locked yet


class LockedFolder:
    """A new temporary folder, locked until `close` or `remove`. Only `remove` deletes it."""

    def __init__(self, parent: Path, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        self._handle: int | None = None
        try:
            self._handle = _open_locked(self.path)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()


def hold(handle: int) -> bool:
    """Lock an open file or folder until closed. Return False if another process holds it or locking is unsupported."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _open_locked(path: Path) -> int | None:
    """Open and lock a file or folder; return None if it is locked or locking is unsupported."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDONLY)
    if hold(handle):
        return handle
    os.close(handle)
    return None


def tidy(parent: Path, pattern: str, ours: Callable[[str], bool] = lambda name: False) -> None:
    """Remove files and folders of killed processes from `parent`.

    They match `pattern`, are unchanged for an hour and unlocked; a folder contains only files whose names are `ours`.
    Errors are ignored.
    """
    with contextlib.suppress(OSError):
        for path in parent.glob(pattern):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    _remove_if_left(path, ours)


def _remove_if_left(path: Path, ours: Callable[[str], bool]) -> None:
    if time.time() - path.stat().st_mtime < STALE_SECONDS:
        return
    if path.is_dir() and not all(ours(name) for name in os.listdir(path)):
        return
    handle = _open_locked(path)
    if handle is not None:
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(handle)


UMASK = os.umask(0o077)  # the only way to read it is to set it
os.umask(UMASK)
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class OpenFolder:
    """An open folder. If folders cannot be opened, as on Windows, `handle` is None and the path is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: int | None = None
        with contextlib.suppress(PermissionError):
            self.handle = os.open(path, os.O_RDONLY)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def is_there(self) -> bool:
        """Return True if the path still leads to this folder."""
        if self.handle is None:
            return self.path.is_dir()
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self) -> list[str]:
        return os.listdir(self.path if self.handle is None else self.handle)

    def read(self, name: str) -> bytes:
        with self._naming():
            handle = os.open(self._place(name), os.O_RDONLY, dir_fd=self.handle)
        with open(handle, "rb") as file:
            return file.read()

    def temporary(self, name: str) -> tuple[int, str]:
        """Create a private file to be renamed to `name`; return its handle and temporary name."""
        hidden = f".{name}.{secrets.token_hex(6)}.tmp"
        with self._naming():
            return os.open(self._place(hidden), _CREATE, 0o600, dir_fd=self.handle), hidden

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing a file with the new name."""
        with self._naming():
            os.replace(self._place(old), self._place(new), src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def chmod(self, name: str, mode: int) -> None:
        with self._naming():
            os.chmod(self._place(name), mode, dir_fd=self.handle)

    def remove(self, name: str) -> None:
        with self._naming():
            os.unlink(self._place(name), dir_fd=self.handle)

    def sync(self) -> None:
        """Make renames in this folder survive a power cut."""
        if self.handle is not None:
            try:
                os.fsync(self.handle)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file system without folder sync
                    raise

    def _place(self, name: str) -> str:
        return name if self.handle is not None else str(self.path / name)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn file names in system errors into full paths."""
        try:
            yield
        except OSError as error:
            for key in ("filename", "filename2"):
                if isinstance(getattr(error, key), str):
                    setattr(error, key, str(self.path / getattr(error, key)))
            raise


# --- files ----------------------------------------------------------------------------------------

_HEADER_BYTES = 100_000_000  # maximum safetensors header, set by the format
TENSOR_TYPES = {
    "I64": np.int64, "F64": np.float64, "F32": np.float32, "I32": np.int32, "F16": np.float16,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip  # in the order of the safetensors library
MOST_TENSORS = 50_000
_DIMENSIONS = 32  # maximum dimensions of a numpy array
_Result = TypeVar("_Result")


class BadFile(TfaError):
    """A file is damaged or has an unexpected format."""


@dataclass(frozen=True)
class WrittenFile:
    """Size, digest and fast checksum of a written file."""

    bytes: int
    sha256: str
    crc32: int


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary file next to `path`, sync it, and rename it into place."""
    _replace(path, None, lambda temporary, _: write(temporary))


def _replace(path: Path, folder: OpenFolder | None, write: Callable[[Path, int], _Result]) -> _Result:
    """Write a file atomically in `folder`, by default the parent of `path`; `write` also gets the open file."""
    with explain_disk_errors(path), contextlib.ExitStack() as stack:
        if folder is None:
            make_folder(path.parent)
            folder = stack.enter_context(OpenFolder(path.parent))
        handle, name = folder.temporary(path.name)
        try:
            try:
                hold(handle)  # protects it from `tidy`
                result = write(path.parent / name, handle)
                folder.chmod(name, 0o666 & ~UMASK)  # created private, but maps and caches may be shared
                os.fsync(handle)
            finally:
                os.close(handle)  # Windows cannot rename an open file
            folder.rename(name, path.name)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                folder.remove(name)
            raise
        folder.sync()
    return result


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Convert a full disk, lack of memory or of open files to a TfaError that names `path`."""
    try:
        yield
    except (OSError, MemoryError) as error:
        known = from_os_error(error, path)
        if known is None:
            raise
        raise known from error


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, so that they survive a power cut."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    with OpenFolder(folder) as opened:
        opened.sync()


def write_json(path: Path, value: Any, folder: OpenFolder | None = None) -> WrittenFile:
    """Write JSON atomically, into the open `folder` if it is set."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # A file name that is not UTF-8 has lone surrogates; JSON writes them as escapes such as \\udcff.
    return _write_parts(path, [text.encode("utf-8", "backslashreplace")], folder)


def require_json(path: Path, error: type[TfaError], hint: str = "") -> Any:
    """Read a JSON file; raise `error` if it is missing (with `hint`) or unreadable."""
    try:
        return read_json(path)
    except FileNotFoundError:
        raise error(f"{path} does not exist{hint}") from None
    except (OSError, ValueError) as problem:
        raise error(f"{path} cannot be read: {problem}") from None


def require_format(path: Path, name: str, version: int, error: type[TfaError], hint: str = "") -> dict[str, Any]:
    """Read a JSON object and check its format and version."""
    return check_format(require_json(path, error, hint), path, name, version, error, hint)


def check_format(
    values: Any, path: object, name: str, version: int, error: type[TfaError], hint: str = ""
) -> dict[str, Any]:
    """Check that values read from a file are an object of this format and version."""
    if not isinstance(values, dict) or values.get("format") != name:
        raise error(f"{path} is not a {name} file{hint}")
    if values.get("version") != version:
        raise error(f"{path} has version {values.get('version')}; this release reads version {version}: run again")
    return values


def write_text(path: Path, text: str) -> None:
    _write_parts(path, [text.encode("utf-8", "surrogateescape")])  # keeps file names that are not UTF-8


def write_tensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    folder: OpenFolder | None = None,
) -> WrittenFile:
    """Write a safetensors file atomically, tensor by tensor."""
    return _write_parts(path, _tensor_parts(tensors, metadata), folder)


def pack_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of a safetensors file."""
    return b"".join(_tensor_parts(tensors))


def _tensor_parts(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> Iterable[bytes | memoryview]:
    """Return the header and each tensor, in the order of the safetensors library."""
    known = {np.dtype(dtype): code for code, dtype in TENSOR_TYPES.items()}
    order = list(known)
    arrays = {name: np.asarray(array) for name, array in tensors.items()}
    names = sorted(arrays, key=lambda name: (order.index(arrays[name].dtype), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    start = 0
    for name in names:
        array, end = arrays[name], start + arrays[name].nbytes
        header[name] = {"dtype": known[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return chain([struct.pack("<Q", len(text)) + text], (np.ascontiguousarray(arrays[name]).data for name in names))


def _write_parts(path: Path, parts: Iterable[bytes | memoryview], folder: OpenFolder | None = None) -> WrittenFile:
    def write(_: Path, handle: int) -> WrittenFile:
        size, digest, fast = 0, hashlib.sha256(), 0
        with open(handle, "wb", closefd=False) as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size, fast = size + memoryview(part).nbytes, zlib.crc32(part, fast)
        return WrittenFile(size, digest.hexdigest(), fast)

    return _replace(path, folder, write)


def read_tensor_header(path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """Read entries, metadata and data offset of a safetensors file; raise BadFile if it is damaged."""
    with open(path, "rb") as file:
        return _parse_tensor_header(file, path.stat().st_size, path)


def unpack_tensors(content: bytes, name: str) -> dict[str, np.ndarray]:
    """Return the arrays in the bytes of a safetensors file; raise BadFile if it is damaged."""
    entries, _, start = _parse_tensor_header(io.BytesIO(content), len(content), Path(name))
    return {
        key: np.array(np.frombuffer(content[start + first : start + last], _numpy_type(key, entry, name))).reshape(
            entry["shape"]
        )
        for key, entry in entries.items()
        for first, last in [entry["data_offsets"]]
    }


def _parse_tensor_header(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
    if not 0 <= length <= min(size - 8, _HEADER_BYTES):
        raise BadFile(f"{path} is not a complete safetensors file ({size} bytes)", path)
    try:
        text = file.read(length)
        if text.count(b"{") > MOST_TENSORS + 2:  # each takes time, here and when it is mapped
            raise ValueError(f"it has more than {MOST_TENSORS:,} tensors")
        entries = parse_json(text)
        metadata = _checked_entries(entries)
    except ValueError as error:
        raise BadFile(f"{path} has an unreadable safetensors header: {error}", path) from None
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if 8 + length + end != size:
        raise BadFile(f"{path} is damaged: it has {size} bytes, its header says {8 + length + end}", path)
    return entries, metadata, 8 + length


def _checked_entries(entries: Any) -> dict[str, str]:
    """Remove the metadata from the header entries and return it; raise ValueError if an entry is not a tensor."""
    if not isinstance(entries, dict):
        raise ValueError(f"it is a {type(entries).__name__}, not an object")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is not an object of texts")
    for name, entry in entries.items():
        try:
            kind, shape, (first, last) = TENSOR_TYPES.get(entry["dtype"]), entry["shape"], entry["data_offsets"]
            sides = [*shape, first, last]
            whole = all(type(side) is int and side >= 0 for side in sides) and len(shape) <= _DIMENSIONS
            whole = whole and math.prod(max(side, 1) for side in shape) < 2**60  # numpy's limit, also of empty arrays
            # A file may contain dtypes that numpy lacks; `map_tensors` reports them.
            whole = whole and (kind is None or last - first == math.prod(shape) * np.dtype(kind).itemsize)
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise ValueError(f"its entry {name[:80]!r} is not a tensor")
    return metadata


def map_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return read-only memory-mapped arrays and metadata of a safetensors file; data is loaded on access."""
    entries, metadata, start = read_tensor_header(path)
    arrays: dict[str, np.ndarray] = {}
    for name, entry in entries.items():
        dtype, shape = _numpy_type(name, entry, path), tuple(entry["shape"])
        if 0 in shape:  # an empty range cannot be mapped
            arrays[name] = np.empty(shape, dtype)
        else:
            arrays[name] = np.memmap(path, dtype, "r", offset=start + entry["data_offsets"][0], shape=shape)
    return arrays, metadata


def _numpy_type(name: str, entry: Mapping[str, Any], path: str | Path) -> np.dtype[Any]:
    if entry["dtype"] not in TENSOR_TYPES:
        raise BadFile(f"{path}: {name} has dtype {entry['dtype']}; supported are {', '.join(TENSOR_TYPES)}", Path(path))
    return np.dtype(TENSOR_TYPES[entry["dtype"]])


def hash_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(value: Any) -> str:
    """Hash a JSON value, independent of key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # accepts any file name


def cache_folder() -> Path:
    """Return the folder of cached weights and tokens: `$TFA_CACHE`, else the user's cache folder."""
    named = os.environ.get("TFA_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tfa"


# --- bounded reading ------------------------------------------------------------------------------

JSON_BYTES = 128_000_000  # parsed objects take up to about twenty times as much
_TEXT_BYTES = 256_000_000
LINE_BYTES = 1_000_000
ARRAY_BYTES = 1_000_000_000
EMPTY_ROWS = 1_000_000
NPY_HEADER_BYTES = 10_000  # numpy's own limit
XML_DEPTH = 100

_NPY_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_bounded(path: Path, limit: int = _TEXT_BYTES) -> bytes:
    """Read a file of at most `limit` bytes; a pipe or device, whose size is unknown, is limited while reading."""
    with open(path, "rb") as file:
        known = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if known <= limit else b""
    if known > limit or len(content) > limit:
        raise ValueError(f"it is larger than the limit of {limit:,} bytes")
    return content


def read_text(path: Path, limit: int = _TEXT_BYTES) -> str:
    """Read UTF-8 text, with or without a byte-order mark; refuse long lines and NUL bytes."""
    content = read_bounded(path, limit)
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > LINE_BYTES:
            raise ValueError(f"line {number:,} has {len(line):,} bytes, more than {LINE_BYTES:,}")
    if b"\0" in content:
        raise ValueError(f"it is not a text file: NUL byte at {content.index(0):,}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text ({error.reason} at byte {error.start:,})") from None


def read_json(path: Path, limit: int = JSON_BYTES) -> Any:
    return parse_json(read_bounded(path, limit))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; refuse infinities, NaN and deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def parse_xml(content: bytes) -> Element:
    """Parse XML and return its root, with names stripped of namespaces; refuse a DOCTYPE and deep nesting.

    A DOCTYPE may define entities that expand without limit or read other files.
    """
    parser, builder, depth = expat.ParserCreate(namespace_separator=" "), TreeBuilder(), 0

    def local(name: str) -> str:
        return name.rpartition(" ")[2]

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > XML_DEPTH:
            raise ValueError("its elements are nested too deeply")
        builder.start(local(name), {local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(local(name))

    def refuse(*_: object) -> None:
        raise ValueError("a DOCTYPE is not allowed; remove that line")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML ({error})") from None
    return builder.close()


def read_npy(path: Path) -> np.ndarray:
    """Read a `.npy` file of numbers or text; refuse objects, which are pickles."""
    with open(path, "rb") as file:
        shape, fortran, dtype, left = parse_npy_header(file, os.fstat(file.fileno()).st_size)
        if left > ARRAY_BYTES:
            raise ValueError(f"it is larger than the limit of {ARRAY_BYTES:,} bytes")
        if dtype.hasobject:
            raise ValueError("it contains pickled objects, which are not loaded")
        content = file.read(left)
    return parse_npy(content, shape, fortran, dtype)


def parse_npy(content: bytes, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the array stored in `content`; raise ValueError if shape and size differ."""
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(content):
        raise ValueError(f"its header says {shape} of {dtype}, {needed:,} bytes; {len(content):,} follow")
    if not needed and math.prod(filter(None, shape)) > EMPTY_ROWS:  # free in a file, expensive in a loop
        raise ValueError(f"its header says {shape} of {dtype}: rows without content")
    array = np.frombuffer(content, dtype) if needed else np.empty(math.prod(shape), dtype)
    return with_letters(array).reshape(shape, order="F" if fortran else "C").copy()


def with_letters(array: np.ndarray) -> np.ndarray:
    """Return a flat array unchanged; raise ValueError if text has code points outside Unicode, which numpy accepts."""
    if array.dtype.kind == "U" and array.size:
        codes = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if int(codes.max()) > sys.maxunicode:
            raise ValueError("it contains text with invalid Unicode characters")
    return array


def parse_npy_header(stream: BinaryIO | io.BytesIO, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read a `.npy` header; return shape, Fortran order, dtype and the number of data bytes that follow."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in _NPY_READERS:
            raise ValueError(f"npy format version {version} is not supported")
        start = stream.tell()
        length = int.from_bytes(stream.read(2 if version == (1, 0) else 4), "little")
        if length > min(NPY_HEADER_BYTES, size - stream.tell()):
            raise ValueError(f"its header claims {length:,} bytes")
        stream.seek(start)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about headers written by Python 2
            shape, fortran, dtype = _NPY_READERS[version](stream)
    except (OSError, ValueError):
        raise
    except Exception as error:  # a header is a Python literal, whose parsing may raise anything
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from None
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"its header has the invalid shape {shape}")
    return shape, bool(fortran), dtype, size - stream.tell()

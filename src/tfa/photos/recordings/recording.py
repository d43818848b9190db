"""Recordings: recognize bags and videos by name or content, and their frames."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from PIL import Image

from tfa.errors import BadRecording
from tfa.types import Position

try:
    import resource
except ImportError:  # no resource limits on this system
    resource = None  # type: ignore[assignment]

BAGS = (".bag", ".db3", ".mcap")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
BAG_BYTES = {b"#ROSBAG V": ".bag", b"SQLite format 3\0": ".db3", b"\x89MCAP0\r\n": ".mcap"}
NO_TOPIC = "none"  # position topic that disables positions
METADATA = "metadata.yaml"  # file in the folder of a ROS 2 bag
_SIGN = b"rosbag2_bagfile_information"
ALLOWED_RECORDINGS = (
    "a ROS 1 bag (.bag), a ROS 2 bag (.db3, .mcap or its folder), or a video (.mp4, .mkv, .avi, .mov, .webm)"
)


def is_recording(path: Path) -> bool:
    """Return True if a path is a bag or video, by its name or first bytes."""
    is_named = path.suffix.lower() in (*BAGS, *VIDEOS) and not path.is_dir()
    return is_named or is_bag_folder(path) or detect_bag(path) is not None


def is_bag_folder(path: Path) -> bool:
    """Return True if a folder is a ROS 2 bag, by the content of its metadata file."""
    return _SIGN in _read_start(path / METADATA)


def detect_bag(path: Path) -> str | None:
    """Return the suffix for the content of a bag; None if it is not a bag."""
    start = _read_start(path)
    return next((suffix for sign, suffix in BAG_BYTES.items() if start.startswith(sign)), None)


def _read_start(path: Path) -> bytes:
    """Return the first bytes of a regular file, else none: a pipe would wait for a writer."""
    try:
        with open(path, "rb") if path.is_file() else io.BytesIO() as file:
            return file.read(4096)
    except OSError:
        return b""


_QUALITY = 95  # JPEG quality of video frames


@dataclass(frozen=True)
class FramePicture:
    """A frame as a photo: recorded image bytes, or pixels and the format to write them in."""

    suffix: str  # .jpg, .png or .webp
    content: bytes | None = None
    pixels: Image.Image | None = None

    def image(self, size: tuple[int, int] | None = None) -> Image.Image:
        """Decode the frame; `size` allows a JPEG to be decoded smaller, to at least that size. Pillow may raise."""
        if self.pixels is not None:
            return self.pixels
        assert self.content is not None, "it has bytes or pixels"
        from tfa.photos.images import too_many_scans  # imports this module

        image = Image.open(io.BytesIO(self.content))
        if scans := too_many_scans(self.content, image.size):
            raise ValueError(f"it has {scans:,} scans, which take too long")
        if size is not None:
            image.draft("L", size)
        return image

    def to_bytes(self) -> bytes:
        """Return an image file; recorded bytes are unchanged."""
        if self.content is not None:
            return self.content
        assert self.pixels is not None, "it has bytes or pixels"
        written = io.BytesIO()
        if self.suffix == ".png":
            self.pixels.save(written, "PNG", compress_level=1)  # lossless for raw images
        else:
            self.pixels.save(written, "JPEG", quality=_QUALITY, subsampling=0)
        return written.getvalue()


@dataclass(frozen=True)
class RecordedFrame:
    """One image of a recording. `picture` decodes it and raises BadImage on failure."""

    time_ns: int  # since 1970; since the start for a video without a date
    picture: Callable[[], FramePicture]
    position: Position | None = None


_MEMORY = 2 << 30  # bytes that reading may add to the process
_SECONDS, _BYTES_PER_SECOND = 120, 5_000_000  # processor time for one frame, with more for a large file
_ALL_SECONDS, _ALL_BYTES_PER_SECOND = 600, 10_000  # the same for all frames together
_ANY_SIZE, _RATIO = 64 << 20, 256  # expanded bytes that are always allowed, and for each byte of the file
_ZSTD = (b"\xb5\x2f\xfd", b"\x2a\x4d\x18")  # bytes 1 to 3 of a packed file
_LIMITED = threading.Lock()
_CHUNK, _CHUNK_INDEX, _SCHEMA, _FOOTER_BYTES = 0x06, 0x08, 0x03, 37  # of MCAP
_Item = TypeVar("_Item")


@contextmanager
def limit_reading(path: Path, size: int = 0, *, unpacks: bool = False) -> Iterator[None]:
    """Limit memory, sizes of unpacked files and, in the main thread, processor time. Raises BadRecording.

    Limits hold for the process, so they are set for one frame at a time. Systems without them read without limits.
    """
    size = size or measure_recording(path)
    seconds = _SECONDS + size // _BYTES_PER_SECOND
    packed = sum(_read_start(one)[1:4] in _ZSTD for one in path.iterdir()) if unpacks and path.is_dir() else 0
    unpacked = (_ANY_SIZE + _RATIO * size) // max(packed, 1)

    def stop(*_: object) -> None:
        raise BadRecording(f"{path} takes more than {seconds:,} s of processor time for a frame; it is damaged", path)

    try:
        with ExitStack() as limits:
            if resource is not None and _LIMITED.acquire(blocking=False):
                limits.callback(_LIMITED.release)
                with suppress(OSError):
                    used = int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
                    _limit(limits, resource.RLIMIT_AS, used + _MEMORY)
                if packed:  # Python ignores SIGXFSZ, so writing more is an OSError
                    _limit(limits, resource.RLIMIT_FSIZE, unpacked)
            if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
                limits.callback(signal.signal, signal.SIGVTALRM, signal.signal(signal.SIGVTALRM, stop))
                limits.callback(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
                signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            yield
    except MemoryError:
        raise BadRecording(f"{path} needs more than {_MEMORY >> 20:,} MiB of memory; it is damaged", path) from None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        said = (
            f"a file of {path} unpacks to more than {unpacked:,} bytes; it is damaged. If it is sound, unpack it first"
        )
        raise BadRecording(said, path) from None


def measure_recording(path: Path) -> int:
    """Return the bytes of a recording."""
    return sum(one.stat().st_size for one in (path.iterdir() if path.is_dir() else [path]) if one.is_file())


def _limit(limits: ExitStack, kind: int, most: int) -> None:
    """Lower a limit of the process until `limits` close."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(kind)
        if soft == resource.RLIM_INFINITY or soft > most:
            resource.setrlimit(kind, (most, hard))
            limits.callback(resource.setrlimit, kind, (soft, hard))


def iterate_limited(path: Path, items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield items, reading each within limits, and all within one limit of processor time."""
    end: Any = object()
    size = measure_recording(path)
    most = _ALL_SECONDS + size // _ALL_BYTES_PER_SECOND
    left = float(most)
    while True:
        started = time.process_time()
        with limit_reading(path, size):
            item = next(items, end)
        left -= time.process_time() - started  # not what is done with the item
        if left < 0:
            raise BadRecording(f"{path} takes more than {most:,} s of processor time in all; it is damaged", path)
        if item is end:
            return
        yield item


def refuse_bombs(path: Path) -> None:
    """Refuse pipes, MCAP chunks that expand out of proportion, and paths that SQLite cannot open."""
    for file in path.iterdir() if path.is_dir() else [path]:
        kind = detect_bag(file)
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise BadRecording(f"{file} is neither a file nor a folder; remove it", path)
        if kind == ".db3" and (odd := re.search("[#?]|%[0-9A-Fa-f]{2}", str(file))):
            raise BadRecording(f"{file} cannot be opened: SQLite misreads {odd[0]!r} in a path; rename the file", path)
        if kind != ".mcap":
            continue
        size, packed, expanded = file.stat().st_size, 0, 0
        # The library explains damage.
        with open(file, "rb") as stream, suppress(struct.error, OSError, ValueError, OverflowError):
            for one, whole in _chunk_sizes(stream, size):
                packed, expanded = packed + one, expanded + whole
                if packed > size or expanded > _ANY_SIZE + _RATIO * size:
                    raise BadRecording(
                        f"{file} has {size:,} bytes, but its chunks claim to expand to {expanded:,} or more; it is "
                        "damaged. If it is sound, write it again without compression",
                        path,
                    )


def _chunk_sizes(stream: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Yield the compressed and expanded size of every chunk that an MCAP file lists, or has if it lists none."""
    stream.seek(max(size - _FOOTER_BYTES + 9, 0))
    (summary,) = struct.unpack("<Q", stream.read(8))
    end, kinds = size - _FOOTER_BYTES, set[int]()
    for kind in _records(stream, summary, end) if summary else ():
        kinds.add(kind)
        if kind == _CHUNK_INDEX:
            stream.seek(32, 1)
            for skipped in (0, 8):  # message indexes and their length, then the compression's name
                stream.seek(skipped, 1)
                stream.seek(struct.unpack("<I", stream.read(4))[0], 1)
            yield struct.unpack("<QQ", stream.read(16))
    if not kinds >= {_CHUNK_INDEX, _SCHEMA}:
        for kind in _records(stream, 8, summary or end):
            if kind == _CHUNK:
                stream.seek(16, 1)
                whole, _, name = struct.unpack("<QII", stream.read(16))
                stream.seek(name, 1)
                yield *struct.unpack("<Q", stream.read(8)), whole


def _records(stream: BinaryIO, place: int, end: int) -> Iterator[int]:
    """Yield the kind of each record, with the stream at its content."""
    while place < end:
        stream.seek(place)
        kind, length = struct.unpack("<BQ", stream.read(9))
        yield kind
        place += 9 + length

"""Decode photos in processes that may be killed, and share one encoder among threads."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tfa
from tfa.encoders import Encoder
from tfa.photos.images import EXTENSIONS
from tfa.service.bodies import Upload
from tfa.service.problems import Refused, refuse_busy
from tfa.service.settings import ServiceSettings

DECODER_COUNT = 3  # photos decoded at once, at most two of the same caller; each takes up to three bytes per pixel
_START_SECONDS = 60.0  # time for a process to start
_ATTEMPTS = 2  # tries for a photo whose decoder dies, which may have another cause
PROGRAM = ("-P", "-m", "tfa.service.decoder_process")
_PASSED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "LANG", "LC_ALL", "SYSTEMROOT")  # variables
_REPLY_BYTES = 100_000  # largest line of a decoder, which repeats the name of the photo
PIPE_BYTES = 2**20  # pipe size; pixels pass in fewer pieces than with the default
_STATUSES = {"format": 415, "pixels": 413, "damaged": 422}
Reads = tuple[int, int, str] | None  # encoder input: width, height, resampling
_log = getLogger("tfa.service")


@dataclass(frozen=True)
class Decoded:
    """An upright RGB photo, and Pillow's name of its file format."""

    image: Image.Image
    kind: str


class Decoder:
    """One decoder process, started on first use and restarted after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._ready: subprocess.Popen[bytes] | None = None  # the process, once it has started up
        self.confined: list[str] = []  # protections of the process

    def decode(self, upload: Upload, settings: ServiceSettings, reads: Reads = None) -> Decoded:
        """Decode a photo, resized to the encoder's input size if known.

        Refuses damaged photos, and those that have too many pixels or take too long.
        """
        for _ in range(_ATTEMPTS):
            process, late = self.start(), threading.Event()
            clock = threading.Timer(settings.decode_seconds, _end, [process, late])
            clock.daemon = True
            try:
                self._wait_for_start(process)
                clock.start()
                return _exchange(process, upload, settings, reads)
            except Refused:
                raise
            except Exception:  # the process ended, or a photo took it over: then it may send anything
                self.close()
                if late.is_set():
                    limit = f"{settings.decode_seconds:g} s"
                    raise _refuse(upload, f"takes more than {limit} to decode") from None
            finally:
                clock.cancel()
        raise _refuse(upload, "crashes the decoder")

    def start(self) -> subprocess.Popen[bytes]:
        with self._starting:
            return self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            # Pass no secrets, and the path of this package; -P keeps the working directory out of the path.
            environment = {name: value for name, value in os.environ.items() if name in _PASSED}
            package = str(Path(tfa.__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread uses address space
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # photos control what libraries print
                env=environment,
                pipesize=PIPE_BYTES,
                start_new_session=True,  # Ctrl-C goes to the service only, which finishes its requests
            )
        return self._process

    def _wait_for_start(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process is ready, so that its start does not count against the photo's time."""
        if self._ready is not process:
            clock = threading.Timer(_START_SECONDS, process.kill)
            clock.daemon = True
            clock.start()
            assert process.stdout is not None
            self.confined = json.loads(process.stdout.readline())["confined"]  # raises ValueError if the process ended
            clock.cancel()
            self._ready = process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # unwritten data has no reader
                        pipe.close()
            self._process.wait()
            self._process = None


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _refuse(upload: Upload, reason: str) -> Refused:
    _log.warning("%s %s", upload.name, reason)
    return Refused(422, f"{upload.name} {reason}; save it again as an ordinary JPEG")


def _exchange(process: subprocess.Popen[bytes], upload: Upload, settings: ServiceSettings, reads: Reads) -> Decoded:
    """Send a photo to the process and read its reply. Raises if the process ends, or sends anything else."""
    assert process.stdin is not None
    assert process.stdout is not None
    request: dict[str, Any] = {"name": upload.name, "bytes": len(upload.content), "most_pixels": settings.max_pixels}
    request |= {"seconds": settings.decode_seconds, "reads": reads}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.write(upload.content)
    process.stdin.flush()
    result: dict[str, Any] = json.loads(process.stdout.readline(_REPLY_BYTES))
    if "refused" in result:
        raise Refused(_STATUSES[result["refused"]], str(result["sentence"]))
    width, height = result["size"]
    most = max(settings.max_pixels, 0 if reads is None else reads[0] * reads[1])
    if result["kind"] not in EXTENSIONS or not (0 < width <= most and 0 < height <= most and width * height <= most):
        raise ValueError("the reply is not that of a decoder")
    return Decoded(Image.frombytes("RGB", (width, height), process.stdout.read(3 * width * height)), result["kind"])


class DecoderPool:
    """Decoders that threads share; a thread waits if none is idle."""

    def __init__(self, count: int = DECODER_COUNT) -> None:
        self._all = [Decoder() for _ in range(count)]
        self._idle: queue.LifoQueue[Decoder] = queue.LifoQueue()
        for decoder in self._all:
            self._idle.put(decoder)

    def decode(self, upload: Upload, settings: ServiceSettings, reads: Reads = None) -> Decoded:
        decoder = self._idle.get()
        try:
            return decoder.decode(upload, settings, reads)
        finally:
            self._idle.put(decoder)

    def warm_up(self) -> None:
        """Start every process, so that the first photos do not wait for it."""
        for decoder in self._all:
            decoder.start()

    def describe(self) -> str:
        """List the protections of the decoders, when one of them has started."""
        decoder = self._all[0]
        with contextlib.suppress(OSError, ValueError):  # the first photo gets this error
            decoder._wait_for_start(decoder.start())
        return ", ".join(decoder.confined) or "not confined, only limited in time"

    def close(self) -> None:
        for decoder in self._all:
            decoder.close()


@cache
def shared_decoders() -> DecoderPool:
    """Return the decoders of this process, shared by all its services and closed at exit."""
    pool = DecoderPool()
    atexit.register(pool.close)
    return pool


class FairTurns:
    """Turns at decoders or threads: callers take them by rotation, and each holds at most `each` of all `places`.

    If too many requests wait, the caller with most of them is refused. Not thread-safe: only the event loop calls it.
    """

    def __init__(self, places: int, each: int, most_waiting: int) -> None:
        self._free, self._each, self._most = places, max(1, each), most_waiting
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # the next caller first

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(map(len, self._waiting.values()))

    @contextlib.asynccontextmanager
    async def take(self, caller: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    async def acquire(self, caller: str) -> None:
        """Wait for a turn, which `release` ends."""
        has_turn = self._free and self._running[caller] < self._each
        if len(self) >= self._most and not has_turn:  # each request takes memory
            self._refuse_longest(caller)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._start_next()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # it began just now
                self.release(caller)
            elif turn in self._waiting.get(caller, ()):  # the client disconnected while it waited
                self._waiting[caller].remove(turn)
                self._start_next()
            raise

    def release(self, caller: str) -> None:
        self._free += 1
        self._running -= Counter([caller])  # leaves no zeros
        self._start_next()

    def _refuse_longest(self, caller: str) -> None:
        counts = {one: len(turns) for one, turns in self._waiting.items()}
        longest, mine = max(counts, key=counts.__getitem__), counts.get(caller, 0)
        said = f"{len(self)} requests are waiting, {{}} of them yours; retry in a moment"
        if mine + 1 >= counts[longest]:
            raise refuse_busy(said.format(mine))
        refusal = refuse_busy(said.format(counts[longest]))
        turn = self._waiting[longest].pop()
        if not turn.done():
            turn.set_exception(refusal)

    def _start_next(self) -> None:
        while self._free:
            caller = next((one for one, all in self._waiting.items() if all and self._running[one] < self._each), None)
            if caller is None:
                break
            turn = self._waiting[caller].popleft()
            self._waiting.move_to_end(caller)
            if not turn.done():  # done: its client disconnected just now
                self._free -= 1
                self._running[caller] += 1
                turn.set_result(None)
        for idle in [one for one, all in self._waiting.items() if not all]:
            del self._waiting[idle]


class SharedEncoder:
    """An `Encoder` that threads may share; it runs one batch at a time, in a thread of its own.

    Query batches and the single photos of edits take turns, so a query waits for at most one photo of an edit.
    """

    # Declared for type checkers only; `__getattr__` passes every attribute to the encoder.
    id: str
    fingerprint: str
    model: str
    channels: int
    global_channels: int | None
    grid: tuple[int, int]
    notes: tuple[str, ...]
    device: str

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._thread = encoder, ThreadPoolExecutor(1, thread_name_prefix="tfa-encode")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # only public attributes are passed on
            raise AttributeError(name)
        return getattr(self._encoder, name)

    @property
    def reads(self) -> tuple[int, int, str] | None:
        """Width, height and resampling of the input, if the encoder provides them."""
        return getattr(self._encoder, "reads", None)

    def prepare(self, image: Image.Image) -> Image.Image:
        """Resize an image to the encoder's input size, if the encoder provides it."""
        prepare = getattr(self._encoder, "prepare", None)
        return image if prepare is None else prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._thread.submit(self._encoder.encode, images).result()

"""Photos to pixels to tokens: decoded in processes that may be killed, encoded by one encoder that threads share."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
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
from tfa.service.bodies import Upload
from tfa.service.problems import Refused
from tfa.service.settings import ServiceSettings

# --- decoders --------------------------------------------------------------------------------------------------------

DECODER_COUNT = 2  # photos decoded at once: each may take three bytes a pixel
_START_SECONDS = 60.0  # for a process to begin
_ATTEMPTS = 2  # with a photo whose decoder dies: the system may have ended it for another reason
PROGRAM = ("-P", "-m", "tfa.service.decoder_process")
PIPE_BYTES = 2**20  # of a pipe; pixels pass in fewer pieces
_STATUSES = {"format": 415, "pixels": 413, "damaged": 422}
Reads = tuple[int, int, str] | None  # what an encoder reads: width, height, kind of resampling
_log = getLogger("tfa.service")


@dataclass(frozen=True)
class Decoded:
    """A photo upright and in RGB, and Pillow's name of the format it came in."""

    image: Image.Image
    kind: str


class Decoder:
    """One process, started when it is first needed and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: subprocess.Popen[bytes] | None = None  # the process, once it has begun

    def decode(self, upload: Upload, settings: ServiceSettings, reads: Reads = None) -> Decoded:
        """The photo, resized to what an encoder reads if that is known.

        Refuses what is no whole photo, has too many pixels, or takes too long.
        """
        for _ in range(_ATTEMPTS):
            process, late = self.start(), threading.Event()
            clock = threading.Timer(settings.decode_seconds, _end, [process, late])
            clock.daemon = True
            try:
                self._wait_for_start(process)
                clock.start()
                told, pixels = _exchange(process, upload, settings, reads)
                break
            except (OSError, ValueError):
                self.close()
                if late.is_set():
                    limit = f"{settings.decode_seconds:g} s"
                    raise _refuse(upload, f"takes more than {limit} to decode") from None
            finally:
                clock.cancel()
        else:
            raise _refuse(upload, "breaks its decoder")
        if "refused" in told:
            raise Refused(_STATUSES[told["refused"]], told["sentence"])
        return Decoded(Image.frombytes("RGB", tuple(told["size"]), pixels), told["kind"])

    def start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            # Without the API keys of the service; with this very package, wherever it is; -P: nothing of this folder.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TFA_")}
            package = str(Path(tfa.__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
            environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread takes address space
            self._process = subprocess.Popen(
                [sys.executable, *PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # libraries say there what a photo makes them say
                env=environment,
                pipesize=PIPE_BYTES,
                start_new_session=True,  # Ctrl-C is for the service, which finishes what is under way
            )
        return self._process

    def _wait_for_start(self, process: subprocess.Popen[bytes]) -> None:
        """A process that has only begun takes its time: that is no fault of the photo."""
        if self._ready is not process:
            clock = threading.Timer(_START_SECONDS, process.kill)
            clock.daemon = True
            clock.start()
            assert process.stdout is not None
            json.loads(process.stdout.readline())  # ValueError if it ended
            clock.cancel()
            self._ready = process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was still to be written has nobody to read it
                        pipe.close()
            self._process.wait()
            self._process = None


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _refuse(upload: Upload, reason: str) -> Refused:
    _log.warning("%s %s", upload.name, reason)
    return Refused(422, f"{upload.name} {reason}; save it again as an ordinary JPEG")


def _exchange(
    process: subprocess.Popen[bytes], upload: Upload, settings: ServiceSettings, reads: Reads
) -> tuple[dict[str, Any], bytes]:
    """What the process answers; OSError or ValueError if it ends before."""
    assert process.stdin is not None
    assert process.stdout is not None
    request: dict[str, Any] = {"name": upload.name, "bytes": len(upload.content), "most_pixels": settings.max_pixels}
    request |= {"seconds": settings.decode_seconds, "reads": reads}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.write(upload.content)
    process.stdin.flush()
    told: dict[str, Any] = json.loads(process.stdout.readline())
    width, height = told.get("size", (0, 0))
    pixels = process.stdout.read(3 * width * height)
    if len(pixels) < 3 * width * height:
        raise ValueError("the decoder ended among its pixels")
    return told, pixels


class DecoderPool:
    """Decoders that threads share: who finds none idle waits, no longer than a photo may take."""

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
        """Start every process that is idle: the first photos need not wait for it."""
        idle = []
        while not self._idle.empty():
            try:
                idle.append(self._idle.get_nowait())
            except queue.Empty:
                break
        for decoder in idle:
            try:
                decoder.start()
            finally:
                self._idle.put(decoder)

    def close(self) -> None:
        for decoder in self._all:
            decoder.close()


@cache
def shared_decoders() -> DecoderPool:
    """Those of this process, for all its services; they end with it."""
    pool = DecoderPool()
    atexit.register(pool.close)
    return pool


# --- shared encoder --------------------------------------------------------------------------------------------------


class SharedEncoder:
    """An `Encoder` that threads may share. A model runs one batch at a time, in a thread of its own; batches of queries
    and the single photos of edits take turns, so a query waits for one photo of an edit at most."""

    # Declared for type checkers alone: every attribute is the shared encoder's own, see `__getattr__`.
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
        if name.startswith("_"):  # ours, or Python's own: an encoder shares its public attributes
            raise AttributeError(name)
        return getattr(self._encoder, name)

    @property
    def reads(self) -> tuple[int, int, str] | None:
        """Width, height and resampling of its input, where the encoder can say it."""
        return getattr(self._encoder, "reads", None)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture at the encoder's input size, where the encoder can say it."""
        prepare = getattr(self._encoder, "prepare", None)
        return image if prepare is None else prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._thread.submit(self._encoder.encode, images).result()

"""Decode untrusted photos in a separate process: `python -m tfa.service.decoder_process`.

Reads photos from standard input and writes pixels to standard output, each as a line of JSON followed by bytes. If a
photo crashes or hangs the process, the parent kills it and starts another. Before the first photo, the process gives up
all rights that decoding does not need.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import struct
import sys
import warnings
from typing import IO, Any

from PIL import Image

from tfa.errors import BadImage
from tfa.photos.images import TooManyPixels, UnknownFormat, decode_untrusted, image_extensions, resize

try:
    import resource
except ImportError:  # no resource limits on this system; the parent's timeout still applies
    resource = None  # type: ignore[assignment]

FIT = "fit"  # resampling that keeps the aspect ratio
BASE_BYTES = 2**30  # address space for Python and its libraries
PIXEL_BYTES = 32  # address space per pixel while it is decoded, rotated and written
HARD_CPU_SECONDS = 600  # processor time of a process, which the parent then replaces
_NO_NEW_PRIVS, _SECCOMP = 38, 22  # options of prctl
# Architecture → its number, that of prlimit64, and those of the calls that decoding needs: read, write, close, seek,
# memory, futex, signals, times, exit and getrandom. Files, processes, threads and sockets are not among them.
_CALLS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, 302, (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 60, 96, 98, 131, 202, 219, 228,
                                 231, 318)),
    "aarch64": (0xC00000B7, 261, (57, 62, 63, 64, 80, 93, 94, 98, 113, 124, 128, 132, 134, 135, 139, 165, 169, 214, 215,
                                  216, 222, 226, 233, 278)),
}  # fmt: skip
_REASONS: tuple[tuple[type[BadImage], str], ...] = ((UnknownFormat, "format"), (TooManyPixels, "pixels"))


def run_decoder() -> None:
    photos, pixels = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep library output out of the pixel stream
    image_extensions()  # load Pillow's readers before the first photo, which has a time limit
    warnings.simplefilter("ignore")  # showing a warning opens a file
    pixels.write(json.dumps({"confined": confine()}).encode() + b"\n")  # signals that the process is ready
    pixels.flush()
    while (line := photos.readline()) != b"":
        request = json.loads(line)
        answer_request(request, photos.read(request["bytes"]), pixels)


def answer_request(request: dict[str, Any], content: bytes, pixels: IO[bytes]) -> None:
    """Write the pixels of a photo, or why it was refused."""
    body = b""
    try:
        limit_resources(request["seconds"], request["most_pixels"])
        width, height, resample = request["reads"] or (0, 0, None)
        smallest = width if resample == FIT else 0
        image, kind = decode_untrusted(content, request["name"], request["most_pixels"], smallest)
        if resample is not None:  # resize here, so that fewer pixels pass the pipe
            if resample == FIT:
                image.thumbnail((width, height), Image.Resampling.LANCZOS)
            else:
                image = resize(image, (width, height), resample)
        body = image.tobytes()
        result: dict[str, Any] = {"kind": kind, "size": image.size}
    except BadImage as error:
        reason = next((name for fits, name in _REASONS if isinstance(error, fits)), "damaged")
        result = {"refused": reason, "sentence": str(error)}
    except MemoryError:
        result = {"refused": "pixels", "sentence": f"{request['name']} needs too much memory; send a smaller copy"}
    pixels.write(json.dumps(result).encode() + b"\n")
    pixels.write(body)
    pixels.flush()


def confine() -> list[str]:
    """Give up rights that decoding does not need, until the process ends; return what this system supports."""
    active = []
    if resource is not None:
        pixels = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # more are refused by Pillow
        most = {"CPU": HARD_CPU_SECONDS, "AS": BASE_BYTES + PIXEL_BYTES * pixels, "FSIZE": 0, "CORE": 0, "NOFILE": 16}
        for name, value in most.items():
            hard = resource.getrlimit(limit := getattr(resource, f"RLIMIT_{name}"))[1]
            with contextlib.suppress(OSError, ValueError):  # some systems refuse some limits
                resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard),) * 2)
        active.append("hard limits")
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        active += ["no new privileges"] * (prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        machine, prlimit, allowed = _CALLS.get(platform.machine(), (0, 0, ()))
        # A program for the kernel: compare architecture and call number; prlimit64 may change this process only.
        lines = [(0x20, 0, 0, 4), (0x15, 1, 0, machine), (0x06, 0, 0, 0x50001), (0x20, 0, 0, 0)]
        lines += [(0x15, 3 + len(allowed) - at, 0, number) for at, number in enumerate(allowed)]
        lines += [
            (0x15, 0, 2, prlimit),
            (0x20, 0, 0, 16),
            (0x15, 1, 0, 0),
            (0x06, 0, 0, 0x50001),
            (0x06, 0, 0, 0x7FFF0000),
        ]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
        about = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(program)))
        active += ["seccomp"] * (bool(machine) and prctl(_SECCOMP, 2, about, 0, 0) == 0)
    return active


def limit_resources(seconds: float, most_pixels: int) -> None:
    """Set the limits of one photo, which also hold if the parent has exited."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = {resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + seconds + 2)}
    most[resource.RLIMIT_AS] = BASE_BYTES + PIXEL_BYTES * most_pixels
    for limit, value in most.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    run_decoder()

"""The program that decodes photos of strangers, apart from the service: `python -m tfa.service.decoder_process`.

It reads photos from standard input and writes pixels to standard output, one after the other: a line of JSON, then
bytes. Whatever a photo does to it, its parent kills it and starts another. It writes no files, and its memory and its
time are bounded by the system.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from tfa.errors import BadImage
from tfa.photos.images import TooManyPixels, UnknownFormat, decode_untrusted, image_extensions, resize

try:
    import resource
except ImportError:  # not a system with such limits; the parent's clock holds there too
    resource = None  # type: ignore[assignment]

BASE_BYTES = 2**30  # of address space: Python and its libraries
PIXEL_BYTES = 32  # of address space, at most, while a pixel is decoded, turned and written
_REASONS: tuple[tuple[type[BadImage], str], ...] = ((UnknownFormat, "format"), (TooManyPixels, "pixels"))


def run_decoder() -> None:
    photos, pixels = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints does not get among the pixels
    image_extensions()  # loads Pillow's readers: before the first photo, whose time is measured
    pixels.write(b"{}\n")  # ready
    pixels.flush()
    while (line := photos.readline()) != b"":
        request = json.loads(line)
        answer_request(request, photos.read(request["bytes"]), pixels)


def answer_request(request: dict[str, Any], content: bytes, pixels: IO[bytes]) -> None:
    """The pixels of a photo, or why there are none."""
    body = b""
    try:
        limit_resources(request["seconds"], request["most_pixels"])
        image, kind = decode_untrusted(content, request["name"], request["most_pixels"])
        if request["reads"] is not None:  # fewer pixels to pass on
            width, height, resample = request["reads"]
            image = resize(image, (width, height), resample)
        body = image.tobytes()
        told: dict[str, Any] = {"kind": kind, "size": image.size}
    except BadImage as error:
        reason = next((name for fits, name in _REASONS if isinstance(error, fits)), "damaged")
        told = {"refused": reason, "sentence": str(error)}
    except MemoryError:
        sentence = f"{request['name']} takes more memory than a photo may; send a smaller copy"
        told = {"refused": "pixels", "sentence": sentence}
    pixels.write(json.dumps(told).encode() + b"\n")
    pixels.write(body)
    pixels.flush()


def limit_resources(seconds: float, most_pixels: int) -> None:
    """Let the system end this process should nobody else: its parent may be gone."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + seconds + 2),
        resource.RLIMIT_AS: BASE_BYTES + PIXEL_BYTES * most_pixels,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in most.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    run_decoder()

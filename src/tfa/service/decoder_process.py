"""Decode untrusted photos in a separate process: `python -m tfa.service.decoder_process`.

Reads photos from standard input and writes pixels to standard output, each as a line of JSON followed by bytes. If a
photo crashes or hangs the process, the parent kills it and starts another. Memory, time and file size are limited.
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
except ImportError:  # no resource limits on this system; the parent's timeout still applies
    resource = None  # type: ignore[assignment]

BASE_BYTES = 2**30  # address space for Python and its libraries
PIXEL_BYTES = 32  # address space per pixel while it is decoded, rotated and written
_REASONS: tuple[tuple[type[BadImage], str], ...] = ((UnknownFormat, "format"), (TooManyPixels, "pixels"))


def run_decoder() -> None:
    photos, pixels = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keep library output out of the pixel stream
    image_extensions()  # load Pillow's readers before the first photo, which has a time limit
    pixels.write(b"{}\n")  # signals that the process is ready
    pixels.flush()
    while (line := photos.readline()) != b"":
        request = json.loads(line)
        answer_request(request, photos.read(request["bytes"]), pixels)


def answer_request(request: dict[str, Any], content: bytes, pixels: IO[bytes]) -> None:
    """Write the pixels of a photo, or why it was refused."""
    body = b""
    try:
        limit_resources(request["seconds"], request["most_pixels"])
        image, kind = decode_untrusted(content, request["name"], request["most_pixels"])
        if request["reads"] is not None:  # resize here, so that fewer pixels pass the pipe
            width, height, resample = request["reads"]
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


def limit_resources(seconds: float, most_pixels: int) -> None:
    """Set system limits, which also hold if the parent has exited."""
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

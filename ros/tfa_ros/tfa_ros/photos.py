"""Images of ROS as the files that a service reads: compressed ones as they are, pixels as PNG, which loses nothing."""

from __future__ import annotations

import struct
import zlib
from typing import Any

# Bytes of a pixel, and where red, green and blue (or grey) lie in it.
ENCODINGS: dict[str, tuple[int, tuple[int, ...]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),  # as OpenCV, and with it cv_bridge, has them
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "8UC4": (4, (2, 1, 0)),
    "mono8": (1, (0,)),
    "8UC1": (1, (0,)),
}
DEEP = ("mono16", "16UC1")  # grey of two bytes
LEVEL = 1  # of zlib: two thirds of the time of its default, for as few bytes within a tenth
GREY, COLOUR = 0, 2  # kinds of PNG


class BadPhoto(Exception):
    """An image that cannot be sent; the text says why and what to do."""


def compressed_file(image: Any) -> tuple[str, bytes]:
    """Name and content of a sensor_msgs/CompressedImage."""
    content = bytes(image.data)
    if not content:
        raise BadPhoto("the compressed image has no data; is the camera publishing?")
    if "compressedDepth" in image.format:
        raise BadPhoto(f"the image is of format {image.format!r}, which is depth; subscribe to the colour camera")
    return "photo", content


def image_file(image: Any) -> tuple[str, bytes]:
    """Name and content of a sensor_msgs/Image."""
    encoding, width, height = image.encoding, image.width, image.height
    if encoding not in ENCODINGS and encoding not in DEEP:
        known = ", ".join((*ENCODINGS, *DEEP))
        raise BadPhoto(f"the image has the encoding {encoding!r}; known: {known}. image_proc can convert it")
    size = 2 if encoding in DEEP else ENCODINGS[encoding][0]
    data = bytes(image.data)
    if not width or not height or image.step < width * size or len(data) < image.step * height:
        raise BadPhoto(
            f"the image says {width} × {height} pixels of {encoding}, {image.step} bytes a row, and has {len(data)} "
            "bytes: that is too few; look at what publishes it"
        )
    pixels = _without_padding(data, width * size, image.step, height)
    if encoding in DEEP:
        if not image.is_bigendian:  # as PNG has them
            pixels = _chosen(pixels, 2, (1, 0))
        return "photo.png", png(pixels, width, height, GREY, 16)
    _, order = ENCODINGS[encoding]
    if order != tuple(range(size)):
        pixels = _chosen(pixels, size, order)
    return "photo.png", png(pixels, width, height, GREY if len(order) == 1 else COLOUR, 8)


def png(pixels: bytes, width: int, height: int, kind: int, bits: int) -> bytes:
    """A PNG file of rows of samples from the top; samples of 16 bits have their high byte first."""
    row = len(pixels) // height
    # Every row begins with the filter that was applied to it: 0, none.
    filtered = b"".join(b"\0" + pixels[at : at + row] for at in range(0, row * height, row))
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered, LEVEL)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _without_padding(data: bytes, row: int, step: int, height: int) -> bytes:
    if step == row:
        return data[: row * height]
    return b"".join(data[at : at + row] for at in range(0, step * height, step))


def _chosen(pixels: bytes, size: int, order: tuple[int, ...]) -> bytes:
    """The samples of every pixel in another order, some perhaps left out; slices are as quick as C."""
    chosen = bytearray(len(pixels) // size * len(order))
    for to, of in enumerate(order):
        chosen[to :: len(order)] = pixels[of::size]
    return bytes(chosen)

"""Convert ROS images to image files: compressed images unchanged, raw pixels as lossless PNG."""

from __future__ import annotations

import struct
import zlib
from typing import Any

# Bytes per pixel, and the offsets of red, green and blue (or gray).
ENCODINGS: dict[str, tuple[int, tuple[int, ...]]] = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),  # BGR as in OpenCV and cv_bridge
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "8UC4": (4, (2, 1, 0)),
    "mono8": (1, (0,)),
    "8UC1": (1, (0,)),
}
DEEP = ("mono16", "16UC1")  # 16-bit gray
LEVEL = 1  # zlib level; takes two thirds of the default's time for at most a tenth more bytes
GRAY, COLOR = 0, 2  # PNG color types


class BadPhoto(Exception):
    """An image that cannot be sent; the text says why and what to do."""


def compressed_file(image: Any) -> tuple[str, bytes]:
    """Return the file name and content of a sensor_msgs/CompressedImage."""
    content = bytes(image.data)
    if not content:
        raise BadPhoto("the compressed image has no data; is the camera publishing?")
    if "compressedDepth" in image.format:
        raise BadPhoto(f"image format {image.format!r} is depth; subscribe to the color camera")
    return "photo", content


def image_file(image: Any) -> tuple[str, bytes]:
    """Convert a sensor_msgs/Image to PNG and return its file name and content."""
    encoding, width, height = image.encoding, image.width, image.height
    if encoding not in ENCODINGS and encoding not in DEEP:
        known = ", ".join((*ENCODINGS, *DEEP))
        raise BadPhoto(f"image encoding {encoding!r} is not supported; use {known}, or convert it with image_proc")
    size = 2 if encoding in DEEP else ENCODINGS[encoding][0]
    data = bytes(image.data)
    if not width or not height or image.step < width * size or len(data) < image.step * height:
        raise BadPhoto(
            f"image data is too short: {len(data)} bytes for {width} × {height} pixels of {encoding} with {image.step} "
            "bytes per row; check the publisher"
        )
    pixels = _without_padding(data, width * size, image.step, height)
    if encoding in DEEP:
        if not image.is_bigendian:  # PNG is big-endian
            pixels = _chosen(pixels, 2, (1, 0))
        return "photo.png", png(pixels, width, height, GRAY, 16)
    _, order = ENCODINGS[encoding]
    if order != tuple(range(size)):
        pixels = _chosen(pixels, size, order)
    return "photo.png", png(pixels, width, height, GRAY if len(order) == 1 else COLOR, 8)


def png(pixels: bytes, width: int, height: int, kind: int, bits: int) -> bytes:
    """Write a PNG file from rows of samples, top row first; 16-bit samples are big-endian."""
    row = len(pixels) // height
    # Every row starts with its filter type: 0 for none.
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
    """Select and reorder the samples of every pixel with slices, which are fast."""
    chosen = bytearray(len(pixels) // size * len(order))
    for to, of in enumerate(order):
        chosen[to :: len(order)] = pixels[of::size]
    return bytes(chosen)

"""Image messages of ROS as photos: CompressedImage as it was recorded, Image by its encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from tfa.errors import BadImage
from tfa.photos.recordings.recording import FramePicture

COMPRESSED, RAW = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
IMAGE_MESSAGES = (COMPRESSED, RAW)
_SIGNS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png", b"RIFF": ".webp"}
_CHANNELS = {
    "rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "8uc3": (2, 1, 0), "8uc4": (2, 1, 0),
    "rgb16": (0, 1, 2), "bgr16": (2, 1, 0), "rgba16": (0, 1, 2), "bgra16": (2, 1, 0),
}  # fmt: skip  # where red, green and blue are; OpenCV's own names mean blue first
_GREY = ("mono8", "8uc1", "mono16")
_YUV = {"yuv422": (1, 0, 2), "uyvy": (1, 0, 2), "yuv422_yuy2": (0, 1, 3), "yuyv": (0, 1, 3)}  # first Y, U, V of 4 bytes
_BAYER = {"rggb": (0, 3), "bggr": (3, 0), "grbg": (1, 2), "gbrg": (2, 1)}  # red and blue in a square of four
ENCODINGS = (*_CHANNELS, *_GREY, *_YUV, *(f"bayer_{order}{bits}" for order in _BAYER for bits in (8, 16)))


def decode_picture(message: Any, kind: str) -> FramePicture:
    """The photo of a message; BadImage where it has none."""
    return _compressed(message) if kind == COMPRESSED else FramePicture(".png", pixels=_raw(message))


def _compressed(message: Any) -> FramePicture:
    """The payload byte for byte: an image file of its own."""
    content = message.data.tobytes()
    suffix = next((suffix for sign, suffix in _SIGNS.items() if content.startswith(sign)), None)
    if suffix is None:
        given = str(message.format)[:80]
        raise BadImage(
            f"a CompressedImage of format {given!r} and {len(content):,} bytes is no JPEG, PNG or WebP; video codecs "
            "and depth are not read: give another topic, or republish this one as raw or compressed"
        )
    return FramePicture(suffix, content=content)


def _raw(message: Any) -> Image.Image:
    encoding, height, width = str(message.encoding).strip().lower(), int(message.height), int(message.width)
    if encoding not in ENCODINGS:
        raise BadImage(
            f"an Image has the encoding {str(message.encoding)[:80]!r}, must be one of {', '.join(ENCODINGS)}; "
            "give another topic, or republish this one as rgb8"
        )
    if encoding in _GREY:
        grey = _samples(message, height, width, encoding.endswith("16"))
        return Image.fromarray(grey)
    if encoding in _YUV:
        return Image.fromarray(_decode_yuv(_samples(message, height, width * 2, wide=False), _YUV[encoding]))
    if encoding.startswith("bayer_"):
        order, wide = encoding[6:10], encoding.endswith("16")
        return Image.fromarray(_decode_bayer(_samples(message, height, width, wide), *_BAYER[order]))
    count = 4 if "a" in encoding or encoding == "8uc4" else 3
    samples = _samples(message, height, width * count, encoding.endswith("16")).reshape(height, width, count)
    return Image.fromarray(np.ascontiguousarray(_bytes(samples[..., _CHANNELS[encoding]])))


def _samples(message: Any, height: int, across: int, wide: bool) -> np.ndarray:
    """Numbers `height across` of a message, without what fills up its rows, in this machine's order of bytes."""
    size = 2 if wide else 1
    step, data = int(message.step), np.asarray(message.data, np.uint8)
    row = across * size
    # The last row need not be filled up.
    if not height or not across or step < row or len(data) < step * (height - 1) + row:
        raise BadImage(
            f"an Image of {message.width} × {height} {message.encoding} needs {height} rows of {row:,} bytes, it has a "
            f"step of {step:,} and {len(data):,} bytes; the message is damaged"
        )
    rows = np.lib.stride_tricks.as_strided(data, (height, row), (step * data.strides[0], data.strides[0]))
    rows = np.ascontiguousarray(rows)
    if not wide:
        return rows
    given = np.dtype(">u2" if message.is_bigendian else "<u2")
    return rows.view(given).astype(np.uint16)


def _bytes(samples: np.ndarray) -> np.ndarray:
    """Numbers of 16 bits by their upper 8."""
    return samples if samples.dtype == np.uint8 else (samples >> 8).astype(np.uint8)


def _decode_bayer(mosaic: np.ndarray, red: int, blue: int) -> np.ndarray:
    """RGB at half the size: one pixel of each square of four. Encoders look at fewer pixels than that."""
    height, width = (side // 2 * 2 for side in mosaic.shape)
    if not height or not width:
        raise BadImage("an Image of a Bayer encoding needs at least 2 × 2 pixels")
    corners = [mosaic[row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]
    one, other = (corner for place, corner in enumerate(corners) if place not in (red, blue))
    green = ((one.astype(np.uint32) + other) // 2).astype(mosaic.dtype)
    return np.ascontiguousarray(_bytes(np.stack([corners[red], green, corners[blue]], axis=-1)))


def _decode_yuv(rows: np.ndarray, places: tuple[int, int, int]) -> np.ndarray:
    """RGB of 4:2:2 in the range of video (BT.601: Y from 16 to 235, U and V around 128)."""
    if rows.shape[1] % 4:
        raise BadImage("an Image of a YUV encoding needs an even width")
    first, u_at, v_at = places
    y = rows[:, first::2].astype(np.float32) - 16
    u, v = (np.repeat(rows[:, at::4].astype(np.float32) - 128, 2, axis=1) for at in (u_at, v_at))
    luma = 1.164383 * y
    rgb = np.stack([luma + 1.596027 * v, luma - 0.391762 * u - 0.812968 * v, luma + 2.017232 * u], axis=-1)
    return np.rint(rgb.clip(0, 255)).astype(np.uint8)

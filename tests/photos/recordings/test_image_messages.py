"""Image messages as photos: supported encodings, padded rows and errors."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.photos.recordings.made import Messages, jpeg
from tfa.errors import BadImage
from tfa.photos.images import as_rgb
from tfa.photos.recordings.ros_bags import COMPRESSED, ENCODINGS, RAW, decode_picture

MADE = Messages()
RGB = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
WIDE = RGB.astype(np.uint16) * 257  # 16 bits of which the upper 8 are those above
OPAQUE = np.full((4, 6, 1), 255, np.uint8)
PADDING = 5


def read(encoding: str, samples: np.ndarray, *, big: bool = False, width: int = 6) -> np.ndarray:
    """The photo of a message whose rows are filled up, as it is read again from the file that is kept."""
    if samples.dtype == np.uint16:
        samples = samples.astype(">u2" if big else "<u2")
    rows = np.ascontiguousarray(samples).view(np.uint8).reshape(len(samples), -1)
    step = rows.shape[1] + PADDING
    filled = np.pad(rows, ((0, 0), (0, PADDING)), constant_values=99).tobytes()[:-PADDING]  # not the last row
    message = MADE.image(0, encoding, (width, len(samples)), step, filled, big=big)
    picture = decode_picture(message, RAW)
    assert picture.suffix == ".png"
    return np.asarray(as_rgb(picture.to_bytes()))


@pytest.mark.parametrize(
    ("encoding", "samples"),
    [
        ("rgb8", RGB), ("bgr8", RGB[..., ::-1]), ("8UC3", RGB[..., ::-1]), ("rgb16", WIDE), ("bgr16", WIDE[..., ::-1]),
        ("rgba8", np.concatenate([RGB, OPAQUE], 2)), ("bgra8", np.concatenate([RGB[..., ::-1], OPAQUE], 2)),
        ("8UC4", np.concatenate([RGB[..., ::-1], OPAQUE], 2)),
    ],
)  # fmt: skip
def test_colours_come_out_as_they_were(encoding, samples):
    for big in (False, True):
        assert np.array_equal(read(encoding, samples, big=big), RGB)


def test_grey_is_grey_in_8_and_16_bits():
    grey = np.repeat(RGB[..., :1], 3, axis=2)
    assert np.array_equal(read("mono8", RGB[..., 0]), grey)
    for big in (False, True):
        assert np.array_equal(read("mono16", WIDE[..., 0], big=big), grey)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("order", "corners"), [("rggb", "RGGB"), ("bggr", "BGGR"), ("grbg", "GRBG"), ("gbrg", "GBRG")])
def test_a_mosaic_gives_a_pixel_of_each_square(order, corners, bits):
    values = {"R": 200, "G": 100, "B": 50}
    square = np.array([values[one] for one in corners], np.uint8 if bits == 8 else np.uint16).reshape(2, 2)
    mosaic = np.tile(square if bits == 8 else square * 257, (2, 3))
    assert np.array_equal(read(f"bayer_{order}{bits}", mosaic), np.tile([200, 100, 50], (2, 3, 1)))


@pytest.mark.parametrize(
    ("encoding", "order"), [("yuv422", "UYVY"), ("uyvy", "UYVY"), ("yuv422_yuy2", "YUYV"), ("yuyv", "YUYV")]
)
def test_yuv_is_that_of_video(encoding, order):
    # BT.601: white, black and the red of the standard.
    for (y, u, v), rgb in {(235, 128, 128): (255,) * 3, (16, 128, 128): (0,) * 3, (81, 90, 240): (254, 0, 0)}.items():
        four = [{"Y": y, "U": u, "V": v}[one] for one in order]
        found = read(encoding, np.tile(np.array(four, np.uint8), (2, 2)), width=4)
        assert np.abs(found.astype(int) - np.array(rgb)).max() <= 1


def test_every_encoding_that_an_error_names_is_read():
    assert len(set(ENCODINGS)) == len(ENCODINGS)
    for encoding in ENCODINGS:
        message = MADE.image(0, encoding, (4, 4), 32, bytes(4 * 32))
        assert decode_picture(message, RAW).image().size in ((4, 4), (2, 2)), encoding


def test_what_is_compressed_stays_as_it_is():
    written = io.BytesIO()
    Image.fromarray(RGB).save(written, "WEBP", lossless=True)
    for content, suffix in ((jpeg(1), ".jpg"), (written.getvalue(), ".webp")):
        picture = decode_picture(MADE.compressed(0, content, "rgb8; jpeg compressed bgr8"), COMPRESSED)
        assert (picture.suffix, picture.to_bytes()) == (suffix, content)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (MADE.image(0, "32FC1", (2, 2), 8, bytes(16)), "encoding '32FC1', must be one of rgb8, bgr8"),
        (MADE.image(0, "rgb8", (4, 4), 12, bytes(47)), "needs 4 rows of 12 bytes, but has a step of 12 and 47 bytes"),
        (MADE.image(0, "rgb8", (4, 4), 11, bytes(64)), "step of 11"),
        (MADE.image(0, "rgb8", (0, 0), 0, b""), "is damaged"),
        (MADE.image(0, "bayer_rggb8", (4, 1), 4, bytes(4)), "at least 2 × 2"),
        (MADE.image(0, "yuv422", (3, 1), 6, bytes(6)), "even width"),
    ],
)
def test_what_is_no_image_is_refused(message, complaint):
    with pytest.raises(BadImage, match=complaint):
        decode_picture(message, RAW)

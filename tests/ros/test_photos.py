"""Images of ROS become files that Pillow reads as the same pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.ros.conftest import compressed, raw
from tfa_ros.photos import ENCODINGS, BadPhoto, compressed_file, image_file

COLOR = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)  # rows, columns, red green blue alpha
DEEP = np.random.default_rng(1).integers(0, 2**16, (5, 7), np.uint16)


def decoded(image) -> np.ndarray:
    name, content = image_file(image)
    assert name == "photo.png"
    with Image.open(io.BytesIO(content)) as opened:
        opened.load()  # checks every chunk
        return np.asarray(opened)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("padding", [0, 3])
def test_pixels_of_every_encoding_come_through(encoding, padding):
    grey = ENCODINGS[encoding][0] == 1
    order = [0] if grey else [2, 1, 0, 3] if encoding.startswith(("bgr", "8UC")) else [0, 1, 2, 3]
    pixels = COLOR[..., order[: ENCODINGS[encoding][0]]].reshape(5, -1)
    rows = np.pad(pixels, ((0, 0), (0, padding)))
    found = decoded(raw(rows.tobytes(), 7, 5, encoding))
    assert np.array_equal(found, COLOR[..., 0] if grey else COLOR[..., :3])


@pytest.mark.parametrize("big", [0, 1])
def test_grey_of_two_bytes_comes_through_in_either_order(big):
    found = decoded(raw(DEEP.astype(">u2" if big else "<u2").tobytes(), 7, 5, "mono16", big=big))
    assert np.array_equal(found.astype(np.uint16), DEEP)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (raw(bytes(30), 5, 2, "bayer_rggb8"), "'bayer_rggb8' is not supported; use rgb8, bgr8"),
        (raw(bytes(30), 5, 2, "rgb8", step=16), "30 bytes for"),
        (raw(bytes(30), 6, 2, "rgb8", step=15), "too short"),
        (raw(bytes(30), 0, 2, "rgb8"), "0 × 2 pixels"),
    ],
)
def test_images_that_cannot_be_are_refused(image, said):
    with pytest.raises(BadPhoto, match=said):
        image_file(image)


def test_compressed_images_are_sent_as_they_are():
    assert compressed_file(compressed(b"\xff\xd8anything")) == ("photo", b"\xff\xd8anything")
    depth = compressed(b"123")
    depth.format = "16UC1; compressedDepth png"
    for image, said in ((compressed(b""), "no data"), (depth, "is depth")):
        with pytest.raises(BadPhoto, match=said):
            compressed_file(image)

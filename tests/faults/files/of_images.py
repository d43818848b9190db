"""Photos in the formats that people have, and the EXIF blocks in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tests.fakes import random_image
from tests.faults.files.targets import GIGABYTE, Layer, Target, files_below
from tfa.photos.images import as_rgb
from tfa.photos.metadata import read_embedded_position

EXIF_SIZE = (32, 24)


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "a camera"
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 59.5), 3: "E", 4: (13.0, 22.0, 39.25)})
    return exif


def _target(name: str, folder: Path, layers: dict[str, Layer] | None = None) -> Target:
    # A picture may have 179 million pixels, of four bytes each, and is held twice while it is turned into bytes.
    return Target(name, files_below(folder, "*"), _read, layers or {}, memory=3 * GIGABYTE)


def _read(folder: Path, victim: str, changed: bool) -> None:
    path = folder / victim
    read_embedded_position(path)
    image = as_rgb(path.read_bytes(), name=str(path))
    assert image.mode == "RGB"


def png(name: str, folder: Path) -> Target:
    random_image(1).save(folder / "colour.png", exif=_exif())
    random_image(2).quantize(16).save(folder / "palette.png", transparency=3)
    grey = np.asarray(random_image(3).convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(folder / "deep.png")
    return _target(name, folder)


def jpeg(name: str, folder: Path) -> Target:
    random_image(1).save(folder / "colour.jpg", exif=_exif())
    random_image(2).convert("L").save(folder / "grey.jpg", progressive=True)
    return _target(name, folder)


def webp(name: str, folder: Path) -> Target:
    random_image(1).save(folder / "lossy.webp", exif=_exif())
    random_image(2).save(folder / "lossless.webp", lossless=True)
    return _target(name, folder)


def tiff(name: str, folder: Path) -> Target:
    random_image(1).save(folder / "plain.tif", exif=_exif())
    random_image(2).save(folder / "lzw.tif", compression="tiff_lzw")
    Image.fromarray(np.asarray(random_image(3).convert("L"), np.float32)).save(folder / "float.tif")
    return _target(name, folder)


def gif(name: str, folder: Path) -> Target:
    frames = [random_image(seed, (20, 16)).quantize(32) for seed in range(3)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "still.gif", transparency=1)
    return _target(name, folder)


def exif(name: str, folder: Path) -> Target:
    """A JPEG whose EXIF block is damaged and whose size is right again, so that it is read."""
    block = _exif().tobytes()
    random_image(1, EXIF_SIZE).save(folder / "camera.jpg", exif=block)

    def wrapped(inner: bytes, data: bytes) -> bytes:
        size = len(inner[:60_000]) + 2
        start = data.index(b"\xff\xe1")
        old = int.from_bytes(data[start + 2 : start + 4], "big")
        return data[: start + 2] + size.to_bytes(2, "big") + inner[:60_000] + data[start + 2 + old :]

    return _target(name, folder, {"camera.jpg": Layer(lambda data: block, wrapped, json=False)})

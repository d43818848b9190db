"""Photos that a plain `.convert("RGB")` decodes wrongly: EXIF rotation, 16 bits, palette with alpha."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from tfa.photos.images import Photo, as_rgb

KINDS = ("turned", "deep", "clear")


def awkward_photo(kind: str, source: Path, folder: Path) -> Path:
    """The photo `source` saved again as one of `KINDS`."""
    path = folder / f"{kind}.png"
    with Image.open(source) as image:
        picture = image.convert("RGB")
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    elif kind == "deep":
        Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257).save(path)
    else:
        picture.quantize(64).save(path, transparency=bytes(range(64)))
    return path


def forms_of(path: Path) -> dict[str, Photo]:
    """One photo in every form that a query may take."""
    pixels = np.asarray(as_rgb(path))
    assert pixels.dtype == np.uint8
    return {
        "path": path, "name": str(path), "bytes": path.read_bytes(), "picture": Image.open(path), "array": pixels,
        "view": np.flip(np.ascontiguousarray(np.flip(pixels, 1)), 1),  # the same pixels, stored the other way round
    }  # fmt: skip

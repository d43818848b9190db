"""A photo with what each of its patches added to a score, or took off it, laid over it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

ADDS, TAKES = (255, 128, 0), (0, 104, 255)  # orange and blue: apart for eyes that tell red and green badly too
DIM = 0.6  # brightness left of the photo, which is shown grey, so that colour speaks of contributions alone
STRONGEST = 0.85  # opacity of the largest contribution
OUTLIERS = 99.0  # percentile of contributions that has the full colour: one patch must not pale all others


def full_colour(heats: Sequence[np.ndarray]) -> float:
    """The contribution from which on a patch has the full colour, the same for all photos of a picture."""
    sizes = np.abs(np.concatenate([np.ravel(heat) for heat in heats])) if heats else np.zeros(1)
    return float(np.percentile(sizes, OUTLIERS)) or float(sizes.max()) or 1.0


def heated(photo: Image.Image, size: tuple[int, int], heat: np.ndarray, full: float) -> Image.Image:
    """The photo at `size`, grey, under the contributions of its patches `rows columns`: one cell a patch."""
    grey = photo.resize(size, Image.Resampling.LANCZOS).convert("L").point(lambda level: int(level * DIM))
    return Image.composite(*_layers(size, heat, full, grey))


def _layers(
    size: tuple[int, int], heat: np.ndarray, full: float, grey: Image.Image
) -> tuple[Image.Image, Image.Image, Image.Image]:
    """Colour, background and opacity."""
    # Patches are cells, not points: nearest keeps their edges where the encoder had them.
    opacity = np.rint(255 * STRONGEST * np.minimum(np.abs(heat) / full, 1.0)).astype(np.uint8)
    colour = np.where((heat >= 0)[..., None], np.array(ADDS, np.uint8), np.array(TAKES, np.uint8))
    cells = [Image.fromarray(layer).resize(size, Image.Resampling.NEAREST) for layer in (colour, opacity)]
    return cells[0], Image.merge("RGB", [grey] * 3), cells[1]

"""Segments of a photo: masks, the patches below them, and super-segments of neighboring masks.

    A_ij = 1 if i = j or the centroids of masks i and j share an edge of their Delaunay triangulation
    super-segment i = union of the masks j with (A³)_ij > 0

Masks come from a `Segmenter`. The published head uses SAM (`sam.py`); `Superpixels` is ours and needs no weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from tfa.core.files import cache_folder, hash_json, map_tensors, write_tensors
from tfa.errors import MissingExtra, TfaError
from tfa.photos.images import resize
from tfa.photos.token_cache import mark_used

_CACHE_REVISION = 1  # changes with how masks are made from equal settings
ORDER = 3  # steps in the graph of masks that a super-segment reaches
_INSTALL = "install with pip install 'tfa-bench'"


class Segmenter(Protocol):
    """Cuts a photo into masks; the same photo gives the same masks."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that shapes the masks, for the record and its fingerprint."""
        ...

    def segment(self, image: Image.Image) -> np.ndarray:
        """Boolean masks `s h w` of the whole image, at the size the segmenter worked at; s may be 0."""
        ...


@dataclass(frozen=True, kw_only=True)
class Superpixels:
    """SLIC superpixels: about `segments` masks that cover the image and do not overlap. All of it is ours."""

    segments: int = 24
    longest: int = 240  # pixels of the longest side; larger images are reduced to it
    compactness: float = 20.0  # weight of place against color: larger is squarer
    sigma: float = 1.0  # pixels of smoothing, or texture breaks the superpixels up and they are merged away
    iterations: int = 5

    @property
    def name(self) -> str:
        return "superpixels (ours)"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"segmenter": self.name, **asdict(self)}

    def segment(self, image: Image.Image) -> np.ndarray:
        try:
            from skimage.segmentation import slic
        except ImportError:
            raise MissingExtra(f"superpixels need scikit-image; {_INSTALL}") from None
        pixels = np.asarray(reduce_image(image, self.longest))
        labels = slic(
            pixels,
            n_segments=self.segments,
            compactness=self.compactness,
            sigma=self.sigma,
            max_num_iter=self.iterations,
            start_label=0,
            channel_axis=-1,
        )
        return labels[None] == np.unique(labels)[:, None, None]


class CachedMasks:
    """A segmenter with a cache: one file per photo, by the photo's content and the segmenter's settings."""

    def __init__(self, segmenter: Segmenter, folder: Path | None = None) -> None:
        self.segmenter = segmenter
        identity = hash_json({"revision": _CACHE_REVISION, **segmenter.settings})
        self.folder = (cache_folder() / "masks" if folder is None else folder) / identity[:32]

    @property
    def name(self) -> str:
        return self.segmenter.name

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.segmenter.settings

    def segment(self, image: Image.Image) -> np.ndarray:
        content = hashlib.sha256(f"{image.mode} {image.size}\n".encode() + image.tobytes()).hexdigest()
        path = self.folder / f"{content}.safetensors"
        cached = _read_masks(path)
        if cached is not None:
            mark_used([path])
            return cached
        masks = self.segmenter.segment(image)
        count, height, width = masks.shape  # there may be none
        bits = np.packbits(masks.reshape(count, height * width), axis=1)
        write_tensors(path, {"bits": bits, "size": np.array([height, width], np.int64)})
        return masks


def _read_masks(path: Path) -> np.ndarray | None:
    """Read the masks of a file; None if there is none or it is damaged, so that they are made again."""
    try:
        arrays, _ = map_tensors(path)
        height, width = (int(length) for length in arrays["size"])
        flat = np.unpackbits(arrays["bits"], axis=1, count=height * width).astype(bool)
        return flat.reshape(len(flat), height, width)
    except (TfaError, OSError, KeyError, ValueError):
        return None


def reduce_image(image: Image.Image, longest: int) -> Image.Image:
    """The image with its longest side at most `longest` pixels, in its own proportions."""
    scale = longest / max(image.size)
    if scale >= 1:
        return image
    return resize(image, (max(round(image.width * scale), 1), max(round(image.height * scale), 1)))


def cells_of(masks: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Masks `s h w` → `s n`: the cells of a patch grid (rows, columns), row by row, that a mask reaches into.

    The encoder stretches the whole image over its grid, so cell r of R covers the pixels that overlap
    [r h/R, (r+1) h/R). One pixel of a mask in it is enough. A mask coarser than the grid fills every cell it
    lies under, as the published nearest enlargement of the mask does.
    """
    reached = _any_of_slices(masks, grid[0], axis=1)
    reached = _any_of_slices(reached, grid[1], axis=2)
    return reached.reshape(len(masks), -1)


def _any_of_slices(masks: np.ndarray, count: int, axis: int) -> np.ndarray:
    size = masks.shape[axis]
    parts = []
    for cell in range(count):
        low, high = cell * size // count, -(-(cell + 1) * size // count)  # floor and ceiling
        parts.append(masks.take(range(low, high), axis=axis).any(axis=axis))
    return np.stack(parts, axis=axis)


def centroids(masks: np.ndarray) -> np.ndarray:
    """Mean (x, y) of the pixels of each mask, `s h w` → `s 2`; no mask may be empty."""
    area = masks.sum(axis=(1, 2), dtype=np.int64)
    x = masks.sum(axis=1, dtype=np.int64) @ np.arange(masks.shape[2])
    y = masks.sum(axis=2, dtype=np.int64) @ np.arange(masks.shape[1])
    return np.stack([x / area, y / area], axis=1)


def neighborhoods(masks: np.ndarray, order: int = ORDER) -> np.ndarray:
    """Masks `s h w` → `s s`: the masks each super-segment is the union of.

    With three masks or fewer there is no triangulation, and the published code takes the first two masks for
    each. Where more centroids lie on one line, neighbors on the line are joined (ours: the published code
    fails there).
    """
    count = len(masks)
    if count <= 3:
        return np.repeat(np.arange(count)[None] < 2, count, axis=0)
    adjacent = _adjacency(centroids(masks))
    reached = adjacent
    for _ in range(order - 1):
        reached = reached @ adjacent  # boolean: "is there a path"
    return reached


def _adjacency(points: np.ndarray) -> np.ndarray:
    """Points `s 2` → `s s`: itself and its Delaunay neighbors. A point on top of another has itself alone."""
    try:
        from scipy.spatial import Delaunay, QhullError
    except ImportError:
        raise MissingExtra(f"neighboring segments need scipy; {_INSTALL}") from None
    adjacent = np.eye(len(points), dtype=bool)
    try:
        corners = Delaunay(points).simplices
        pairs = np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [2, 0]]])
    except QhullError:  # all on one line (or one point): (x, y) order is the order along it
        along = np.lexsort((points[:, 1], points[:, 0]))
        pairs = np.stack([along[:-1], along[1:]], axis=1)
    adjacent[pairs[:, 0], pairs[:, 1]] = True
    adjacent[pairs[:, 1], pairs[:, 0]] = True
    return adjacent


def super_segments(masks: np.ndarray, grid: tuple[int, int], order: int = ORDER) -> np.ndarray:
    """Masks `s h w` → `s n`: the cells of each super-segment. No mask at all: one that covers everything (ours)."""
    masks = masks[masks.any(axis=(1, 2))]
    if not len(masks):
        return np.ones((1, grid[0] * grid[1]), dtype=bool)
    return neighborhoods(masks, order) @ cells_of(masks, grid)

"""Second-order descriptors: how the patches of an image vary together.

    X = unit patches − their mean     Y = X Dᵀ     C = YᵀY / max(n − 1, 1) + ε I     v = L2 half(log C)

D, (m, d), are the directions in which the database patches vary most; each construction fits them on another half of
the images. Subtracting the mean of an image, which carries season and light, makes the descriptor robust to changes
that move all patches the same way. No vocabulary is needed.

Tokens of two depths give v = [v_earlier; v_later] / √2, each with directions of its own, (2, m, d). Unit patches of the
later block are first averaged over 3 × 3 cells of the grid and not normalized again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tfa.core.arrays import Array, Spill, array_namespace, count_cores, map_in_threads, release
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.errors import BadTokens
from tfa.method.residuals import DescribedTokens
from tfa.method.vocabulary import CONSTRUCTIONS, DrawnPatches, Normalize, copy_patches, unit_patches
from tfa.search.reduced import Moments, fix_signs

SECOND_ORDER = "second_order"
DIRECTION_COUNT = 128
# Unit patches have tr C ≤ n/(n−1), so the mean eigenvalue is about 1/d, near 1e-3. A hundredth of that hardly changes
# the directions in which an image varies, and keeps log C finite for the others (they exist if n ≤ m).
COVARIANCE_RIDGE = 1e-5
FEW_IMAGES = 8  # number of images below which every construction uses all of them
_BLOCK = 2048  # patches per product of the covariance, so that they stay in the cache
_RELEASE_EVERY = 256  # images
IMAGES_A_THREAD = 32  # images per thread before threads are joined


# --- Directions ------------------------------------------------------------------------------------------


def choose_images(images: int, construction: int) -> np.ndarray:
    """Return the images that a construction fits its directions on: a random half, ascending."""
    if images < FEW_IMAGES:
        return np.arange(images)
    return np.sort(np.random.default_rng(construction).permutation(images)[: (images + 1) // 2])


def fit_directions(
    tokens: Tokens, max_patches: int, *, constructions: int = len(CONSTRUCTIONS), dtype: str = "float32"
) -> tuple[np.ndarray, ...]:
    """Fit directions (m, d) of the first constructions, m = min(128, d), on at most `max_patches` database patches.

    Those of two depths are (2, m, d). Products have `dtype`; their sums and all later steps are float64.
    """
    if tokens.depths == 1:
        return _fit_depth(tokens, unit_patches, max_patches, constructions, dtype)
    parts = [_fit_depth(part, copy_patches, max_patches, constructions, dtype) for part in split_depths(tokens, dtype)]
    return tuple(np.stack(one) for one in zip(*parts, strict=True))


def _fit_depth(
    tokens: Tokens, normalize: Normalize, max_patches: int, constructions: int, dtype: str
) -> tuple[np.ndarray, ...]:
    drawn = DrawnPatches.draw(tokens, max_patches)
    used = np.zeros((len(CONSTRUCTIONS), len(tokens)), bool)
    for construction in CONSTRUCTIONS:
        used[construction, choose_images(len(tokens), construction)] = True
    moments = [Moments.empty(tokens.channels) for _ in range(constructions)]
    # Blocks do not depend on how many constructions are fitted, because sums in another order round differently.
    blocks = [block for block in _blocks(used, drawn.counts) if used[:constructions, block[0]].any()]
    several = 4 * count_cores()  # blocks whose sums are in memory at once
    for start in range(0, len(blocks), several):
        some = blocks[start : start + several]
        sums = map_in_threads(lambda block: _sums(drawn, block, dtype, normalize), some)
        for block, of_block in zip(some, sums, strict=True):
            # Constructions share half of their images, so a block is multiplied once for all that use it.
            for construction in np.flatnonzero(used[:constructions, block[0]]).tolist():
                moments[construction] += of_block
    return tuple(map_in_threads(lambda moment: find_leading_directions(_patch_covariance(moment)), moments))


def find_leading_directions(covariance: np.ndarray, directions: int = DIRECTION_COUNT) -> np.ndarray:
    """Return the eigenvectors (m, d) of the largest eigenvalues, largest first, with a positive largest entry."""
    return fix_signs(np.linalg.eigh(covariance)[1][:, ::-1][:, :directions].T)


def _blocks(used: np.ndarray, counts: np.ndarray) -> Iterator[list[int]]:
    """Yield blocks of images that the same constructions use, with about `_BLOCK` drawn patches each."""
    pattern = (1 << np.arange(len(used))) @ used
    for one in range(1, 1 << len(used)):
        block: list[int] = []
        size = 0
        for image in np.flatnonzero((pattern == one) & (counts > 0)).tolist():
            block.append(image)
            size += int(counts[image])
            if size >= _BLOCK:
                yield block
                block, size = [], 0
        if block:
            yield block


def _sums(drawn: DrawnPatches, images: Sequence[int], dtype: str, normalize: Normalize) -> Moments:
    """Return the number, Σ p̃ and Σ p̃ p̃ᵀ of the drawn patches of some images."""
    ends = np.cumsum(drawn.counts[images])
    patches = np.empty((ends[-1], drawn.tokens.channels), dtype)
    for image, end in zip(images, ends.tolist(), strict=True):
        drawn.load(image, patches[end - drawn.counts[image] : end], normalize)
    # numpy runs this product as a symmetric rank-k update at half the work.
    return Moments(len(patches), patches.sum(axis=0, dtype=np.float64), patches.T @ patches)


def _patch_covariance(moments: Moments) -> np.ndarray:
    """Return E p̃p̃ᵀ − E p̃ E p̃ᵀ; 0 if no patch was drawn."""
    mean = moments.first / max(moments.count, 1)
    return moments.second / max(moments.count, 1) - np.outer(mean, mean)


# --- Two depths ------------------------------------------------------------------------------------------


class _UnitPatches(Sequence):
    """Unit patches of one block, computed on access; averaged over cells if `bands` are given."""

    def __init__(self, tokens: Tokens, dtype: str, bands: tuple[np.ndarray, np.ndarray] | None) -> None:
        self._tokens, self._dtype, self._bands, self.shapes = tokens, dtype, bands, tokens.shapes

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: Any) -> Any:
        patches = self._tokens.patches[index]
        unit = np.empty(patches.shape, self._dtype)
        if not unit_patches(patches, unit):
            self._tokens.load(index, index + 1)  # raises an error that names the image
        return unit if self._bands is None else average_cells(unit, self._bands)


def split_depths(tokens: Tokens, dtype: str = "float32") -> list[Tokens]:
    """Return the unit patches of both depths as tokens, the earlier first."""
    if tokens.grid is None:
        raise BadTokens("tokens of two depths need their grid; pass it: Tokens(patches, grid=(rows, columns))")
    if tokens.depths == 1:  # made by a caller who does not know about depths
        tokens = Tokens(tokens.patches, names=tokens.names, grid=tokens.grid, depths=2)
    bands = (None, cell_bands(tokens.grid, dtype))
    parts = [_UnitPatches(tokens.block(depth), dtype, bands[depth]) for depth in (0, 1)]
    return [Tokens(part, names=tokens.names, grid=tokens.grid) for part in parts]


def average_cells(patches: Array, bands: tuple[Array, Array]) -> Array:
    """Average patches (…, n, d) over the 3 × 3 cells around each, or fewer at the border."""
    xp, (rows, columns), (*several, _, d) = array_namespace(patches), bands, patches.shape
    patches = rows @ xp.reshape(patches, (*several, len(rows), len(columns) * d))
    return xp.reshape(columns @ xp.reshape(patches, (*several, len(rows), len(columns), d)), (*several, -1, d))


@lru_cache(maxsize=8)
def cell_bands(grid: tuple[int, int], dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Return matrices that average each row and each column of the grid with its neighbors."""
    rows, columns = (np.abs(np.subtract.outer(np.arange(side), np.arange(side))) <= 1 for side in grid)
    return (rows / rows.sum(1, keepdims=True)).astype(dtype), (columns / columns.sum(1, keepdims=True)).astype(dtype)


# --- Descriptors -----------------------------------------------------------------------------------------


def covariance(projected: np.ndarray, ridge: float = COVARIANCE_RIDGE) -> np.ndarray:
    """Return C, (m, m), float64, of centered patches on directions, (n, m)."""
    # A float32 product has an error of 1e-7 √(C_ii C_jj). With few patches, C has directions without spread, where
    # that error would be a hundredth of the ridge.
    if len(projected) < 2 * projected.shape[1]:
        projected = projected.astype(np.float64, copy=False)
    squares = (projected.T @ projected).astype(np.float64, copy=False)  # a symmetric rank-k update
    squares /= max(len(projected) - 1, 1)  # the covariance of a single patch is 0, not 0/0
    squares.flat[:: len(squares) + 1] += ridge
    return squares


def spectral_map(matrix: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return E f(w) Eᵀ of a symmetric matrix E w Eᵀ whose eigenvalues are at least `COVARIANCE_RIDGE`."""
    values, vectors = np.linalg.eigh(matrix)
    values = values.clip(min=COVARIANCE_RIDGE)  # C − εI is positive semidefinite; eigh may return a little less
    return (vectors * function(values)) @ vectors.T


def descriptor_width(directions: int) -> int:
    """Return the number of dimensions of a descriptor on m directions: m(m+1)/2."""
    return directions * (directions + 1) // 2


@lru_cache(maxsize=8)
def triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return flat indices of the upper triangle of (m, m), and weights: 1 on the diagonal, √2 elsewhere."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


def half_vector(matrix: np.ndarray) -> np.ndarray:
    """Return the half-vector of a symmetric matrix (m, m), with √2 off the diagonal to preserve inner products."""
    places, weights = triangle(len(matrix))
    return matrix.reshape(-1)[places] * weights


def from_half_vector(vector: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix (m, m) of a half-vector."""
    size = (int(np.sqrt(8 * len(vector) + 1)) - 1) // 2
    assert descriptor_width(size) == len(vector), len(vector)
    places, weights = triangle(size)
    matrix = np.zeros(size * size, vector.dtype)
    matrix[places] = vector / weights
    matrix = matrix.reshape(size, size)
    return matrix + np.triu(matrix, 1).T


def describe_second_order(
    tokens: Tokens,
    directions: Sequence[np.ndarray],
    *,
    dtype: str = "float32",
    spill: Spill | None = None,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Compute descriptors (b, m(m+1)/2) of all images on the directions (m, d) of each construction, in one pass.

    Directions (2, m, d) give those of two depths, (b, m(m+1)).
    """
    if isinstance(tokens, DescribedTokens):
        return tokens.described_second_order(directions, dtype)
    spill = spill or Spill()
    if all(one.ndim == 2 for one in directions):
        kept = [spill.empty((len(tokens), descriptor_width(len(one))), dtype) for one in directions]
        _describe_depth(tokens, directions, kept, unit_patches, dtype, progress)
        return kept
    kept = [spill.empty((len(tokens), 2 * descriptor_width(one.shape[1])), dtype) for one in directions]
    for depth, part in enumerate(split_depths(tokens, dtype)):
        parts = [np.split(rows, 2, axis=1)[depth] for rows in kept]
        _describe_depth(part, [one[depth] for one in directions], parts, copy_patches, dtype, progress)
        for rows in parts:
            rows *= np.sqrt(0.5)
            release(rows)
    return kept


def _describe_depth(
    tokens: Tokens,
    directions: Sequence[np.ndarray],
    descriptors: Sequence[np.ndarray],
    normalize: Normalize,
    dtype: str,
    progress: Progress | None,
) -> None:
    """Write the descriptors of each construction to `descriptors`."""
    columns = [np.asarray(one, dtype).T for one in directions]
    several, released = IMAGES_A_THREAD * count_cores(), 0

    def written(index: int) -> bool:
        patches = tokens.patches[index]
        centered = np.empty(patches.shape, dtype)
        if not normalize(patches, centered):
            return False
        centered -= centered.mean(axis=0)
        # One product per construction: other shapes may round differently, and a descriptor must not depend on the
        # other constructions of the call.
        for rows, onto in zip(descriptors, columns, strict=True):
            vector = half_vector(spectral_map(covariance(centered @ onto), np.log))
            np.divide(vector, np.sqrt(vector @ vector) or 1.0, out=rows[index], casting="same_kind")  # L2(0) = 0
        return True

    with (progress or SilentProgress()).task("descriptors", len(tokens), "images") as task:
        for start in range(0, len(tokens), several):
            images = range(start, min(start + several, len(tokens)))
            for index, finite in zip(images, map_in_threads(written, images), strict=True):
                if not finite:
                    tokens.load(index, index + 1)  # raises an error that names the image
            task.advance(len(images))
            if images.stop - released >= _RELEASE_EVERY or images.stop == len(tokens):
                released = images.stop
                release(*descriptors)

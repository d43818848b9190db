"""Second-order descriptors (ours, beyond the paper): how the patches of an image vary together.

    X = unit patches − their mean     Y = X Dᵀ     C = YᵀY / max(n − 1, 1) + ε I     v = L2 half(log C)

D `m d` are the directions in which the patches of the database vary most; each construction takes them from another
half of the images. The mean of an image carries season and light: to remove it, image by image, and compare the rest
survives a change that moves every patch the same way. It needs no vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from tfa.core.arrays import Spill, count_cores, map_in_threads, release
from tfa.core.progress import Progress, SilentProgress
from tfa.core.tokens import Tokens
from tfa.method.residuals import DescribedTokens
from tfa.method.vocabulary import CONSTRUCTIONS, DrawnPatches, unit_patches

SECOND_ORDER = "second_order"
DIRECTION_COUNT = 128
# Unit patches have tr C ≤ n/(n−1), so the mean eigenvalue is of the order 1/d, about 1e-3. A hundredth of that leaves
# the directions an image varies in as they are and keeps log C of the others (n ≤ m: there are some) from −∞.
COVARIANCE_RIDGE = 1e-5
FEW_IMAGES = 8  # below this every construction uses all images: of half of them little is left
_BLOCK = 2048  # patches in one product of the covariance: what it reads stays in the cache
_RELEASE_EVERY = 256  # images
IMAGES_A_THREAD = 32  # before threads are joined


# --- Directions ------------------------------------------------------------------------------------------


def choose_images(images: int, construction: int) -> np.ndarray:
    """Indices of the images whose patches a construction takes its directions from, ascending: a drawn half."""
    if images < FEW_IMAGES:
        return np.arange(images)
    return np.sort(np.random.default_rng(construction).permutation(images)[: (images + 1) // 2])


def fit_directions(
    tokens: Tokens, max_patches: int, *, constructions: int = len(CONSTRUCTIONS), dtype: str = "float32"
) -> tuple[np.ndarray, ...]:
    """Directions `m d` of the first constructions, m = min(128, d), from at most `max_patches` database patches.

    Products are of `dtype`, sums of them and everything after of float64.
    """
    drawn = DrawnPatches.draw(tokens, max_patches)
    used = np.zeros((len(CONSTRUCTIONS), len(tokens)), bool)
    for construction in CONSTRUCTIONS:
        used[construction, choose_images(len(tokens), construction)] = True
    moments = [_Moments(tokens.channels) for _ in range(constructions)]
    # Blocks are those of all constructions, however many are fitted: sums in another order would round differently.
    blocks = [block for block in _blocks(used, drawn.counts) if used[:constructions, block[0]].any()]
    several = 4 * count_cores()  # sums of so many blocks are in memory at once
    for start in range(0, len(blocks), several):
        some = blocks[start : start + several]
        sums = map_in_threads(lambda block: _sums(drawn, block, dtype), some)
        for block, of_block in zip(some, sums, strict=True):
            # Constructions share half of their images: a block is multiplied once for all that use it.
            for construction in np.flatnonzero(used[:constructions, block[0]]).tolist():
                moments[construction].add(*of_block)
    return tuple(map_in_threads(lambda moment: find_leading_directions(moment.covariance()), moments))


def find_leading_directions(covariance: np.ndarray, directions: int = DIRECTION_COUNT) -> np.ndarray:
    """Eigenvectors `m d` of the largest eigenvalues, largest first; the entry of largest magnitude is positive."""
    vectors = np.linalg.eigh(covariance)[1][:, ::-1][:, :directions].T
    largest = np.abs(vectors).argmax(axis=1)
    return vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None]


def _blocks(used: np.ndarray, counts: np.ndarray) -> Iterator[list[int]]:
    """Runs of images that the same constructions use, some `_BLOCK` drawn patches in each; unused images in none."""
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


def _sums(drawn: DrawnPatches, images: Sequence[int], dtype: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Σ p̃ p̃ᵀ, Σ p̃ and the number of the drawn patches of some images."""
    ends = np.cumsum(drawn.counts[images])
    patches = np.empty((ends[-1], drawn.tokens.channels), dtype)
    for image, end in zip(images, ends.tolist(), strict=True):
        drawn.load(image, patches[end - drawn.counts[image] : end])
    # numpy makes this product a symmetric rank-k update: half the work
    return patches.T @ patches, patches.sum(axis=0, dtype=np.float64), len(patches)


class _Moments:
    """Sums over the patches of one construction."""

    def __init__(self, channels: int) -> None:
        self.squares, self.total, self.count = np.zeros((channels, channels)), np.zeros(channels), 0

    def add(self, squares: np.ndarray, total: np.ndarray, count: int) -> None:
        self.squares += squares
        self.total += total
        self.count += count

    def covariance(self) -> np.ndarray:
        """E p̃p̃ᵀ − E p̃ E p̃ᵀ, divided by the count; 0 where no patch was drawn."""
        mean = self.total / max(self.count, 1)
        return self.squares / max(self.count, 1) - np.outer(mean, mean)


# --- Descriptors -----------------------------------------------------------------------------------------


def covariance(projected: np.ndarray, ridge: float = COVARIANCE_RIDGE) -> np.ndarray:
    """C `m m` in float64 of centred patches on directions, `n m`."""
    # A product of float32 errs by 1e-7 of the spreads it is of, √(C_ii C_jj). Where patches are few, C has directions
    # of no spread, and there that would be a hundredth of the ridge.
    if len(projected) < 2 * projected.shape[1]:
        projected = projected.astype(np.float64, copy=False)
    squares = (projected.T @ projected).astype(np.float64, copy=False)  # a symmetric rank-k update: half the work
    squares /= max(len(projected) - 1, 1)  # a single patch has no spread: its covariance is 0, not 0/0
    squares.flat[:: len(squares) + 1] += ridge
    return squares


def spectral_map(matrix: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """E f(w) Eᵀ of a symmetric matrix E w Eᵀ whose eigenvalues are at least `COVARIANCE_RIDGE`."""
    values, vectors = np.linalg.eigh(matrix)
    values = values.clip(min=COVARIANCE_RIDGE)  # C − εI is positive semidefinite; eigh may return a little less
    return (vectors * function(values)) @ vectors.T


def descriptor_width(directions: int) -> int:
    """Numbers of a descriptor on `m` directions: m(m+1)/2."""
    return directions * (directions + 1) // 2


@lru_cache(maxsize=8)
def _upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the upper triangle in a flat matrix `m·m`, and what each entry counts: √2 off the diagonal."""
    rows, columns = np.triu_indices(size)
    return rows * size + columns, np.where(rows == columns, 1.0, np.sqrt(2.0))


def half_vector(matrix: np.ndarray) -> np.ndarray:
    """Symmetric `m m` → `m(m+1)/2`, with √2 off the diagonal: the inner product is that of the matrices."""
    places, weights = _upper(len(matrix))
    return matrix.reshape(-1)[places] * weights


def from_half_vector(vector: np.ndarray) -> np.ndarray:
    """The symmetric matrix `m m` of a half-vector `m(m+1)/2`."""
    size = (int(np.sqrt(8 * len(vector) + 1)) - 1) // 2
    assert descriptor_width(size) == len(vector), len(vector)
    places, weights = _upper(size)
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
    """Descriptors `b m(m+1)/2` of all images on the directions `m d` of each construction, in one pass."""
    if isinstance(tokens, DescribedTokens):
        return tokens.described_second_order(directions, dtype)
    spill = spill or Spill()
    columns = [np.asarray(one, dtype).T for one in directions]
    kept = [spill.empty((len(tokens), descriptor_width(len(one))), dtype) for one in directions]
    several, released = IMAGES_A_THREAD * count_cores(), 0

    def written(index: int) -> bool:
        patches = tokens.patches[index]
        centred = np.empty(patches.shape, dtype)
        if not unit_patches(patches, centred):
            return False
        centred -= centred.mean(axis=0)
        # One product a construction: of another shape it might round otherwise, and a descriptor would depend on what
        # else is requested.
        for rows, onto in zip(kept, columns, strict=True):
            vector = half_vector(spectral_map(covariance(centred @ onto), np.log))
            np.divide(vector, np.sqrt(vector @ vector) or 1.0, out=rows[index], casting="same_kind")  # L2(0) = 0
        return True

    with (progress or SilentProgress()).task("descriptors", len(tokens), "images") as task:
        for start in range(0, len(tokens), several):
            images = range(start, min(start + several, len(tokens)))
            for index, finite in zip(images, map_in_threads(written, images), strict=True):
                if not finite:
                    tokens.load(index, index + 1)  # says which image has values that are not finite
            task.advance(len(images))
            if images.stop - released >= _RELEASE_EVERY or images.stop == len(tokens):
                released = images.stop
                for rows in kept:
                    release(rows)
    return kept

"""Inner products of descriptors: the Gram matrix of the database, and the products of more images with it."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace

from tfa.base.backend import Array, Backend, to_numpy
from tfa.base.spill import release

COLUMN_BLOCK = 2048  # descriptor columns cast to float64 at a time
_BLOCK_BYTES = 32 << 20  # of them, or more columns if they are fewer bytes than this
IMAGE_BLOCK = 2048  # images whose products with the probes are summed at a time
SPREADING = 100  # ours: adding one product to its place costs about as much as multiplying so many channels
SPREAD_ROWS = 64  # rows added to their places at a time, so that they stay in the cache


def put_beside(values: np.ndarray, other: Array) -> Array:
    """`values` with the dtype, and where, `other` lives."""
    if isinstance(other, np.ndarray):
        return np.asarray(values, dtype=other.dtype)
    xp = array_namespace(other)
    return xp.asarray(np.array(values), dtype=other.dtype, device=other.device)


def gram_matrix(descriptors: np.ndarray, backend: Backend, filled: np.ndarray | None = None) -> Array:
    """⟨v_i, v_j⟩ in float64 of all images with each other, `m m`.

    In column blocks, so that no float64 copy of the descriptors exists. Each block is `X Xᵀ`, which numpy runs as a
    symmetric rank-k update at half the work. `filled`, `m k`, says which words an image has, where words it lacks are
    zero blocks: pairs of images that do not share a word then cost nothing.
    """
    images, width = descriptors.shape
    if filled is not None and backend.torch_device is None and _sparse_enough(filled, width // filled.shape[1]):
        return _products_by_word(descriptors, filled)
    products = backend.xp.zeros((images, images), dtype=backend.xp.float64, device=backend.torch_device or "cpu")
    added = backend.xp.empty_like(products)
    # Wide blocks multiply fastest; a large sum needs wide ones, so that adding to it stays cheap.
    columns = max(COLUMN_BLOCK, images, _BLOCK_BYTES // (8 * images))
    for low in range(0, width, columns):
        block = backend.put(descriptors[:, low : low + columns], "float64")
        products += backend.xp.matmul(block, block.T, out=added)
    return products


def probe_products(descriptors: np.ndarray, probes: np.ndarray, backend: Backend, products: np.ndarray) -> None:
    """⟨v_p, v_d⟩ in float64 of the probes with the whole database into `products`, `p m`, which may be mapped."""
    images, width = descriptors.shape
    for first in range(0, images, IMAGE_BLOCK):
        last = min(first + IMAGE_BLOCK, images)
        total = np.zeros((len(probes), last - first))
        for low in range(0, width, COLUMN_BLOCK):
            columns = slice(low, low + COLUMN_BLOCK)
            left = backend.put(descriptors[probes, columns], "float64")
            total += to_numpy(left @ backend.put(descriptors[first:last, columns], "float64").T)
        products[:, first:last] = total
        for mapped in (descriptors, products):
            release(mapped)


def _sparse_enough(filled: np.ndarray, channels: int) -> bool:
    """Is it less work to multiply, word by word, only the images that have it, and to spread the result?"""
    pairs = (filled.sum(axis=0, dtype=np.float64) ** 2).sum()
    return bool(pairs * (channels + SPREADING) < len(filled) ** 2 * filled.shape[1] * channels)


def _products_by_word(descriptors: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """G = Σ_k B_k B_kᵀ with B_k the blocks of word k, of the images that have it."""
    images, words = filled.shape
    channels = descriptors.shape[1] // words
    products, space = np.zeros((images, images)), np.empty(images * images)
    for word in range(words):
        have = np.flatnonzero(filled[:, word])
        block = np.asarray(descriptors[have, word * channels : (word + 1) * channels], dtype=np.float64)
        square = space[: len(have) ** 2].reshape(len(have), len(have))
        _add_lower(products, have, np.matmul(block, block.T, out=square))
    for low in range(0, images, SPREAD_ROWS):  # the upper half is the lower one
        rows, later = slice(low, low + SPREAD_ROWS), slice(low + SPREAD_ROWS, None)
        corner = products[rows, rows]
        products[rows, rows] = np.tril(corner) + np.tril(corner, -1).T
        products[rows, later] = products[later, rows].T
    return products


def _add_lower(products: np.ndarray, have: np.ndarray, added: np.ndarray) -> None:
    """products[have, have] += added on and below the diagonal (some of it above), a few rows at a time."""
    for low in range(0, len(have), SPREAD_ROWS):
        rows = have[low : low + SPREAD_ROWS]
        columns = have[: low + len(rows)]
        block = products[rows, : columns[-1] + 1]
        block[:, columns] += added[low : low + len(rows), : len(columns)]
        products[rows, : columns[-1] + 1] = block


def cross_products(one: np.ndarray, other: np.ndarray, backend: Backend) -> np.ndarray:
    """⟨v, v'⟩ in float64 between two sets of descriptors `q D` and `m D`, in column blocks."""
    products = np.zeros((len(one), len(other)))
    for low in range(0, one.shape[1], COLUMN_BLOCK):
        left = backend.put(one[:, low : low + COLUMN_BLOCK], "float64")
        right = left if other is one else backend.put(other[:, low : low + COLUMN_BLOCK], "float64")
        products += to_numpy(left @ right.T)
    return products

"""Inner products of queries with gallery rows, of floats or of integers, that no other query changes."""

from __future__ import annotations

import numpy as np

from tfa.base.half import widened
from tfa.search.quantised_rows import QuantisedRows

# Queries are scored in blocks of this many, the last one padded: matrix products then have the same shape for
# any number of queries, and a score does not depend, in its last bit, on what it was asked together with.
QUERY_BLOCK = 16
GALLERY_BLOCK = 256  # rows of a float16 gallery widened to float32 at a time
Rows = np.ndarray | QuantisedRows


def query_blocks(features: np.ndarray, gallery: Rows) -> list[np.ndarray]:
    """Features `q D` in blocks of 16, the last filled up with its first; in one where the gallery is integers."""
    if isinstance(gallery, QuantisedRows):
        return [features]
    blocks = [features[start : start + QUERY_BLOCK] for start in range(0, len(features), QUERY_BLOCK)]
    return [np.concatenate([block, np.repeat(block[:1], QUERY_BLOCK - len(block), axis=0)]) for block in blocks]


def lone_products(features: np.ndarray, chunk: Rows, known: dict[int, np.ndarray]) -> np.ndarray:
    """⟨f(q), f(d)⟩ `q m` that do not depend on the other queries."""
    if id(chunk) in known:
        return known[id(chunk)]
    return np.concatenate([inner(block, chunk) for block in query_blocks(features, chunk)])[: len(features)]


def inner(features: np.ndarray, gallery: Rows) -> np.ndarray:
    """⟨f(q), f(d)⟩ `q m`; a gallery stored in another dtype is widened a block of rows at a time.

    The gallery stands left of the product, so that a query is a column: BLAS kernels treat the columns of a
    block of 16 alike, which they do not do for rows.
    """
    if isinstance(gallery, QuantisedRows):
        return gallery.inner(features)
    if gallery.dtype == features.dtype:
        return (gallery @ features.T).T
    products = np.empty((len(gallery), len(features)), features.dtype)
    for low in range(0, len(gallery), GALLERY_BLOCK):
        rows = gallery[low : low + GALLERY_BLOCK]
        wide = widened(rows) if features.dtype == np.float32 else rows.astype(features.dtype)
        products[low : low + GALLERY_BLOCK] = wide @ features.T
    return products.T

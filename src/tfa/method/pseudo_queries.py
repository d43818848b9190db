"""Pseudo queries: database images that query their own database, with themselves and their duplicates masked.

Before the first real query, their scores are the only evidence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfa.core.arrays import Array, Backend, Spill, l2_normalize, release, to_numpy
from tfa.method.branch import DatabaseBranch, DatabaseSplit, ScoreBlock, row_blocks
from tfa.method.carriers import KernelTerm, weighted_sum
from tfa.method.evidence import Mask, RowFacts, row_facts, row_tops
from tfa.search.gallery import find_duplicates, tie_scores


def score_pseudo_queries(branch: DatabaseBranch, terms: Sequence[KernelTerm], backend: Backend) -> ScoreBlock:
    """Return scores (p, m) of a branch under a kernel, float64, computed for the requested rows."""
    pseudo, rows = branch.split.pseudo, np.searchsorted(branch.split.probes, branch.split.pseudo)
    shaped = {term.gamma: backend.put(branch.features(term.gamma)) for term in terms if term.gamma is not None}

    def similarity(gamma: float | None, start: int, stop: int) -> np.ndarray:
        if gamma is not None:
            return to_numpy(shaped[gamma][backend.put(pseudo[start:stop]), :] @ shaped[gamma].T)
        products = branch.products[rows[start:stop]]
        release(branch.products)  # the rows were copied
        return products

    def block(start: int, stop: int) -> np.ndarray:
        scores = weighted_sum((term.weight, similarity(term.gamma, start, stop)) for term in terms)
        return tie_scores(scores, branch.duplicates)

    return block


def pseudo_facts(block: ScoreBlock, count: int, mask: Mask | None, width: int = 1) -> RowFacts:
    """Return row facts of `count` queries with scores `block(start, stop)` of width `width`."""
    facts = []
    for start, stop in row_blocks(count, width):
        facts.append(row_facts(block(start, stop), None if mask is None else mask.within(start, stop)))
    return RowFacts.join(facts)


def take_median_spread(facts: RowFacts) -> float:
    """Return σ: the median spread of a pseudo query's row, which makes scores of different scale comparable."""
    counted = facts.top >= 0
    return float(np.median(facts.spread[counted])) if counted.any() else 0.0


_GALLERY_BLOCK = 1024  # database images scored at a time


def every_score(branch: DatabaseBranch, terms: Sequence[KernelTerm], backend: Backend) -> ScoreBlock:
    """Return scores (p, m) of a branch under a kernel, float64; blocks are copies that the caller may overwrite."""
    split = branch.split
    rows = np.searchsorted(split.probes, split.pseudo)
    plain = sum(term.weight for term in terms if term.gamma is None)
    spectral = [term for term in terms if term.gamma is not None]
    if not spectral:
        return score_pseudo_queries(branch, terms, backend)
    symmetric = branch.projected is None and len(split.pseudo) == split.images
    total = (_symmetric if symmetric else _by_gallery)(branch, spectral, backend)

    def block(start: int, stop: int) -> np.ndarray:
        scores = np.array(total[start:stop])
        if plain:
            scores += plain * branch.products[rows[start:stop]]
        release(total, branch.products)  # each row is read once
        return tie_scores(scores, branch.duplicates)

    return block


def _symmetric(branch: DatabaseBranch, terms: Sequence[KernelTerm], backend: Backend) -> np.ndarray:
    total = None
    for term in terms:
        assert term.gamma is not None
        kernel = _center(branch) if term.gamma == 0 else None
        if kernel is None:
            scaled = backend.put(branch.geometry.scaled(branch.coordinates(slice(None)), term.gamma))
            kernel = to_numpy(scaled @ scaled.T)
        norms = np.sqrt(np.diagonal(kernel).clip(min=0))
        inverse = np.sqrt(term.weight) / np.where(norms > 0, norms, 1.0)  # L2(0) = 0
        for start, stop in row_blocks(*kernel.shape):
            kernel[start:stop] *= inverse[start:stop, None] * inverse
        total = kernel if total is None else np.add(total, kernel, out=total)
    assert total is not None
    return total


def _center(branch: DatabaseBranch) -> np.ndarray | None:
    """Return B Bᵀ at γ = 0 without a product: it is G_c if every direction was kept; otherwise None."""
    geometry, products = branch.geometry, branch.products
    if not geometry.complete or geometry.rank == 0:
        return None
    kernel = np.empty(products.shape)
    for start, stop in row_blocks(*products.shape):
        np.subtract(products[start:stop], geometry.anchor_means[start:stop, None], out=kernel[start:stop])
        kernel[start:stop] -= geometry.anchor_means - geometry.grand_mean
    return kernel


def _by_gallery(branch: DatabaseBranch, terms: Sequence[KernelTerm], backend: Backend) -> np.ndarray:
    """Score one block of the database at a time, so that features and scores need not fit in memory."""
    split = branch.split
    total = empty_scores(split)
    queries = _features(branch, split.pseudo, terms, backend)
    for low in range(0, split.images, _GALLERY_BLOCK):
        images = slice(low, min(low + _GALLERY_BLOCK, split.images))
        total[:, images] = to_numpy(queries @ _features(branch, images, terms, backend).T)
        branch.release()
        release(total)
    return total


def _features(branch: DatabaseBranch, rows: slice | np.ndarray, terms: Sequence[KernelTerm], backend: Backend) -> Array:
    """Return √weight · φ_γ of all terms, concatenated, so that inner products are the sum of the terms."""
    coordinates = branch.coordinates(rows)
    parts = [np.sqrt(term.weight) * branch.geometry.shaped(coordinates, term.gamma) for term in terms]  # type: ignore[arg-type]
    return backend.put(np.concatenate(parts, axis=1))


def empty_scores(split: DatabaseSplit) -> np.ndarray:
    """Allocate scores (p, m): in memory if the PCA of all images needs more anyway, else in a mapped file."""
    shape = (len(split.pseudo), split.images)
    return np.empty(shape) if len(split.anchors) == split.images else Spill().empty(shape, np.float64)


def every_cosine(cls: np.ndarray, split: DatabaseSplit) -> ScoreBlock:
    """Return cosines (p, m) of the pseudo queries' global tokens with the database, float64, computed once."""
    unit = l2_normalize(np.asarray(cls, dtype=np.float64))
    total, same = empty_scores(split), find_duplicates(unit)
    if len(total) == split.images:
        np.matmul(unit, unit.T, out=total)
    else:
        for low in range(0, len(unit), _GALLERY_BLOCK):
            total[:, low : low + _GALLERY_BLOCK] = unit[split.pseudo] @ unit[low : low + _GALLERY_BLOCK].T
            release(total)

    def block(start: int, stop: int) -> np.ndarray:
        scores = np.array(total[start:stop])
        release(total)
        return tie_scores(scores, same)

    return block


def pseudo_tops(block: ScoreBlock, mask: Mask, count: int, width: int) -> np.ndarray:
    """Return the top-1 of each pseudo query, without masked images."""
    return np.concatenate(
        [row_tops(block(start, stop), mask.within(start, stop)) for start, stop in row_blocks(count, width)]
    )


def mix_blocks(weighted: Sequence[tuple[float, ScoreBlock]]) -> ScoreBlock:
    """Return Σ weight · scores, block by block; a single block of weight 1 is returned unchanged."""
    if len(weighted) == 1 and weighted[0][0] == 1:
        return weighted[0][1]
    return lambda start, stop: weighted_sum((weight, scores(start, stop)) for weight, scores in weighted)


def fuse_blocks(
    local: ScoreBlock, similar: ScoreBlock, local_weight: float, sigma_local: float, sigma_cls: float
) -> ScoreBlock:
    """Return w·S/σ_local + (1 − w)·S_cls/σ_cls, block by block."""
    one, other = local_weight / sigma_local, (1 - local_weight) / sigma_cls
    return lambda start, stop: one * local(start, stop) + other * similar(start, stop)

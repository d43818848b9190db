"""Second-order heads and their adaptation in plain float64 numpy.

Descriptors and their scores, target centering, and online adaptation of a stream. PCA, pseudo queries and spread are
those of `tfa.reference.database`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfa.reference.database import Pca, allowed, l2, median_spread

DIRECTIONS = 128
RIDGE = 1e-5
FULL = 1.0  # γ of full whitening
TRIMMED = 0.05
TARGET_PSEUDO_COUNT, ONLINE_PSEUDO_COUNT = 8, 2
BIAS_FROM, LAST_ROWS = 32, 256  # counted photos from which scores have a bias, and maximum number of rows for it
DECAY, DIFFERENT = 1 - 1 / 32, 0.2  # weight of earlier photos; share of the variance by which a counted photo differs

# --- Descriptors -----------------------------------------------------------------------------------------


def images_of_construction(images: int, s: int) -> np.ndarray:
    """Return a random half of the images; all of them if there are fewer than 8."""
    if images < 8:
        return np.arange(images)
    return np.sort(np.random.default_rng(s).permutation(images)[: math.ceil(images / 2)])


def drawn_patches(images: list[np.ndarray], max_patches: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sampled unit patches (t, d), and the image of each (t,)."""
    patches = np.concatenate([l2(image.astype(np.float64)) for image in images])
    owner = np.concatenate([np.full(len(image), i) for i, image in enumerate(images)])
    if len(patches) <= max_patches:
        return patches, owner
    chosen = np.sort(np.random.default_rng(0).choice(len(patches), max_patches, replace=False, shuffle=False))
    return patches[chosen], owner[chosen]


def directions(images: list[np.ndarray], s: int, max_patches: int = 300_000) -> np.ndarray:
    """Return D, (m, d): the leading eigenvectors of the covariance of the construction's patches, largest first."""
    patches, owner = drawn_patches(images, max_patches)
    x = patches[np.isin(owner, images_of_construction(len(images), s))]
    if len(x) == 0:
        return np.eye(patches.shape[1])[:DIRECTIONS]  # no patch was drawn: use any orthonormal directions
    x = x - x.mean(axis=0)
    vectors = np.linalg.eigh(x.T @ x / len(x))[1].T[::-1]
    rows = [v if v[np.abs(v).argmax()] > 0 else -v for v in vectors[:DIRECTIONS]]
    return np.stack(rows)


def log_covariance(patches: np.ndarray, d: np.ndarray, unit: bool = True) -> np.ndarray:
    """Return log C, (m, m), of one image's patches (n, d): C = YᵀY / max(n−1, 1) + ε I, Y = (P̃ − mean P̃) Dᵀ."""
    p = l2(patches.astype(np.float64)) if unit else patches
    y = (p - p.mean(axis=0)) @ d.T
    c = y.T @ y / max(len(y) - 1, 1) + RIDGE * np.eye(len(d))
    eigenvalues, vectors = np.linalg.eigh(c)
    return vectors @ np.diag(np.log(np.maximum(eigenvalues, RIDGE))) @ vectors.T


def descriptor(patches: np.ndarray, d: np.ndarray, unit: bool = True) -> np.ndarray:
    """Return v, (m(m+1)/2,): the normalized half-vector of log C with √2 off the diagonal."""
    matrix, half = log_covariance(patches, d, unit), []
    for i in range(len(matrix)):
        for j in range(i, len(matrix)):
            half.append(matrix[i, j] * (1.0 if i == j else math.sqrt(2)))
    return l2(np.array(half))


def averaged(patches: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return the mean of the unit patches (n, d) in the 3 × 3 cells around each, of those that exist."""
    rows, columns = grid
    cells, out = l2(patches.astype(np.float64)).reshape(rows, columns, -1), []
    for i in range(rows):
        for j in range(columns):
            near = cells[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]
            out.append(near.reshape(-1, near.shape[-1]).mean(axis=0))
    return np.stack(out)


def depths(patches: np.ndarray, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the patches of two joined blocks: unit patches of the earlier one, and averaged ones of the later one."""
    earlier, later = np.split(patches, 2, axis=1)
    return l2(earlier.astype(np.float64)), averaged(later, grid)


def descriptor_of_depths(patches: np.ndarray, d: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return v, (m(m+1),), of two joined blocks on directions (2, m, d)."""
    each = [descriptor(part, one, unit=False) for part, one in zip(depths(patches, grid), d, strict=True)]
    return np.concatenate(each) / math.sqrt(2)


# --- Scores ----------------------------------------------------------------------------------------------


def scores(carrier: str, pca: Pca, queries: np.ndarray, database: np.ndarray, c: float, beta: float) -> np.ndarray:
    """Return scores (q, m) under any carrier; `blend` is ½(S_0/σ_0 + S_P/σ_P), `tempered` ⅔ S_0/σ_0 + ⅓ S_w(⅝)/σ_⅝."""
    if carrier == "full":
        return pca.whitened(queries, database, FULL)
    if carrier not in ("blend", "tempered"):
        return pca.carrier(carrier, queries, database, c, beta)
    share, gamma = (0.5, 0.5) if carrier == "blend" else (2 / 3, 0.625)
    plain, may = queries @ database.T, allowed(database)
    whitened = pca.whitened(queries, database, gamma)
    spreads = median_spread(database @ database.T, may), median_spread(pca.whitened(database, database, gamma), may)
    return share * plain / spreads[0] + (1 - share) * whitened / spreads[1]


def sigma(carrier: str, pca: Pca, database: np.ndarray, c: float, beta: float) -> float:
    """Return σ: the median standard deviation of a pseudo query's scores, with duplicates masked."""
    return median_spread(scores(carrier, pca, database, database, c, beta), allowed(database))


def score_bias(rows: np.ndarray) -> np.ndarray:
    """Return b_d: log mean exp of each column of rows (q, m), divided by σ, without its ⌈5 %⌉ largest entries."""
    left = len(rows) - math.ceil(TRIMMED * len(rows))
    return np.log(np.exp(np.sort(rows, axis=0)[:left]).mean(axis=0))


def target_mean(pca: Pca, target: np.ndarray) -> np.ndarray:
    """Return μ' = (N_q · mean_Q v + 8 μ) / (N_q + 8)."""
    total = target.sum(axis=0) + TARGET_PSEUDO_COUNT * pca.mean
    return total / (len(target) + TARGET_PSEUDO_COUNT)


def whitened_from(mean: np.ndarray, pca: Pca, queries: np.ndarray, database: np.ndarray, gamma: float) -> np.ndarray:
    """Return S_w(γ) with query coordinates Uᵀ(v − mean) and database coordinates Uᵀ(v − μ)."""
    return replace(pca, mean=mean).phi(queries, gamma) @ pca.phi(database, gamma).T


def online_scores(pca: Pca, stream: np.ndarray, database: np.ndarray, gamma: float = 0.5) -> np.ndarray:
    """Return S_w(γ) of each photo of a stream (t, d_v), adapted to the earlier photos that counted."""
    z = pca.coordinates(stream)
    y = z * pca.eigenvalues**-0.25
    counted: list[int] = []
    rows: list[np.ndarray] = []  # scores of counted photos
    squares: list[float] = []  # squared distance of counted photos to their center
    found = []
    for t in range(len(z)):
        weights = DECAY ** np.arange(len(counted))[::-1]
        center = weights @ z[counted] / (weights.sum() + ONLINE_PSEUDO_COUNT)
        row = l2((z[t] - center) * pca.eigenvalues ** (-gamma / 2)) @ pca.phi(database, gamma).T
        found.append(row + online_bias(np.array(rows[-LAST_ROWS:])) if len(rows) >= BIAS_FROM else row)
        if counted and ((y[t] - y[counted[-1]]) ** 2).sum() < DIFFERENT * (weights @ squares) / weights.sum():
            continue  # it shows the same as the last counted photo
        squares.append((((z[t] - center) * pca.eigenvalues**-0.25) ** 2).sum())
        counted.append(t)
        rows.append(row)
    return np.array(found)


def online_bias(rows: np.ndarray) -> np.ndarray:
    """Return −σ (b_d − mean b), with σ the median spread of the rows (q, m)."""
    spread = float(np.median(rows.std(axis=1)))
    usual = score_bias(rows / spread)
    return spread * (usual.mean() - usual)

"""Principal axes from moments (ours, beyond the paper): Σ v and Σ v vᵀ may be added up by many machines.

Σ v vᵀ / N − μ μᵀ = U diag(λ) Uᵀ,    z = Uᵀ (v − μ)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from tfa.base.spill import release
from tfa.search.reduced import Moments

_BLOCK = 1024  # descriptors of which products are added up at a time


@dataclass(frozen=True)
class PrincipalAxes:
    """The PCA of descriptors, from their moments alone."""

    mean: np.ndarray  # D, float64
    vectors: np.ndarray  # D r, float64
    eigenvalues: np.ndarray  # r
    participation: float  # PR^u

    def coordinates(self, descriptors: np.ndarray) -> np.ndarray:
        """z `m r`, float64."""
        return (np.asarray(descriptors, np.float64) - self.mean) @ self.vectors


def add_moments(total: Moments, descriptors: np.ndarray) -> Moments:
    """With Σ 1, Σ v and Σ v vᵀ of more descriptors `m D`, added to the arrays of `total` themselves."""
    added = np.empty_like(total.second)
    for start in range(0, len(descriptors), _BLOCK):
        block = np.asarray(descriptors[start : start + _BLOCK], np.float64)
        np.add(total.second, np.matmul(block.T, block, out=added), out=total.second)  # a symmetric rank-k update
        np.add(total.first, block.sum(axis=0), out=total.first)
        release(descriptors)
    return Moments(total.count + len(descriptors), total.first, total.second)


def fit_principal_axes(moments: Moments, max_rank: int) -> PrincipalAxes:
    """The leading eigenvectors of the covariance, those that rounding left out. It overwrites `moments`."""
    images, width, moment = moments.count, len(moments.first), moments.second
    trace = float(np.trace(moment))
    participation = trace**2 / max(float(np.linalg.norm(moment)) ** 2, 1e-300)
    mean = moments.first / images
    moment /= images
    for row, value in enumerate(mean.tolist()):  # − μ μᵀ, without another matrix as large
        moment[row] -= value * mean
    wanted = (max(width - max_rank, 0), width - 1)
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=wanted, overwrite_a=True, check_finite=False)
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > rounding(trace / images, images, width)
    return PrincipalAxes(
        mean, np.ascontiguousarray(vectors[:, kept]), np.ascontiguousarray(values[kept]), participation
    )


def rounding(trace: float, images: int, width: int) -> float:
    """Eigenvalues up to this are what rounding leaves of a direction that is not there.

    Log-covariances of one encoder are alike: most of the trace is their mean's, and centring takes it off. What remains
    in the directions of no image (N images have N − 1) is rounding of the whole, not of what is left.
    """
    return trace * max(images, width) * float(np.finfo(np.float64).eps)

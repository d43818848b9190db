"""Linear layers in 8-bit integers: y ≈ s_a s_w Σ (a − z) w + bias, activations a from 0 to 255 and integer weights w.

The scale s_w belongs to an output channel. The scale s_a and the zero z follow from the smallest and the largest
activation of an image as it comes, so no photos are needed beforehand. All choices here are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Processors without VNNI add the products of neighbours, a₀w₀ + a₁w₁, in 16 bits and saturate; others do not. Tokens
# must not depend on the processor, so |w₀| + |w₁| ≤ 128: 255 · 128 < 2¹⁵.
LARGEST_PAIR = 128

# How far a channel's spread is moved from activations (1) to weights (0 leaves it): between 0.5 and 0.7 tokens come
# nearest to float32 with the default encoder.
_SHARE = 0.7
_DEVIATIONS = 3.0  # of a normed channel, up to which it is usually found


def quantize_weights(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 `out in` and float32 scales `out`, as fine as the sums of neighbours allow."""
    pairs = np.add.reduceat(np.abs(weight), np.arange(0, weight.shape[1], 2), axis=1)
    # Rounding adds at most a half to each of two neighbours: hence one less than what is allowed.
    scales = pairs.max(axis=1) / np.float32(LARGEST_PAIR - 1)
    scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)  # a row of zeros stays one
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def balance(scale: np.ndarray, shift: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Factors t `in` by which activations are divided and weights multiplied: (x / t) (W ∘ t)ᵀ = x Wᵀ.

    A channel that is far larger than the others takes the range of all. Of activations after a norm the size is
    known without photos: x_j = scale_j n_j + shift_j with n_j of unit variance.
    """
    activations = _DEVIATIONS * np.abs(scale) + np.abs(shift)
    columns = np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0)
    small = np.float32(1e-6)  # a channel that nobody reads, or that is always zero, must not be divided by zero
    logs = _SHARE * np.log(np.maximum(activations, small)) - (1 - _SHARE) * np.log(np.maximum(columns, small))
    return np.exp(logs - logs.mean()).astype(np.float32)

"""Loop closure: best lines of a frame and the expected number of false loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def best_line(standard: np.ndarray, frame: int, column: int, length: int, slopes: Sequence[float]) -> float:
    """Return B_L(t, j) = max over a of 1/L Σ_{k<L} z[t − k, j − round(a k)]; 0 outside the matrix."""
    sums = []
    for slope in slopes:
        total = 0.0
        for back in range(length):
            row, other = frame - back, column - int(np.rint(slope * back))
            if row >= 0 and 0 <= other < standard.shape[1]:
                total += float(standard[row, other])
        sums.append(total / length)
    return max(sums)


def expected_false_loops(spacings: Sequence[float], margins: Sequence[float], margin: float, trials: float) -> float:
    """Return trials · (1 + g / (β κ))^(−κ).

    Args:
        spacings: k (M_k − M_{k+1}), k ≥ 2, of all rows without a loop.
        margins: M_1 − M_2 of the same rows, all of them below 2 β.
        margin: g.
        trials: Number of independent lines of 20 frames in the drive.
    """
    below_gate = 1 - 2 * np.exp(-2) / (1 - np.exp(-2))  # mean of an exponential that is cut at twice its scale
    scale = (sum(spacings) + sum(margins) / below_gate) / (len(spacings) + len(margins))
    certainty = 8 + 2 * len(margins) / 20
    return float(trials * (1 + margin / (scale * certainty)) ** -certainty)

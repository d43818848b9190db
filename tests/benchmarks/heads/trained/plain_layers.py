"""Plain float64 layers, in loops, for the reference implementations of trained systems."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]


def unit(x: Array) -> Array:
    return x / max(math.sqrt(float((x * x).sum())), 1e-12)


def norm(x: Array, w: Weights, at: str, eps: float) -> Array:
    """LayerNorm of one vector."""
    mean = x.sum() / len(x)
    variance = ((x - mean) ** 2).sum() / len(x)
    return (x - mean) / math.sqrt(variance + eps) * w[f"{at}.weight"] + w[f"{at}.bias"]


def linear(x: Array, w: Weights, at: str) -> Array:
    matrix = w[f"{at}.weight"].reshape(len(w[f"{at}.weight"]), -1)
    return np.array([float(row @ x) for row in matrix]) + w.get(f"{at}.bias", 0)


def gelu(x: Array) -> Array:
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def log_sum_exp(x: Array) -> float:
    return float(x.max() + math.log(np.exp(x - x.max()).sum()))


def convolution(x: Array, kernel: Array, bias: Array | None = None, stride: int = 1, pad: int = 0) -> Array:
    """`c h w` → `o h' w'`; a kernel of one input channel for many of the map's is depthwise."""
    o, i, kh, kw = kernel.shape
    padded = np.zeros((len(x), x.shape[1] + 2 * pad, x.shape[2] + 2 * pad))
    padded[:, pad : pad + x.shape[1], pad : pad + x.shape[2]] = x
    out = np.zeros((o, (padded.shape[1] - kh) // stride + 1, (padded.shape[2] - kw) // stride + 1))
    for channel in range(o):
        source = padded[channel : channel + 1] if i == 1 and len(x) > 1 else padded
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                window = source[:, row * stride : row * stride + kh, column * stride : column * stride + kw]
                out[channel, row, column] = (window * kernel[channel]).sum()
    return out if bias is None else out + bias[:, None, None]


def batch_norm(x: Array, w: Weights, at: str, eps: float) -> Array:
    out = np.empty_like(x)
    for c in range(len(x)):
        scale = w[f"{at}.weight"][c] / math.sqrt(w[f"{at}.running_var"][c] + eps)
        out[c] = (x[c] - w[f"{at}.running_mean"][c]) * scale + w[f"{at}.bias"][c]
    return out


def cubic(t: float, a: float) -> float:
    t = abs(t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def attention(queries: Array, keys: Array, values: Array, width: int) -> Array:
    """Head by head, `width` channels each."""
    out = np.zeros_like(queries)
    for start in range(0, queries.shape[1], width):
        own = slice(start, start + width)
        for i in range(len(queries)):
            scores = np.array([queries[i, own] @ keys[j, own] for j in range(len(keys))]) / math.sqrt(width)
            for share, value in zip(softmax(scores), values[:, own], strict=True):
                out[i, own] += share * value
    return out


def relu(x: Array) -> Array:
    return np.maximum(x, 0)

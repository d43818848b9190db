"""The seam between numpy on a CPU and torch tensors on a GPU, and the few array idioms all stages share.

Numeric stages are written once, against the array API (`xp`): they take whatever arrays they are given.
A `Backend` says where heavy arrays live; what leaves a stage for the controller is numpy again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from tfa.errors import BadSpec

Array = Any  # an array of any namespace; shapes are written in each signature


@dataclass(frozen=True)
class Backend:
    """Where arrays live while they are computed on. `cpu` is numpy; `cuda`, `torch` are torch."""

    device: str
    xp: Any
    torch_device: str | None = None

    def put(self, array: np.ndarray, dtype: str | None = None) -> Array:
        """Bring a numpy array to the backend, as `dtype` if one is named."""
        array = np.asarray(array) if dtype is None else np.asarray(array, dtype=dtype)
        if self.torch_device is None:
            return array
        if not array.flags.writeable:
            array = array.copy()  # torch refuses to share read-only memory such as a mapped file
        return self.xp.asarray(array, device=self.torch_device)


def backend_for(device: str) -> Backend:
    """`cpu` → numpy, `cuda` or `cuda:1` → torch on that GPU, `torch` → torch on the CPU (for comparison)."""
    if device == "cpu":
        import array_api_compat.numpy as numpy_namespace

        return Backend("cpu", numpy_namespace)
    if device == "torch" or device.split(":")[0] == "cuda":
        import array_api_compat.torch as torch_namespace
        import torch

        if device != "torch" and not torch.cuda.is_available():
            raise BadSpec(f"device {device!r}: this machine has no usable CUDA device; use cpu")
        return Backend(device, torch_namespace, "cpu" if device == "torch" else device)
    raise BadSpec(f"device {device!r} is unknown; use cpu, cuda or cuda:N")


def to_numpy(array: Array) -> np.ndarray:
    """A numpy array of the same numbers, wherever `array` lives."""
    if isinstance(array, np.ndarray):
        return array
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def l2_normalize(x: Array) -> Array:
    """Unit vectors along the last axis; L2(0) = 0."""
    xp = array_namespace(x)
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm > 0, norm, xp.ones_like(norm))

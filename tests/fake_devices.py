"""A GPU that is not there: tensors that claim to be on it, and a check that every operation stays on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import array_api_compat.torch as torch_namespace
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfa.core.arrays import Backend

_MODE = FakeTensorMode()  # one, because models cache tensors by device


@dataclass(frozen=True)
class FakeBackend(Backend):
    """Copies to a device without one: shapes, dtypes and devices are those of real tensors."""

    def put(self, array: np.ndarray, dtype: str | None = None) -> Any:
        array = np.asarray(array) if dtype is None else np.asarray(array, dtype)
        kind = getattr(torch, str(array.dtype))
        return torch.zeros(array.shape, dtype=kind, device=self.torch_device)


def fake_backend(kind: str) -> Backend:
    return FakeBackend(kind, torch_namespace, kind)


class OperationLog(TorchDispatchMode):
    """Notes the devices and dtypes of every operation's results."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()
        self.dtypes: set[tuple[str, torch.dtype]] = set()  # by device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self.devices.add(one.device.type)
                self.dtypes.add((one.device.type, one.dtype))
        return result


def _move(move: Any, tensor: torch.Tensor, *targets: Any, **named: Any) -> torch.Tensor:
    """`Tensor.to` for devices that torch was not built for."""
    wanted = [*targets, *named.values()]
    dtype = next((one for one in wanted if isinstance(one, torch.dtype)), tensor.dtype)
    device = next((torch.device(one) for one in wanted if isinstance(one, str | torch.device)), tensor.device)
    if device.type == tensor.device.type:
        return move(tensor, dtype)
    return torch.empty(tensor.shape, dtype=dtype, device=device)


def _take(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """`tensor[index]` by single operations: torch's own selects the device first, which is not there."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [one for one in parts if not isinstance(one, torch.Tensor)]:
        at = next(i for i, one in enumerate(parts) if one is Ellipsis)
        used = sum(one is not None for one in parts) - 1
        parts[at : at + 1] = [slice(None)] * (tensor.ndim - used)
    axis = 0
    for one in parts:
        if one is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(one, slice):
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, one.start, one.stop, one.step or 1)
        elif isinstance(one, torch.Tensor):
            tensor = torch.ops.aten.index_select(tensor, axis, one)
        else:
            tensor = tensor.select(axis, one)
            axis -= 1
        axis += 1
    return tensor


@contextmanager
def fake_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tensors be on devices that torch was not built for; one operation on two devices is an error."""
    move = torch.Tensor.to
    with monkeypatch.context() as patch, _MODE:
        patch.setattr(torch.Tensor, "to", lambda tensor, *targets, **named: _move(move, tensor, *targets, **named))
        patch.setattr(torch.Tensor, "__getitem__", _take)
        patch.setattr(
            torch.Tensor, "contiguous", lambda tensor: torch.clone(tensor, memory_format=torch.contiguous_format)
        )
        yield

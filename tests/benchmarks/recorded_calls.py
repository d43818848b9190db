"""Calls of a function that a benchmark makes, noted while the function still does its work."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def record_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, note: Callable[..., Any]) -> list[Any]:
    """What `note` makes of the positional arguments of each call of `module.name`, in order."""
    calls: list[Any] = []
    real = getattr(module, name)

    def noted(*given: Any, **more: Any) -> Any:
        calls.append(note(*given))
        return real(*given, **more)

    monkeypatch.setattr(module, name, noted)
    return calls

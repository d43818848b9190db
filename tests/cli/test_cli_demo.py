"""`tfa demo`: arguments and output."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


class Result:
    def __str__(self) -> str:
        return "TFA 97.8 [R@1]"


@pytest.fixture
def called(monkeypatch):
    """The arguments of what the verbs call, which is replaced."""
    calls = {}
    fake = ModuleType("tfa.demo.run")
    fake.run_demo = lambda *args, **given: calls.update(run_demo=(args, given)) or Result()
    monkeypatch.setitem(sys.modules, "tfa.demo.run", fake)
    return calls


def test_demo(run, called, folder):
    result = run("demo", "--references", 30, "--quiet")
    assert result.exit_code == 0
    assert result.stdout == "TFA 97.8 [R@1]\n"
    assert called["run_demo"] == ((Path("demo-out"),), {"references": 30, "queries": 45, "progress": False})

"""`tfa demo`, `tfa bench fit` and `tfa bench calibrate`: what they pass on and print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tfa.bench.speed.calibrate import CalibrateBenchmark
from tfa.bench.speed.fit import FitBenchmark
from tfa.method.decisions import Decisions

THREE = (0.1, 0.2, 0.3)
DECIDED = Decisions(
    assignment="hard", carrier="partial", admit_cls=False, c=0.5, beta=0.5, sigma_local=THREE, sigma_cls=THREE
).to_dict()
RESULTS = {
    "run_fit_benchmark": FitBenchmark(607, 529, 384, 2.5, {"words": 2.0}, [3, 4, 5], DECIDED, "m").to_dict(),
    "run_calibrate_benchmark": CalibrateBenchmark(607, 529, 384, 64, 607, 4.0, 1.0, 5.0, DECIDED, "m").to_dict(),
}


class Result:
    def __init__(self, name: str) -> None:
        self.to_dict = lambda: RESULTS[name]

    def __str__(self) -> str:
        return "TFA 97.8 [R@1]"


@pytest.fixture
def called(monkeypatch):
    """The arguments of what the verbs call, which is replaced."""
    calls = {}
    for module, name in (
        ("tfa.demo.run", "run_demo"),
        ("tfa.bench.speed.fit", "run_fit_benchmark"),
        ("tfa.bench.speed.calibrate", "run_calibrate_benchmark"),
    ):
        fake = ModuleType(module)
        setattr(fake, name, lambda *args, name=name, **given: calls.update({name: (args, given)}) or Result(name))
        monkeypatch.setitem(sys.modules, module, fake)
    return calls


def test_demo(run, called, folder):
    result = run("demo", "--references", 30, "--quiet")
    assert result.exit_code == 0
    assert result.stdout == "TFA 97.8 [R@1]\n"
    assert called["run_demo"] == ((Path("demo-out"),), {"references": 30, "queries": 45, "progress": False})


def test_bench_fit(run, called, folder):
    assert run("bench", "fit").stdout == "TFA 97.8 [R@1]\n"
    assert called["run_fit_benchmark"] == (
        (), {"images": 607, "patches": 529, "channels": 384, "photos": None, "progress": True},
    )  # fmt: skip
    assert json.loads(run("bench", "fit", "--tokens", "photos", "--json").stdout)["ratio"] == 1.25
    assert called["run_fit_benchmark"][1]["photos"] == Path("photos")


def test_bench_calibrate(run, called, folder):
    words = ["--images", 50, "--target", 8, "--full", 40, "--patches", 20, "--channels", 6]
    assert run("bench", "calibrate", *words, "--quiet").stdout == "TFA 97.8 [R@1]\n"
    assert called["run_calibrate_benchmark"] == (
        (), {"images": 50, "target": 8, "full": 40, "patches": 20, "channels": 6, "progress": False},
    )  # fmt: skip
    assert json.loads(run("bench", "calibrate", "--json").stdout)["full_ratio"] == 1.25
    assert called["run_calibrate_benchmark"][1]["target"] == 64
    assert run("bench", "calibrate", "--target", 1).exit_code == 2

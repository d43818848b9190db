"""Full disk, no open files, no memory, read-only folder: a clear error, and the map is unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.faults.storage.disk_operations import failing_at
from tests.faults.storage.edits import EDITS, facts_of, prepared
from tests.worlds import world as tokens_of_a_world
from tfa.core.arrays import Spill
from tfa.errors import DiskFull, OutOfResources, TfaError
from tfa.maps import PlaceMap
from tfa.pipeline import fit
from tfa.types import HeadSpec

FAULTS = {
    "full disk": (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
    "quota exceeded": (OSError(errno.EDQUOT, "Disk quota exceeded"), DiskFull),
    "too many open files": (OSError(errno.EMFILE, "Too many open files"), OutOfResources),
    "read-only folder": (OSError(errno.EROFS, "Read-only file system"), OSError),
}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def failure(edit: Callable[[], object], number: int, error: OSError) -> Exception | None:
    """What an edit says of an operation that fails; None if it does not come to it."""
    try:
        with failing_at(number, error):
            edit()
    except (TfaError, OSError) as said:
        return said
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_any_operation_of_any_edit_fails(world, tmp_path, campaign, fault):
    error, kind = FAULTS[fault]
    made, attempts = prepared(world, "paper", tmp_path / "made"), 0
    if fault == "quota exceeded" and not campaign.full:
        pytest.skip("as a full disk; the full campaign tries it")
    for name, edit in EDITS.items():
        if name == "refit" and not campaign.full:
            continue  # as overwriting, after a fit
        number, step = 0, campaign.size(23, 1 if fault == "full disk" else 4)
        while True:
            path = tmp_path / "town.tfa"
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(made, path)
            opened = world.opened(path)
            before, files = facts_of(opened), contents(path)
            said = failure(lambda opened=opened, edit=edit: edit(opened, world), number, error)
            if said is None:
                break  # the edit has fewer operations
            assert isinstance(said, kind)
            assert str(path) in str(said)
            attempts += 1
            again = PlaceMap.load(path, checksum=True, encoder=FakeEncoder())
            if again.state.digest == opened.state.digest:  # else the header was in place when its folder was synced
                assert facts_of(opened) == facts_of(again) == before
                assert contents(path) == files  # no files of the uncommitted revision
            again.remove([4])
            number += step
    campaign.count(f"failing operations: {fault}", attempts)


@pytest.mark.parametrize("number", range(0, 40, 13))
def test_a_first_save_that_fails_leaves_nothing(world, tmp_path, number):
    opened = world.opened(world.folder / "paper.tfa")
    with pytest.raises(DiskFull), failing_at(number, FAULTS["full disk"][0]):
        opened.save(tmp_path / "new.tfa")
    assert list(tmp_path.iterdir()) == []
    assert opened.path == world.folder / "paper.tfa"
    opened.save(tmp_path / "new.tfa")
    assert len(PlaceMap.load(tmp_path / "new.tfa", checksum=True)) == 8


# --- temporary data ----------------------------------------------------------------------------------------------

IN_A_SMALL_DISK = """
mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "
import numpy as np, tempfile
from tfa.core.arrays import Spill
from tfa.errors import DiskFull
tempfile.tempdir = '$1'
spill = Spill(1 << 10)
kept = spill.empty((1 << 16,), np.float32)
kept[:] = 1
try:
    spill.empty((1 << 20,), np.float32)[:] = 1
except DiskFull as error:
    print(error)
assert (kept == 1).all()
"
"""


def test_a_full_disk_of_temporary_data_does_not_end_the_process(tmp_path, campaign):
    """Mapped pages that find no room would: the system sends SIGBUS."""
    command = ["unshare", "-rm", "sh", "-c", IN_A_SMALL_DISK, "sh", str(tmp_path), sys.executable]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a disk of one megabyte needs a mount namespace, which this system does not give")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"temporary data needs 4,194,304 bytes in {tmp_path}" in done.stdout
    assert "TMPDIR" in done.stdout
    campaign.count("temporary files on a full disk", 1)


def test_without_room_for_temporary_data_a_fit_says_where_and_how_much(tmp_path, monkeypatch, campaign):
    def full(handle, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 10,))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull, match=r"temporary data needs [0-9,]+ bytes in .*TMPDIR"):
        fit(tokens_of_a_world(), HeadSpec(words=4))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
    campaign.count("temporary files on a full disk", 1)


def test_a_file_system_that_reserves_nothing(tmp_path, monkeypatch):
    def cannot(handle, offset, size):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", cannot)
    array = Spill(0).empty((100,), np.float32)
    array[:] = 3
    assert (array == 3).all()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(DiskFull, match="400 bytes"):
        Spill(0).empty((100,), np.float32)


# --- memory ------------------------------------------------------------------------------------------------------


def test_memory_that_runs_out_inside_a_fit_leaves_the_map(world, tmp_path, monkeypatch, campaign):
    path = world.map("paper", tmp_path)
    opened, real, left = world.opened(path), Spill.empty, [0]
    for number in range(campaign.size(3, 12)):
        left[0] = number

        def short(self, shape, dtype):
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError("Unable to allocate 3.00 GiB")
            return real(self, shape, dtype)

        with monkeypatch.context() as patch:
            patch.setattr(Spill, "empty", short)
            with pytest.raises(MemoryError):
                opened.refit()
        assert facts_of(opened) == facts_of(PlaceMap.load(path, checksum=True))
    opened.refit()
    assert PlaceMap.load(path).state.revision == 2
    campaign.count("fits that run out of memory", campaign.size(3, 12))


def until_refused(path: Path) -> list[int]:
    """Open files until the system gives no more."""
    held = []
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open(path, os.O_RDONLY))
    return held


def test_open_files_that_run_out_are_named(world, tmp_path, campaign):
    path = world.map("paper", tmp_path)
    opened = world.opened(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))
        held += until_refused(path)
        os.close(held.pop())
        with pytest.raises(OutOfResources, match="too many open files"):
            opened.remove([1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for handle in held:
            os.close(handle)
    assert opened.remove([1]).removed == [1]
    assert len(PlaceMap.load(path, checksum=True)) == 7
    campaign.count("no more open files allowed", 1)

"""Servers that tests start: programs in a folder that only root may enter are copied for the user who runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from studies.scale.local_servers import find_programs


@pytest.fixture
def package():
    """A stand-in for the package of PostgreSQL, in a folder that everyone may enter."""
    temporary = Path(tempfile.gettempdir()).resolve()
    if not all(path.stat().st_mode & 0o001 for path in (temporary, *temporary.parents)):
        pytest.skip(f"other users cannot enter {temporary}")
    folder = Path(tempfile.mkdtemp(prefix="tfa-programs-", dir=temporary))
    program = folder / "site" / "postgres" / "pginstall" / "bin" / "postgres"
    for parent in (program.parent, folder / "site" / "postgres.libs"):
        parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\ncat "$(dirname "$0")/../../../postgres.libs/library"\n')
    (folder / "site" / "postgres.libs" / "library").write_text("ready")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    yield folder / "site" / "postgres"
    shutil.rmtree(folder)


def test_programs_that_everyone_can_run_stay_where_they_are(package):
    assert find_programs(package) == package / "pginstall"


@pytest.mark.parametrize("closed", ["../..", "..", ".", "pginstall/bin", "pginstall/bin/postgres"])
def test_programs_that_only_the_owner_can_run_are_copied_once(package, closed):
    (package / closed).resolve().chmod(0o700)
    copied = find_programs(package)
    assert copied == find_programs(package) != package / "pginstall"
    program = copied / "bin" / "postgres"
    assert all(path.stat().st_mode & 0o001 for path in (program, *program.parents))
    as_nobody = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    assert subprocess.run([program], capture_output=True, cwd="/", **as_nobody).stdout == b"ready"
    shutil.rmtree(copied.parent.parent)

"""The real `tfa serve` as the container of the example runs it: another user, no capabilities, a file system that
cannot be written but for the folder of the maps and one for temporary files.

No container engine is needed: a mount namespace holds the interpreter, its packages and this code, all read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

USER = 10001
REPOSITORY = Path(__file__).parents[3]
PROGRAM = f"/mnt/python/bin/{Path(sys.executable).resolve().name}"
ENCODER = "from tests.fakes import FakeEncoder\n\n\ndef load(name, **_):\n    return FakeEncoder()\n"
# $1 the maps, $2 the interpreter, $3 its packages, $4 this repository, $5 the plugin; then the program.
CONFINED = """
set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
cd /mnt
mkdir maps python packages code plugin tmp
mount --bind "$1" maps
for folder in python packages code plugin; do
  shift
  mount --bind "$1" $folder
  mount -o remount,bind,ro $folder
done
mount -t tmpfs -o mode=1777 tmpfs tmp
shift
while read -r _ place _; do
  case $place in /mnt/maps|/mnt/tmp) ;; *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;; esac
done < /proc/self/mounts
exec setpriv $AS --bounding-set=-all --inh-caps=-all --no-new-privs sh -c '
  for place in /mnt /mnt/code /mnt/python /var/tmp /tmp "$HOME"; do
    if touch "$place/probe" 2>/dev/null; then echo "$place can be written" >&2; exit 1; fi
  done
  touch /mnt/tmp/probe /mnt/maps/probe
  exec "$@"' sh "$@"
"""


def command(maps: Path, *options: str) -> list[str]:
    """Of a service of `maps / "town.tfa"`, with these options."""
    plugin = maps.parent / "plugin"
    if not plugin.exists():
        _bring_encoder(plugin)
    as_root = os.geteuid() == 0
    own = ["--mount"] if as_root else ["--user", "--map-root-user", "--mount"]
    other = f"--reuid={USER} --regid={USER} --clear-groups" if as_root else ""
    environment = {
        "AS": other,
        "HOME": str(Path.home()),
        "TMPDIR": "/mnt/tmp",
        "TFA_CACHE": "/mnt/maps/cache",
        "LD_LIBRARY_PATH": "/mnt/python/lib",
        "PYTHONPATH": "/mnt/code/src:/mnt/code:/mnt/plugin:/mnt/packages",
        **{name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ},
    }
    folders = [maps, sys.base_prefix, sysconfig.get_path("purelib"), REPOSITORY, plugin]
    serve = [PROGRAM, "-m", "tfa", "serve", "/mnt/maps/town.tfa", "--port", "0", *options]
    given = [f"{name}={value}" for name, value in environment.items()]
    return ["env", "-i", *given, "unshare", *own, "sh", "-c", CONFINED, "sh", *map(str, folders), *serve]


def obstacle() -> str | None:
    """Why this machine cannot run it."""
    for tool in ("unshare", "setpriv", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is needed to confine the service"
    own = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    tried = subprocess.run(
        ["unshare", *own, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, check=False
    )
    return f"this user may not make a view of the file system: {tried.stderr.strip()}" if tried.returncode else None


def given_to_the_user(folder: Path) -> None:
    """Make everything in a folder the confined user's."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)


def _bring_encoder(plugin: Path) -> None:
    """A distribution with the encoder of the tests, which the command line then finds by the name in the map."""
    about = plugin / "fake_encoder-0.dist-info"
    about.mkdir(parents=True)
    (plugin / "fake_encoder.py").write_text(ENCODER)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-encoder\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[tfa.encoders]\nfake = fake_encoder:load\n")

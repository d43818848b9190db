"""Bags of all three forms, and videos."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from tests.faults.files.targets import Target, files_below
from tests.photos.recordings.made import drive_rows, write_bag, write_video
from tfa.errors import BadImage
from tfa.photos.recordings.frames import open_recording


def bags(name: str, folder: Path) -> Target:
    write_bag(folder / "a.bag", drive_rows(4, ros1=True))
    for file in ("b.db3", "c.mcap"):
        write_bag(folder / file, drive_rows(4)).rename(folder / file)
    return Target(name, files_below(folder, "*.*"), _read)


def videos(name: str, folder: Path) -> Target:
    for file in ("a.mp4", "b.mkv"):
        write_video(folder / file, frames=6)
    return Target(name, files_below(folder, "*.*"), _read)


def _read(folder: Path, victim: str, changed: bool) -> None:
    with open_recording(folder / victim) as recording:
        for frame in itertools.islice(recording.frames(), 100):
            with contextlib.suppress(BadImage):
                assert frame.picture().to_bytes()

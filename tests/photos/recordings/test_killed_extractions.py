"""Leftovers of a killed extraction are removed later; files in use or of other users are not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.photos.recordings.made import write_video
from tfa.core.files import STALE_SECONDS
from tfa.photos.recordings import frames as module
from tfa.photos.recordings.frames import NEW, REPLACED, FrameSpec, extract_frames

SPEC = FrameSpec(every=10)
SLOW = """
import sys, time
from tfa.photos.recordings import frames as write_frames
from tfa.photos.recordings.frames import FrameSpec, extract_frames
write = write_frames._write
def write_and_wait(*given):
    name = write(*given)
    print(name, flush=True)
    time.sleep(600)
write_frames._write = write_and_wait
extract_frames(sys.argv[1], sys.argv[2], FrameSpec(every=10))
"""


@pytest.fixture
def video(tmp_path):
    return write_video(tmp_path / "a.mp4")


def hidden(folder):
    return sorted(one.name for one in folder.iterdir() if one.name.startswith("."))


def age(folder):
    """As if it had been written two hours ago."""
    then = folder.stat().st_mtime - 2 * STALE_SECONDS
    os.utime(folder, (then, then))


def leave(folder, *inside):
    """A folder as a killed extraction leaves it."""
    for name in inside:
        (folder / name).mkdir(parents=True)
        (folder / name / "0000000000.000000000.jpg").write_bytes(b"half")
    age(folder)
    return folder.name


@pytest.mark.kill
def test_what_a_killed_extraction_left_is_removed_by_the_next_one_and_nothing_that_is_being_written(video, tmp_path):
    out = tmp_path / "[out]"  # a name with another meaning in a glob pattern
    slow = subprocess.Popen([sys.executable, "-c", SLOW, str(video), str(out)], stdout=subprocess.PIPE, text=True)
    try:
        assert slow.stdout.readline().strip() == "0000000000.000000000.jpg"
        [left] = hidden(tmp_path)
        age(tmp_path / left)
        assert len(extract_frames(video, out, SPEC).photos) == 3
        assert hidden(tmp_path) == [left]  # old as it seems: its writer lives
    finally:
        slow.kill()
        slow.wait()
        slow.stdout.close()
    assert len(extract_frames(video, out, SPEC).photos) == 3  # those that are there
    assert hidden(tmp_path) == []


def test_only_what_is_of_the_same_output_and_long_ago_and_ours_is_removed(video, tmp_path):
    leave(tmp_path / ".out.frames-written", NEW)
    leave(tmp_path / ".out.frames-replacing", NEW, REPLACED)
    kept = [leave(tmp_path / ".out.frames-foreign", NEW, "thesis"), leave(tmp_path / ".other.frames-left", NEW)]
    kept.append(leave(tmp_path / ".out-tray", NEW))
    fresh = tmp_path / ".out.frames-fresh"
    leave(fresh, NEW)
    os.utime(fresh)
    extract_frames(video, tmp_path / "out", SPEC)
    assert hidden(tmp_path) == sorted([*kept, fresh.name])


def test_frames_that_cannot_be_replaced_stay(video, tmp_path, monkeypatch):
    out, rename = tmp_path / "out", os.rename
    before = extract_frames(video, out, SPEC).photos

    def refuse_the_new(source, target):
        if str(source).endswith(NEW):
            raise PermissionError(13, "refused")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", refuse_the_new)
        with pytest.raises(PermissionError):
            extract_frames(video, out, FrameSpec(every=5), overwrite=True)
    assert extract_frames(video, out, SPEC).photos == before
    assert len(extract_frames(video, out, FrameSpec(every=5), overwrite=True).photos) == 6
    assert hidden(tmp_path) == []

"""Recordings that never end, fill the disk or hold values of another type: one error, within limits."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from ruamel.yaml import YAML

from tests.photos.recordings.made import drive_rows, jpeg, write_bag, write_video
from tests.waiting import PATIENCE
from tfa.errors import BadImage, BadRecording, NoImages
from tfa.photos.images import as_rgb, find_images
from tfa.photos.recordings import recording
from tfa.photos.recordings.frames import FrameSpec, extract_frames, open_recording

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENDLESS = """
    DROP TABLE message_definitions;
    CREATE VIEW message_definitions AS
    WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c)
    SELECT id, 'a' AS topic_type, 'ros2msg' AS encoding, '' AS encoded_message_definition, '' AS type_description_hash
    FROM c WHERE id < 0
"""


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    """Kill a test that hangs, in C code too."""
    signal.alarm(int(PATIENCE))
    yield
    signal.alarm(0)


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    return write_bag(tmp_path / "a.db3", drive_rows(4)).rename(tmp_path / "a.db3")


def change(bag: Path, script: str) -> None:
    with sqlite3.connect(bag) as connection:
        connection.executescript(script)
    connection.close()


def set_cells(bag: Path, table: str, column: str, value: str) -> None:
    """Set a column of a table without types, so that SQLite converts nothing."""
    with sqlite3.connect(bag) as connection:
        names = ", ".join(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
    connection.close()
    change(
        bag,
        f"""
        ALTER TABLE {table} RENAME TO old; CREATE TABLE {table} ({names}); INSERT INTO {table} SELECT * FROM old;
        DROP TABLE old; UPDATE {table} SET {column} = {value}
    """,
    )


def read(path: Path) -> int:
    with open_recording(path) as opened:
        return len([frame.picture().to_bytes() for frame in opened.frames()])


def pack(bag: Path, content: bytes) -> Path:
    """Return a bag folder whose one file is compressed as a whole."""
    folder = bag.parent / "packed"
    folder.mkdir()
    (folder / "a.db3.zstd").write_bytes(zstd.compress(content))
    text = (bag.parent / "a/metadata.yaml").read_text()
    text = text.replace("a.db3", "a.db3.zstd").replace("compression_format: ''", "compression_format: zstd")
    (folder / "metadata.yaml").write_text(text.replace("compression_mode: ''", "compression_mode: FILE"))
    return folder


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_an_endless_query_of_sqlite_is_stopped(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(bag, ENDLESS)
    monkeypatch.setattr(recording, "_SECONDS", 0.5)
    with pytest.raises(BadRecording, match=r"a\.db3 takes more than 0\.5 s of processor time"):
        read(bag)


def test_a_packed_bag_is_unpacked_within_limits(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bag.parent / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(bag.parent / "tmp"))
    monkeypatch.setattr(recording, "_ANY_SIZE", 1 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = pack(bag, bag.read_bytes())
    assert read(folder) == 4
    (folder / "a.db3.zstd").write_bytes(zstd.compress(bytes(32 << 20)))
    with pytest.raises(BadRecording, match=r"packed unpacks to more than [\d,]+ bytes; it is damaged"):
        read(folder)
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
    assert list((bag.parent / "tmp").iterdir()) == []


def test_the_frames_of_a_recording_share_a_limit_of_time(bag: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_ALL_SECONDS", 0.5)
    monkeypatch.setattr(recording, "_ALL_BYTES_PER_SECOND", 10**9)
    for _ in recording.iterate_limited(bag, iter(range(3))):
        burn(0.4)  # the work of whoever reads does not count
    with pytest.raises(BadRecording, match=r"a\.db3 takes more than 0\.5 s of processor time in all"):
        list(recording.iterate_limited(bag, (burn(0.1) for _ in itertools.count())))


def test_frames_of_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "v.mp4", frames=2)
    assert read(path) == 2
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(BadRecording, match=r"v\.mp4 has frames of 64 × 48 pixels"):
        read(path)


def test_frames_are_converted_within_the_limit_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "v.mp4", frames=2)
    monkeypatch.setattr(recording, "_MEMORY", 1 << 29)
    large = SimpleNamespace(width=8, height=8, pts=None, rotation=0, to_image=lambda: bytes(1 << 30))
    with open_recording(path) as opened:
        monkeypatch.setattr(opened, "_container", SimpleNamespace(decode=lambda _: iter([large])))
        [frame] = opened.frames()
        with pytest.raises(BadRecording, match="512 MiB of memory"):
            frame.picture()


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("messages", "timestamp", "NULL", "a message has time None"),
        ("messages", "timestamp", "1.5", r"a message has time 1\.5"),
        ("messages", "timestamp", "9e999", "a message has time inf"),
        ("topics", "name", "x'ff00'", r"a topic has name b'\\xff\\x00'"),
        ("topics", "name", "9e999", "a topic has name inf"),
    ],
)
def test_a_cell_of_another_type(tmp_path: Path, table: str, column: str, value: str, said: str) -> None:
    bag = write_bag(tmp_path / "a.db3", [row for row in drive_rows(4) if "image" in row[1]])
    set_cells(bag, table, column, value)
    with pytest.raises(BadRecording, match=rf"a\.db3 cannot be read: it is damaged \({said}"):
        extract_frames(bag, tmp_path / "out", FrameSpec(every=1))


def test_a_list_of_files_that_is_a_text(bag: Path) -> None:
    shutil.copy(bag, bag.parent / "a/a.db3")
    content = YAML(typ="safe").load(bag.parent / "a/metadata.yaml")
    content["rosbag2_bagfile_information"]["files"] = "a"
    (bag.parent / "a/metadata.yaml").write_text(json.dumps(content))
    with pytest.raises(BadRecording, match="cannot be read: it is damaged"):
        read(bag.parent / "a")


@pytest.mark.parametrize(("name", "odd"), [("drive #1.db3", "'#'"), ("what?.db3", r"'\?'"), ("a%20b.db3", "'%20'")])
def test_a_name_that_sqlite_misreads(bag: Path, name: str, odd: str) -> None:
    with pytest.raises(BadRecording, match=rf"misreads {odd} in a path; rename the file"):
        read(bag.rename(bag.with_name(name)))
    assert read((bag.with_name(name)).rename(bag.with_name("100%.db3"))) == 4


def test_an_mcap_file_of_another_name_is_checked(tmp_path: Path) -> None:
    from tests.faults.files.test_bombs import mcap, zeros

    write_bag(tmp_path / "a.mcap", drive_rows(4))
    text = (tmp_path / "a/metadata.yaml").read_text()
    (tmp_path / "a/metadata.yaml").write_text(text.replace("a.mcap", "a.bin"))
    mcap(zeros(1), 2**33)(tmp_path / "a/a.bin")
    with pytest.raises(BadRecording, match=r"a\.bin has [\d,]+ bytes, but its chunks claim to expand"):
        read(tmp_path / "a")


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    for name in ("a.mcap", "a", "a.mp4"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(BadRecording, match="is neither a file nor a folder; pass a ROS 1 bag"):
            read(tmp_path / name)
    bag = write_bag(tmp_path / "bag/a.mcap", drive_rows(4))
    os.mkfifo(bag.with_name("pipe.mcap"))
    with pytest.raises(BadRecording, match=r"pipe\.mcap is neither a file nor a folder; remove it"):
        read(bag.parent)
    os.mkfifo(tmp_path / "metadata.yaml")
    assert not recording.is_recording(tmp_path)


def test_only_files_are_photos(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    os.mkfifo(tmp_path / "pipe.jpg")
    assert find_images(tmp_path) == [tmp_path / "a.jpg"]
    with pytest.raises(NoImages, match=r"pipe\.jpg is not a regular file"):
        find_images(tmp_path / "pipe.jpg")
    with pytest.raises(BadImage, match=r"pipe\.jpg cannot be opened: it is a pipe"):
        as_rgb(tmp_path / "pipe.jpg")

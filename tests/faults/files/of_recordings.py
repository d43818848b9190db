"""Bags of all three forms and their folders, and videos."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.faults.files.targets import Layer, Target, files_below
from tests.photos.recordings.made import IMAGES, START, Messages, drive_rows, jpeg, write_bag, write_video
from tfa.errors import BadImage
from tfa.photos.recordings.frames import format_frame_name, open_recording


def _list_cells(data: bytes) -> bytes:
    """Return the rows of each table of a database as JSON; bytes are texts of hexadecimal digits after `0x`."""
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        tables = {
            name: [
                ["0x" + cell.hex() if isinstance(cell, bytes) else cell for cell in row]
                for row in base.execute(f"SELECT * FROM {name}")
            ]
            for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        }
    return json.dumps(tables).encode()


def _make_cell(cell: Any) -> Any:
    if isinstance(cell, str):
        return bytes.fromhex(cell[2:]) if cell.startswith("0x") else b"\xff\0" if cell == "x" else cell
    too_large = isinstance(cell, int) and abs(cell) >= 2**63
    return float(cell) if too_large else json.dumps(cell) if isinstance(cell, list | dict) else cell


def _write_cells(changed: bytes, whole: bytes) -> bytes:
    """Return the database with these rows, in columns without types, so that SQLite keeps every value."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as base:
        base.deserialize(whole)
        try:
            for name, rows in json.loads(changed).items():
                columns = [row[1] for row in base.execute(f"PRAGMA table_info({name})")]
                base.execute(f"DROP TABLE {name}")
                base.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
                for row in rows:
                    cells = ", ".join("?" * len(columns))
                    base.execute(f"INSERT INTO {name} VALUES ({cells})", [_make_cell(cell) for cell in row])
            return base.serialize()
        except (ValueError, TypeError, AttributeError, OverflowError, sqlite3.Error):  # not rows any more
            return changed


CELLS = Layer(_list_cells, _write_cells)
METADATA = Layer(lambda data: json.dumps(YAML(typ="safe").load(data)).encode(), lambda changed, whole: changed)


def bags(name: str, folder: Path) -> Target:
    write_bag(folder / "a.bag", drive_rows(4, ros1=True))
    bare = [(START + number * 10**9, IMAGES, Messages().compressed(0, jpeg(number))) for number in range(4)]
    for file, rows in {"b.db3": bare, "c.mcap": drive_rows(4), "d.db3": drive_rows(4)}.items():
        shutil.copy(write_bag(folder / file, rows), folder / file)
    metadata = YAML(typ="safe").load(folder / "c/metadata.yaml")
    metadata["rosbag2_bagfile_information"]["files"] = []
    (folder / "c/metadata.yaml").write_text(json.dumps(metadata))
    files = files_below(folder, "*.*", "*/*.yaml")
    layers = {"b.db3": CELLS, "d.db3": CELLS} | {file: METADATA for file in files if file.endswith(".yaml")}
    return Target(name, files, _read, layers)


def videos(name: str, folder: Path) -> Target:
    for file in ("a.mp4", "b.mkv"):
        write_video(folder / file, frames=6)
    return Target(name, files_below(folder, "*.*"), _read)


def _read(folder: Path, victim: str, changed: bool) -> None:
    path = folder / victim
    with open_recording(path.parent if path.suffix == ".yaml" else path) as recording:
        json.dumps(recording.facts())
        for frame in itertools.islice(recording.frames(), 100):
            format_frame_name(frame.time_ns)
            with contextlib.suppress(BadImage):
                assert frame.picture().to_bytes()

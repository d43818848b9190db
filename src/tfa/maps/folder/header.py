"""The header of a map, `map.json`, and whether the files it names are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfa.base.files import sha256_of_file, sha256_of_json
from tfa.base.reading import read_json
from tfa.errors import BadMap

HEADER = "map.json"
FORMAT = "tfa-place-map"
VERSION = 2
AS_THEY_ARE = (
    "revision",
    "encoder",
    "spec",
    "head_kind",
    "active",
    "next_id",
)  # fields of a state that the header holds so


def is_map(path: Path) -> bool:
    return (path / HEADER).is_file()


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a map, whole and of a version this release reads."""
    if not folder.exists():
        raise BadMap(f"there is no map at {folder}; build one with: tfa build PHOTOS --out {folder}", folder)
    if not is_map(folder):
        raise BadMap(f"{folder} is not a map: it has no {HEADER}", folder)
    try:
        header = read_json(folder / HEADER)
        kind, version = header["format"], header["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadMap(f"{folder / HEADER} is not a readable header ({error}); build the map again", folder) from None
    if kind != FORMAT:
        again = f"build it again: tfa build PHOTOS --out {folder} --force"
        raise BadMap(f"{folder} has the format {kind!r}, which no release reads (maps are {FORMAT!r}); {again}", folder)
    if version != VERSION:
        older = isinstance(version, int) and version < VERSION
        remedy = f"build it again: tfa build PHOTOS --out {folder} --force" if older else "use a newer tfa-vpr"
        raise BadMap(f"{folder} has format version {version}, this release reads {VERSION}; {remedy}", folder)
    digest = header.pop("digest", None)
    if digest != sha256_of_json(header):
        raise BadMap(f"{folder / HEADER} was edited or damaged: its digest does not match; build the map again", folder)
    return header


def check_file(file: Path, entry: dict[str, Any], checksum: bool) -> None:
    """Is a file the one that the header names? `checksum` compares its sha256 too."""
    if file.name != entry["name"] or not file.is_file():
        raise BadMap(f"{file.parent} is incomplete: {entry['name']} is missing; build the map again", file.parent)
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise BadMap(
            f"{file} is truncated or changed: {size} bytes, must be {entry['bytes']}; build the map again", file.parent
        )
    if checksum and sha256_of_file(file) != entry["sha256"]:
        raise BadMap(f"{file} was changed since the map was written (sha256 differs); build the map again", file.parent)

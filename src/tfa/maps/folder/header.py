"""The header of a map, `map.json`, and whether the files it names are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfa.core.files import hash_file, hash_json
from tfa.core.json_shape import BadShape
from tfa.core.reading import read_json
from tfa.core.text import format_command
from tfa.errors import BadMap
from tfa.maps.folder.schema import FORMAT_VERSION, REDUCED_VERSION, check_header
from tfa.maps.state import MapState

HEADER_FILE = "map.json"
MAP_FORMAT = "tfa-place-map"
AS_THEY_ARE = (
    "revision",
    "encoder",
    "spec",
    "head_kind",
    "active",
    "next_id",
)  # fields of a state that the header holds so


def choose_format_version(state: MapState) -> int:
    """The format version that a map is written in."""
    return FORMAT_VERSION if state.head.reduced is None else REDUCED_VERSION


def is_map(path: Path) -> bool:
    return (path / HEADER_FILE).is_file()


def _again(folder: Path) -> str:
    return "build it again: " + format_command("tfa", "build", "PHOTOS", "--out", folder, "--force")


def read_map_header(folder: Path) -> dict[str, Any]:
    """The header of a map, whole and of a version this release reads, with its digest."""
    if not folder.exists():
        raise BadMap(
            f"there is no map at {folder}; build one with: {format_command('tfa', 'build', 'PHOTOS', '--out', folder)}",
            folder,
        )
    if not is_map(folder):
        raise BadMap(f"{folder} is not a map: it has no {HEADER_FILE}", folder)
    _refuse_link(folder / HEADER_FILE)
    try:
        header = read_json(folder / HEADER_FILE)
        kind, version = header["format"], header["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMap(
            f"{folder / HEADER_FILE} is not a readable header ({error}); build the map again", folder
        ) from None
    if kind != MAP_FORMAT:
        again = _again(folder)
        raise BadMap(
            f"{folder} has the format {kind!r}, which no release reads (maps are {MAP_FORMAT!r}); {again}", folder
        )
    if version not in (FORMAT_VERSION, REDUCED_VERSION):
        older = isinstance(version, int) and version < FORMAT_VERSION
        remedy = _again(folder) if older else "use a newer tfa-vpr"
        raise BadMap(
            f"{folder} has format version {version}, this release reads {FORMAT_VERSION} and "
            f"{REDUCED_VERSION}; {remedy}",
            folder,
        )
    try:
        sound = header.get("digest") == compute_digest(header)
    except (ValueError, RecursionError):  # not even JSON that we would write
        sound = False
    if not sound:
        raise BadMap(
            f"{folder / HEADER_FILE} was edited or damaged: its digest does not match; build the map again", folder
        )
    try:
        check_header(header)
    except BadShape as error:
        raise BadMap(f"{folder / HEADER_FILE} makes no sense: {error}; build the map again", folder) from None
    return header


def _refuse_link(file: Path) -> None:
    """A map is what lies in its folder: a link that leads out of it could make a map show what nobody put there."""
    if file.is_symlink() and file.resolve().parent != file.parent.resolve():
        raise BadMap(f"{file} is a link that leads out of the map; put the file itself there", file.parent)


def compute_digest(header: dict[str, Any]) -> str:
    """What a state of a map is known by; a revision's number comes again where a map is removed and built anew."""
    return hash_json({key: value for key, value in header.items() if key != "digest"})


def check_file(file: Path, entry: dict[str, Any], checksum: bool) -> None:
    """Is a file the one that the header names? `checksum` compares its sha256 too."""
    _refuse_link(file)
    if file.name != entry["name"] or not file.is_file():
        raise BadMap(f"{file.parent} is incomplete: {entry['name']} is missing; build the map again", file.parent)
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise BadMap(
            f"{file} is truncated or changed: {size} bytes, must be {entry['bytes']}; build the map again", file.parent
        )
    if checksum and hash_file(file) != entry["sha256"]:
        raise BadMap(f"{file} was changed since the map was written (sha256 differs); build the map again", file.parent)

"""A map read from its folder: every file checked against the header that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import BadFile, map_tensors
from tfa.core.reading import read_json
from tfa.errors import BadMap, BadPositions
from tfa.maps.folder.consistency import check_records, check_state
from tfa.maps.folder.header import AS_THEY_ARE, check_file, read_map_header
from tfa.maps.folder.photo_paths import resolve_path, resolve_photo_root
from tfa.maps.state import MapState, NamedHead
from tfa.maps.stored_head import StoredHead
from tfa.maps.stored_space import StoredSpaces
from tfa.types import ImageRecord, Position
from tfa.verification.patches import CompactTokens

_ATTEMPTS = 20  # headers read while other processes edit the map


def read_map(folder: Path, *, checksum: bool = False) -> MapState:
    """A map with its arrays memory-mapped. `checksum` compares every file with its sha256.

    What is missing may have been replaced by an edit since the header was read. If the header has changed, the map
    is read again.
    """
    header = read_map_header(folder)
    for attempt in range(_ATTEMPTS):
        try:
            return _read(folder, header, checksum)
        except (BadMap, OSError):
            again = read_map_header(folder)
            if again == header or attempt == _ATTEMPTS - 1:
                raise
            header = again
    raise AssertionError


def _parse_record(values: dict[str, Any], path: str) -> ImageRecord:
    """Read an image; its values were checked (`consistency.RECORD`), so that many are read fast."""
    position = None if values["position"] is None else Position.from_dict(values["position"])
    return ImageRecord(**{**values, "path": path, "position": position})


def _read(folder: Path, header: dict[str, Any], checksum: bool) -> MapState:
    for entry in header["files"]:
        check_file(folder / entry["name"], entry, checksum)
    try:
        spaces = _read_spaces(folder, header)
        heads = []
        for entry in header["heads"]:
            [own] = _tensors(folder, header, "head", entry["name"])
            rows = _tensors(folder, header, "gallery", entry["name"])
            stored = StoredHead.from_tensors(entry["layout"], own, rows, spaces)
            heads.append(NamedHead.from_dict(entry, stored))
        here = str(folder.resolve())
        root = resolve_photo_root(header["photos"], here)
        images = [
            _parse_record(record, resolve_path(record["path"], root, here)) for record in _read_records(folder, header)
        ]
        state = MapState(
            **{key: header[key] for key in AS_THEY_ARE},
            heads=tuple(heads),
            images=images,
            removed=frozenset(header["removed"]),
            segments=tuple(header["segments"]),
            files=tuple(header["files"]),
            compact=_read_compact(folder, header),
            vocabularies=_read_vocabularies(folder, header),
            spaces=spaces,
            photo_root=root,
            digest=header["digest"],
        )
        check_state(state)
    except (BadFile, BadPositions, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise BadMap(f"{folder} is damaged ({error}); build it again", folder) from None
    return state


def _read_records(folder: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """What the image lists say, one segment after the other."""
    records: list[dict[str, Any]] = []
    names = [entry["name"] for entry in header["files"] if entry["role"] == "images"]
    for name, rows in zip(names, header["segments"], strict=True):
        fresh = read_json(folder / name, (folder / name).stat().st_size)
        check_records(fresh, name, rows)
        records += fresh
    return records


def _tensors(folder: Path, header: dict[str, Any], role: str, head: str | None = None) -> list[dict[str, np.ndarray]]:
    """The arrays of every file of that role, of the head of that name or of none, in the order of the header."""
    names = [entry["name"] for entry in header["files"] if (entry["role"], entry["head"]) == (role, head)]
    return [map_tensors(folder / name)[0] for name in names]


def _read_vocabularies(folder: Path, header: dict[str, Any]) -> np.ndarray | None:
    """The words, if the map has some."""
    files = _tensors(folder, header, "vocabularies")
    if not files:
        return None
    [vocabularies] = files
    centers = vocabularies["centers"]
    if centers.ndim != 3:
        raise ValueError(f"vocabularies have shape {centers.shape}, must be constructions × words × channels")
    return centers


def _read_spaces(folder: Path, header: dict[str, Any]) -> StoredSpaces | None:
    """The second-order spaces, if the map has some."""
    if header["space"] is None:
        return None
    [space] = _tensors(folder, header, "space")
    return StoredSpaces.from_tensors(header["space"], space, _tensors(folder, header, "coordinates"))


def _read_compact(folder: Path, header: dict[str, Any]) -> CompactTokens | None:
    """The compact tokens, if the map has them."""
    if header["verification"] is None:
        return None
    [compaction] = _tensors(folder, header, "compaction")
    return CompactTokens.from_tensors(header["verification"], compaction, _tensors(folder, header, "tokens"))

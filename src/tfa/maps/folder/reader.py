"""Read a map folder, and check that its files match each other, so that a bad shape does not fail at a query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import BadFile, map_tensors, read_json
from tfa.core.plain import BadShape, from_plain
from tfa.errors import BadMap, BadPositions
from tfa.maps.folder.format import AS_THEY_ARE, OLD_HEAD_KIND, check_file, open_map_folder, read_map_header
from tfa.maps.state import MapState, NamedHead, resolve_path, resolve_photo_root
from tfa.maps.stored_head import StoredHead, StoredSpaces
from tfa.method.scorer import GLOBAL, ResidualSide
from tfa.method.second_order import descriptor_width
from tfa.types import ImageRecord
from tfa.verification.patches import CompactTokens

# --- consistency ----------------------------------------------------------------------------------


def check_state(state: MapState) -> None:
    """Check that the arrays of a state match each other. Raises BadShape."""
    images, channels = len(state.images), state.head.scorer.sides[0].channels
    _check_ids(state.images, state.next_id)
    if state.compact is not None:
        _same("compact tokens", len(state.compact), images)
        depths = 1 if state.spaces is None else state.spaces.depths
        _same("channels of the compaction", len(state.compact.compaction.mean), channels // depths)
    if state.spaces is not None:
        for place, space in enumerate(state.spaces.spaces):
            _same(f"coordinates of space {place}", len(space), images)
            _same(f"channels of space {place}", space.side.channels, channels)
            size = descriptor_width(space.side.patch_directions.shape[-2]) * space.side.depths
            _same(f"width of space {place}", space.side.width, size)
    if state.vocabularies is not None:
        _same("channels of the vocabularies", state.vocabularies.shape[2], channels)
    for head in state.heads:
        _check_head(head, images, channels)


def _check_ids(images: Sequence[ImageRecord], next_id: int) -> None:
    ids = [record.id for record in images]
    if ids != sorted({*ids}) or any(one >= next_id for one in ids):
        raise BadShape(f"image ids are repeated, out of order, or not below next_id, {next_id}")
    fitted = [record.fitted for record in images]
    if fitted != sorted(fitted, reverse=True):
        raise BadShape("images that the head was fitted on do not come first")


def _check_head(head: NamedHead, images: int, channels: int) -> None:
    scorer = head.stored.scorer
    _same(f"biases of head {head.name}", scorer.bias.shape, (images,))
    reduced = head.stored.reduced
    if reduced is not None:
        _same(f"reduced rows of head {head.name}", len(reduced), images)
        _same(f"width of the reduction of head {head.name}", reduced.reduction.width, sum(scorer.rows.widths))
    for index, term in enumerate(scorer.terms):
        where = f"head {head.name}, term {index}"
        _same(f"rows of {where}", len(term.gallery), images)
        if term.side == GLOBAL:
            continue
        side = scorer.sides[term.side]
        _same(f"channels of {where}", side.channels, channels)
        if isinstance(side, ResidualSide):
            _same(f"width of {where}", term.gallery.width, side.width if term.gamma is None else len(side.eigenvalues))


def _same(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise BadShape(f"{what}: {actual}, must be {expected}")


# --- reader ---------------------------------------------------------------------------------------

MOST_SUMMED = 128_000_000  # bytes of a file above which only --checksum compares it


def read_map(folder: Path, *, checksum: bool = False) -> MapState:
    """Read a map with memory-mapped arrays; `checksum` compares the sha256 of every file.

    An edit may replace files after the header was read, or another folder may take the map's place, with files of equal
    names and sizes. If the header or the folder has changed, the map is read again.
    """
    while True:
        with open_map_folder(folder) as opened:
            header = read_map_header(folder)
            try:
                state = _read(folder, header, checksum)
            except (BadMap, OSError):
                if opened.is_there() and read_map_header(folder) == header:
                    raise
            else:
                if opened.is_there():  # edits of a folder never use a file name twice
                    return state


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
        images = _read_records(folder, header)
        for record in images:  # in place: copying frozen records would double the time to read them
            object.__setattr__(record, "path", resolve_path(record.path, root, here))
        kind = "second-order" if header["head_kind"] == OLD_HEAD_KIND else str(header["head_kind"])
        state = MapState(
            **{**{key: header[key] for key in AS_THEY_ARE}, "head_kind": kind},
            heads=tuple(heads), images=images, removed=frozenset(header["removed"]),
            segments=tuple(header["segments"]), files=tuple(header["files"]), compact=_read_compact(folder, header),
            vocabularies=_read_vocabularies(folder, header), spaces=spaces, photo_root=root, digest=header["digest"],
        )  # fmt: skip
        check_state(state)
        for entry in header["files"]:  # patches have a checksum per image
            if "crc32" in entry and entry["role"] != "tokens" and entry["bytes"] <= MOST_SUMMED:
                state.unchecked[entry["name"]] = np.memmap(folder / entry["name"], np.uint8, "r")
    except (BadFile, BadPositions, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise BadMap(f"{folder} is damaged ({error}); build it again", folder) from None
    return state


def _read_records(folder: Path, header: dict[str, Any]) -> list[ImageRecord]:
    """Read the image lists of all segments."""
    records: list[ImageRecord] = []
    names = [entry["name"] for entry in header["files"] if entry["role"] == "images"]
    for name, rows in zip(names, header["segments"], strict=True):
        fresh: list[ImageRecord] = from_plain(
            list[ImageRecord], read_json(folder / name, (folder / name).stat().st_size), name
        )
        if len(fresh) != rows or any(one.image_url or one.last_confirmed for one in fresh):
            raise BadShape(f"{name} has {len(fresh)} images, its segment {rows}, or fields that only a service adds")
        records += fresh
    return records


def _tensors(folder: Path, header: dict[str, Any], role: str, head: str | None = None) -> list[dict[str, np.ndarray]]:
    """Map the arrays of every file of a role and head, in the order of the header."""
    names = [entry["name"] for entry in header["files"] if (entry["role"], entry["head"]) == (role, head)]
    return [map_tensors(folder / name)[0] for name in names]


def _read_vocabularies(folder: Path, header: dict[str, Any]) -> np.ndarray | None:
    files = _tensors(folder, header, "vocabularies")
    if not files:
        return None
    [vocabularies] = files
    centers = vocabularies["centers"]
    if centers.ndim != 3:
        raise ValueError(f"vocabularies have shape {centers.shape}, must be (constructions, words, channels)")
    return centers


def _read_spaces(folder: Path, header: dict[str, Any]) -> StoredSpaces | None:
    if header["space"] is None:
        return None
    [space] = _tensors(folder, header, "space")
    return StoredSpaces.from_tensors(header["space"], space, _tensors(folder, header, "coordinates"))


def _read_compact(folder: Path, header: dict[str, Any]) -> CompactTokens | None:
    if header["verification"] is None:
        return None
    [compaction] = _tensors(folder, header, "compaction")
    return CompactTokens.from_tensors(header["verification"], compaction, _tensors(folder, header, "tokens"))

"""The folder `NAME.tfa`: a JSON header that names every other file with its size and sha256.

The header is replaced last and in one step, so a reader sees the map before an edit or after it, never
between. Files carry the revision that wrote them; they are deleted one commit after the last header that names them.
docs/format.md describes it byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfa.base.files import sha256_of_file, sha256_of_json, sync_folder, write_json, write_tensors
from tfa.errors import BadMap
from tfa.maps.folder.header import AS_THEY_ARE, FORMAT, HEADER, VERSION, is_map, read_header
from tfa.maps.folder.photo_paths import photo_facts, stored_path
from tfa.maps.state import DATABASE, MapState
from tfa.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows: edits there are checked by revision only
    fcntl = None  # type: ignore[assignment]


MAX_SEGMENTS = 16  # with more, an addition also joins what was added before into one file
OURS = re.compile(
    r"\.?((head|gallery|images|tokens|compaction|vocabularies|space|coordinates)-([A-Za-z0-9_-]+-)?r\d+|map\.json)\."
)  # names of files we may delete


def write_new(path: Path, state: MapState, *, overwrite: bool) -> MapState:
    """Write a whole map: a new one beside `path` and then renamed there, a new revision over an old one."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise BadMap(f"{path} exists; choose another name, or overwrite it on purpose", path)
    if path.exists() and not is_map(path):
        raise BadMap(f"{path} exists and is not a map; it is not overwritten", path)
    if path.exists():
        with editing(path):
            return write_all(path, replace(state, revision=_last_revision(path) + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        written = write_all(folder, state)
        os.chmod(folder, 0o755)  # mkdtemp makes folders private; a map may be shared
        os.replace(folder, path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return written


def _last_revision(folder: Path) -> int:
    """From the names of the files, so that a damaged map can be overwritten too."""
    tags = [re.search(r"-r(\d+)\.", file.name) for file in folder.iterdir()]
    return max((int(tag[1]) for tag in tags if tag), default=0)


@contextlib.contextmanager
def editing(folder: Path, revision: int | None = None) -> Iterator[None]:
    """Hold the map for an edit of `revision`. Whoever holds or has changed it already is not overwritten."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)  # closing gives the lock back, and so does the end of the process
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadMap(
                    f"{folder} is being edited by another process; try again when it is done", folder
                ) from None
        if revision is not None and int(read_header(folder)["revision"]) != revision:
            raise BadMap(f"{folder} was changed by another process since it was loaded; load it again", folder)
        yield


def write_all(folder: Path, state: MapState) -> MapState:
    """Every head with one gallery file, images, and what it has of words, spaces, compact tokens; then the header."""
    files = [_tensors(folder, state, "head", head.stored.head_tensors(), head.name) for head in state.heads]
    if state.vocabularies is not None:
        files.append(_tensors(folder, state, "vocabularies", {"centers": state.vocabularies}))
    if state.spaces is not None:
        files.append(_tensors(folder, state, "space", state.spaces.space_tensors()))
    if state.compact is not None:
        files.append(_tensors(folder, state, "compaction", state.compact.compaction_tensors()))
    files += _segment(folder, state, 0)
    return commit(folder, replace(state, files=tuple(files), segments=(len(state.images),)))


def write_addition(folder: Path, state: MapState) -> MapState:
    """A file per head, and of compact tokens, for the rows that are in no file yet; the rest is not touched."""
    files, segments = state.files, state.segments
    if len(segments) >= MAX_SEGMENTS:  # keep the heads and the first segment, join the additions
        first: dict[tuple[str, str | None], dict[str, Any]] = {}
        for entry in files:
            first.setdefault((entry["role"], entry["head"]), entry)
        files, segments = tuple(first.values()), segments[:1]
    first_row = sum(segments)
    files = (*files, *_segment(folder, state, first_row))
    return commit(folder, replace(state, files=files, segments=(*segments, len(state.images) - first_row)))


def write_calibration(folder: Path, state: MapState) -> MapState:
    """The files of the newest head, its rows in the segments there are; the rest of the map is not touched."""
    head, start = state.heads[-1], 0
    files = [entry for entry in state.files if entry["head"] != head.name]
    files.append(_tensors(folder, state, "head", head.stored.head_tensors(), head.name))
    for number, rows in enumerate(state.segments):
        tensors, suffix = head.stored.gallery_tensors(start, start + rows), f"-{number}" if number else ""
        files.append(_tensors(folder, state, "gallery", tensors, head.name, suffix))
        start += rows
    return commit(folder, replace(state, files=tuple(files)))


def _segment(folder: Path, state: MapState, first_row: int) -> list[dict[str, Any]]:
    """Image records, every head's gallery rows, coordinates and compact tokens from `first_row` on."""
    records, rows = folder / f"images-r{state.revision:06d}.json", len(state.images)
    here = str(folder.resolve())
    paths = [stored_path(record.path, state.photo_root, here) for record in state.images[first_row:]]
    fresh = zip(state.images[first_row:], paths, strict=True)
    write_json(records, [{**record.to_dict(), "path": path} for record, path in fresh])
    files = [
        _tensors(folder, state, "gallery", head.stored.gallery_tensors(first_row, rows), head.name)
        for head in state.heads
    ]
    if state.spaces is not None:
        files.append(_tensors(folder, state, "coordinates", state.spaces.coordinate_tensors(first_row, rows)))
    if state.compact is not None:
        files.append(_tensors(folder, state, "tokens", state.compact.patch_tensors(first_row, rows)))
    return [*files, _entry(records, "images", None)]


def _tensors(
    folder: Path, state: MapState, role: str, tensors: dict[str, Any], head: str | None = None, suffix: str = ""
) -> dict[str, Any]:
    """Write a file of tensors, of the head of that name or of none; its entry in the header."""
    name = "" if head in (None, DATABASE) else f"{head}{suffix}-"
    path = folder / f"{role}-{name}r{state.revision:06d}.safetensors"
    write_tensors(path, tensors, {"format": FORMAT, "role": role})
    return _entry(path, role, head)


def _entry(path: Path, role: str, head: str | None) -> dict[str, Any]:
    size, digest = path.stat().st_size, sha256_of_file(path)
    return {"name": path.name, "role": role, "head": head, "bytes": size, "sha256": digest}


def commit(folder: Path, state: MapState) -> MapState:
    """Make the state of `folder` this one: replace the header, then delete what neither it nor the one before names.

    A reader that has the header before still finds its files.
    """
    kept = {HEADER, *_files_before(folder), *(entry["name"] for entry in state.files)}
    header = {
        "format": FORMAT,
        "format_version": VERSION,
        "tfa_version": __version__,
        **{key: getattr(state, key) for key in AS_THEY_ARE},
        "photos": photo_facts(state.photo_root, str(folder.resolve())),
        "space": None if state.spaces is None else state.spaces.to_dict(),
        "verification": None if state.compact is None else state.compact.to_dict(),
        "heads": [head.to_dict() for head in state.heads],
        "segments": list(state.segments),
        "removed": sorted(state.removed),
        "files": list(state.files),
    }
    write_json(folder / HEADER, {**header, "digest": sha256_of_json(header)})
    for file in folder.iterdir():  # older revisions, and what a killed writer left
        if file.name not in kept and OURS.match(file.name):
            file.unlink(missing_ok=True)
    return state


def _files_before(folder: Path) -> list[str]:
    """The files of the header that is about to be replaced; none if there is none, or a damaged one."""
    try:
        return [entry["name"] for entry in read_header(folder)["files"]]
    except BadMap:
        return []

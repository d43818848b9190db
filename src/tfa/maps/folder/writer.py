"""The folder `NAME.tfa`: a JSON header that names every other file with its size and sha256.

The header is replaced last and in one step, so a reader sees the map before an edit or after it, never
between. Files carry the revision that wrote them; they are deleted one commit after the last header that names them.
docs/format.md describes it byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfa.base.files import make_folder, saying_what_ran_out, sha256_of_file, synced, write_json, write_tensors
from tfa.base.held import OwnFolder
from tfa.errors import BadMap
from tfa.maps.folder.header import AS_THEY_ARE, FORMAT, HEADER, digest_of, is_map, read_header, version_of
from tfa.maps.folder.litter import last_revision, remove_beside, remove_others, remove_unborn
from tfa.maps.folder.photo_paths import photo_facts, stored_path
from tfa.maps.state import DATABASE, MapState
from tfa.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows: edits there are checked by the digest only
    fcntl = None  # type: ignore[assignment]


MAX_SEGMENTS = 16  # with more, an addition also joins what was added before into one file


def write_new(path: Path, state: MapState, *, overwrite: bool) -> MapState:
    """Write a whole map: a new one beside `path` and then renamed there, a new revision over an old one."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise _exists(path)
    if path.exists() and not is_map(path):
        raise BadMap(f"{path} exists and is not a map; it is not overwritten", path)
    if path.exists():
        with editing(path):
            return write_all(path, replace(state, revision=last_revision(path) + 1))
    with saying_what_ran_out(path):
        make_folder(path.parent)
        remove_beside(path)
        folder = OwnFolder(path.parent, f".{path.name}.")
        try:
            written = write_all(folder.path, state)
            os.chmod(folder.path, 0o755)  # mkdtemp makes folders private; a map may be shared
            with synced(path.parent):
                _rename_folder(folder.path, path)
        except BaseException:
            folder.remove()
            raise
        folder.close()
    return written


def _exists(path: Path) -> BadMap:
    return BadMap(f"{path} exists; choose another name, or overwrite it on purpose", path)


def _rename_folder(folder: Path, path: Path) -> None:
    try:
        os.replace(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # somebody else was faster
            raise _exists(path) from None
        raise


@contextlib.contextmanager
def editing(folder: Path, digest: str | None = None) -> Iterator[None]:
    """Hold the map for an edit of the state with that `digest`; None takes whatever is there.

    Whoever holds or has changed the map already is not overwritten. What an edit wrote that then fails is deleted.
    """
    with contextlib.ExitStack() as stack, saying_what_ran_out(folder):
        if fcntl is not None:
            handle = _opened(folder)
            stack.callback(os.close, handle)  # closing gives the lock back, and so does the end of the process
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadMap(
                    f"{folder} is being edited by another process; try again when it is done", folder
                ) from None
        if digest is not None and read_header(folder)["digest"] != digest:
            raise BadMap(f"{folder} was changed by another process since it was loaded; load it again", folder)
        try:
            yield
        except BaseException:
            if fcntl is not None:  # else another edit may be under way
                _remove_failed(folder)
            raise


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise BadMap(f"there is no map at {folder} any more; build it again", folder) from None


def _remove_failed(folder: Path) -> None:
    with contextlib.suppress(BadMap, OSError):
        remove_unborn(folder, int(read_header(folder)["revision"]))


def numbered(folder: Path, state: MapState) -> MapState:
    """The state with a revision beyond everything on disk; that of its own unless an edit was given up."""
    return replace(state, revision=max(state.revision, last_revision(folder) + 1))


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
    head, start = state.heads[-1].made_in(state.revision), 0
    files = [entry for entry in state.files if entry["head"] != head.name]
    files.append(_tensors(folder, state, "head", head.stored.head_tensors(), head.name))
    for number, rows in enumerate(state.segments):
        tensors, suffix = head.stored.gallery_tensors(start, start + rows), f"-{number}" if number else ""
        files.append(_tensors(folder, state, "gallery", tensors, head.name, suffix))
        start += rows
    return commit(folder, replace(state, heads=(*state.heads[:-1], head), files=tuple(files)))


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
        "format_version": version_of(state),
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
    digest = digest_of(header)
    write_json(folder / HEADER, {**header, "digest": digest})
    remove_others(folder, kept)
    return replace(state, digest=digest)


def _files_before(folder: Path) -> list[str]:
    """The files of the header that is about to be replaced; none if there is none, or a damaged one."""
    try:
        return [entry["name"] for entry in read_header(folder)["files"]]
    except BadMap:
        return []

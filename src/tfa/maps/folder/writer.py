"""Write a map folder: each edit in one atomic step; remove files that no revision uses.

What edits leave in and beside a map: files of older revisions, of revisions that were never born, of killed writers.

Names are ours by their pattern. Inside a map whoever tidies holds its lock, so no edit is under way; beside it, folders
are held by those who write them.

The folder `NAME.tfa`: a JSON header that names every other file with its size and sha256.

The header is replaced last and in one step, so a reader sees the map before an edit or after it, never
between. Files carry the revision that wrote them; they are deleted one commit after the last header that names them.
docs/reference/map-format.md describes it byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any

from tfa.core.files import (
    LockedFolder,
    OpenFolder,
    WrittenFile,
    explain_disk_errors,
    make_folder,
    tidy,
    write_json,
    write_tensors,
)
from tfa.errors import BadMap
from tfa.maps.folder.format import (
    AS_THEY_ARE,
    HEADER_FILE,
    MAP_FORMAT,
    choose_format_version,
    compute_digest,
    is_map,
    read_map_header,
)
from tfa.maps.state import DATABASE, MapState, describe_photo_folder, shorten_path
from tfa.types import ImageRecord
from tfa.version import __version__

# --- cleanup --------------------------------------------------------------------------------------

MAP_FILE_NAME = re.compile(
    r"\.?((head|gallery|images|tokens|compaction|vocabularies|space|coordinates)-([A-Za-z0-9_-]+-)?r(?P<revision>\d+)"
    r"|map\.json)\."
)  # names of files we may delete


def find_last_revision(folder: OpenFolder) -> int:
    """The highest revision of the header and of any file, so that no number comes twice.

    From names and from a header that may be damaged, so that a damaged map can be overwritten too.
    """
    named = [MAP_FILE_NAME.match(name) for name in folder.names()]
    numbers = [int(one["revision"]) for one in named if one and one["revision"]]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        numbers.append(int(json.loads(folder.read(HEADER_FILE))["revision"]))
    return max(numbers, default=0)


def list_current_files(folder: OpenFolder) -> list[str]:
    """The files of the header that is about to be replaced; none if there is none, or a damaged one."""
    try:
        return [str(entry["name"]) for entry in json.loads(folder.read(HEADER_FILE))["files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def remove_others(folder: OpenFolder, keep: Collection[str]) -> None:
    """Delete older revisions, and what a killed writer left. The edit is done: what cannot be deleted now stays."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            if name not in keep and MAP_FILE_NAME.match(name):
                with contextlib.suppress(OSError):
                    folder.remove(name)


def remove_failed_edit(folder: OpenFolder, revision: int) -> None:
    """Delete what an edit wrote that then failed: files beyond the header's `revision`, and temporary ones."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            named = MAP_FILE_NAME.match(name)
            if named and (name.startswith(".") or int(named["revision"] or 0) > revision):
                with contextlib.suppress(OSError):
                    folder.remove(name)


def remove_beside(path: Path) -> None:
    """Delete folders beside the map `path` that a save was writing when it was killed."""
    tidy(
        path.parent,
        f".{escape(path.name)}.*",
        lambda name: name == HEADER_FILE or MAP_FILE_NAME.match(name) is not None,
    )


# --- writer ---------------------------------------------------------------------------------------

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
        with hold_for_edit(path) as held:
            return write_all(held, replace(state, revision=find_last_revision(held) + 1))
    with explain_disk_errors(path):
        make_folder(path.parent)
        remove_beside(path)
        own = LockedFolder(path.parent, f".{path.name}.")
        try:
            with OpenFolder(own.path) as folder, OpenFolder(path.parent) as parent:
                written = write_all(folder, state)
                os.chmod(own.path, 0o755)  # mkdtemp makes folders private; a map may be shared
                _rename_folder(own.path, path)
                parent.sync()
        except BaseException:
            own.remove()
            raise
        own.close()
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
def hold_for_edit(path: Path, digest: str | None = None) -> Iterator[OpenFolder]:
    """Hold the map for an edit of the state with that `digest`; None takes whatever is there.

    Whoever holds or has changed the map already is not overwritten. What an edit wrote that then fails is deleted.
    Everything lands in the folder that is held, or nowhere: a map that is put in its place meanwhile is not touched.
    """
    with explain_disk_errors(path), _opened(path) as folder:
        _lock(folder)
        if digest is not None and read_map_header(path)["digest"] != digest:
            raise BadMap(f"{path} was changed by another process since it was loaded; load it again", path)
        try:
            _check_there(folder)  # and therefore was, when its header was read
            yield folder
            _check_there(folder)
        except BaseException as error:
            if fcntl is not None:  # else another edit may be under way
                _remove_failed(folder)
            if isinstance(error, FileNotFoundError):
                _check_there(folder)
            raise


def _opened(path: Path) -> OpenFolder:
    try:
        return OpenFolder(path)
    except FileNotFoundError:
        raise BadMap(f"there is no map at {path} any more; build it again", path) from None


def _lock(folder: OpenFolder) -> None:
    """Until it is closed, as it is when the process ends too."""
    if fcntl is None:
        return
    if folder.handle is None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder.path))
    try:
        fcntl.flock(folder.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadMap(
            f"{folder.path} is being edited by another process; try again when it is done", folder.path
        ) from None


def _check_there(folder: OpenFolder) -> None:
    if not folder.is_there():
        raise BadMap(
            f"{folder.path} was changed by another process, which moved, removed or replaced it; load it again",
            folder.path,
        ) from None


def _remove_failed(folder: OpenFolder) -> None:
    with contextlib.suppress(BadMap, OSError):
        revision = int(read_map_header(folder.path)["revision"])
        _check_there(folder)
        remove_failed_edit(folder, revision)


def number_revision(folder: OpenFolder, state: MapState) -> MapState:
    """The state with a revision beyond everything on disk; that of its own unless an edit was given up."""
    return replace(state, revision=max(state.revision, find_last_revision(folder) + 1))


def write_all(folder: OpenFolder, state: MapState) -> MapState:
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


def write_addition(folder: OpenFolder, state: MapState) -> MapState:
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


def write_calibration(folder: OpenFolder, state: MapState) -> MapState:
    """The files of the newest head, its rows in the segments there are; the rest of the map is not touched."""
    head, start = state.heads[-1].made_in(state.revision), 0
    files = [entry for entry in state.files if entry["head"] != head.name]
    files.append(_tensors(folder, state, "head", head.stored.head_tensors(), head.name))
    for number, rows in enumerate(state.segments):
        tensors, suffix = head.stored.gallery_tensors(start, start + rows), f"-{number}" if number else ""
        files.append(_tensors(folder, state, "gallery", tensors, head.name, suffix))
        start += rows
    return commit(folder, replace(state, heads=(*state.heads[:-1], head), files=tuple(files)))


def _segment(folder: OpenFolder, state: MapState, first_row: int) -> list[dict[str, Any]]:
    """Image records, every head's gallery rows, coordinates and compact tokens from `first_row` on."""
    records, rows = folder.path / f"images-r{state.revision:06d}.json", len(state.images)
    here = str(folder.path.resolve())
    written = write_json(records, [_record(one, state.photo_root, here) for one in state.images[first_row:]], folder)
    files = [
        _tensors(folder, state, "gallery", head.stored.gallery_tensors(first_row, rows), head.name)
        for head in state.heads
    ]
    if state.spaces is not None:
        files.append(_tensors(folder, state, "coordinates", state.spaces.coordinate_tensors(first_row, rows)))
    if state.compact is not None:
        files.append(_tensors(folder, state, "tokens", state.compact.patch_tensors(first_row, rows)))
    return [*files, _entry(records, written, "images", None)]


def _record(image: ImageRecord, root: str | None, here: str) -> dict[str, Any]:
    """An image in the list; one that belongs to no session says nothing of it."""
    position = None if image.position is None else image.position.to_dict()
    values = {
        "id": image.id, "path": shorten_path(image.path, root, here), "digest": image.digest, "fitted": image.fitted,
        "position": position,
    }  # fmt: skip
    return values if image.session is None else {**values, "session": image.session}


def _tensors(
    folder: OpenFolder, state: MapState, role: str, tensors: dict[str, Any], head: str | None = None, suffix: str = ""
) -> dict[str, Any]:
    """Write a file of tensors, of the head of that name or of none; its entry in the header."""
    name = "" if head in (None, DATABASE) else f"{head}{suffix}-"
    path = folder.path / f"{role}-{name}r{state.revision:06d}.safetensors"
    return _entry(path, write_tensors(path, tensors, {"format": MAP_FORMAT, "role": role}, folder), role, head)


def _entry(path: Path, written: WrittenFile, role: str, head: str | None) -> dict[str, Any]:
    return {"name": path.name, "role": role, "head": head, "bytes": written.bytes, "sha256": written.sha256}


def commit(folder: OpenFolder, state: MapState) -> MapState:
    """Make the state of `folder` this one: replace the header, then delete what neither it nor the one before names.

    A reader that has the header before still finds its files.
    """
    kept = {HEADER_FILE, *list_current_files(folder), *(entry["name"] for entry in state.files)}
    header = {
        "format": MAP_FORMAT,
        "format_version": choose_format_version(state),
        "tfa_version": __version__,
        **{key: getattr(state, key) for key in AS_THEY_ARE},
        "photos": describe_photo_folder(state.photo_root, str(folder.path.resolve())),
        "space": None if state.spaces is None else state.spaces.to_dict(),
        "verification": None if state.compact is None else state.compact.to_dict(),
        "heads": [head.to_dict() for head in state.heads],
        "segments": list(state.segments),
        "removed": sorted(state.removed),
        "files": list(state.files),
    }
    digest = compute_digest(header)
    write_json(folder.path / HEADER_FILE, {**header, "digest": digest}, folder)
    remove_others(folder, kept)
    return replace(state, digest=digest)

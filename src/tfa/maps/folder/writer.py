"""Write a map folder, each edit in one atomic step, and remove files of old revisions, failed edits and killed writers.

A JSON header lists every other file with its size and sha256. It is replaced last and atomically, so a reader sees the
map before or after an edit. File names contain the revision that wrote them; files are deleted one commit after the
last header that lists them. docs/reference/map-format.md specifies the format.

Only files whose names match a pattern are deleted: inside a map while its lock is held, next to it only folders that no
writer locks.
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
    UMASK,
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
    open_map_folder,
    read_map_header,
)
from tfa.maps.state import DATABASE, MapState, describe_photo_folder, shorten_path
from tfa.types import ImageRecord
from tfa.version import __version__

# --- cleanup --------------------------------------------------------------------------------------

MAP_FILE_NAME = re.compile(
    r"\.?((head|gallery|images|tokens|compaction|vocabularies|space|coordinates)-([A-Za-z0-9_-]+-)?r(?P<revision>\d+)"
    r"|map\.json)\."
)  # names of files that may be deleted


def find_last_revision(folder: OpenFolder) -> int:
    """Return the highest revision of the header and of any file name. Works for damaged maps, too."""
    named = [MAP_FILE_NAME.match(name) for name in folder.names()]
    numbers = [int(one["revision"]) for one in named if one and one["revision"]]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        numbers.append(int(json.loads(folder.read(HEADER_FILE))["revision"]))
    return max(numbers, default=0)


def list_current_files(folder: OpenFolder) -> list[str]:
    """Return the files of the current header; empty if it is missing or damaged."""
    try:
        return [str(entry["name"]) for entry in json.loads(folder.read(HEADER_FILE))["files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def remove_files(folder: OpenFolder, *, keep: Collection[str] = (), after: int = -1) -> None:
    """Delete temporary map files, and others that are not in `keep` and belong to a revision above `after`.

    Errors are ignored: the edit is done or has failed already.
    """
    with contextlib.suppress(OSError):
        for name in folder.names():
            named = MAP_FILE_NAME.match(name)
            if named and name not in keep and (name.startswith(".") or int(named["revision"] or 0) > after):
                with contextlib.suppress(OSError):
                    folder.remove(name)


def remove_beside(path: Path) -> None:
    """Delete unfinished folders of killed saves next to the map `path`."""
    tidy(
        path.parent,
        f".{escape(path.name)}.*",
        lambda name: name == HEADER_FILE or MAP_FILE_NAME.match(name) is not None,
    )


# --- writer ---------------------------------------------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows: only the digest detects concurrent edits
    fcntl = None  # type: ignore[assignment]


MAX_SEGMENTS = 16  # above this, an addition joins all earlier additions into one file


def write_new(path: Path, state: MapState, *, overwrite: bool) -> MapState:
    """Write a whole map: a new folder that is renamed to `path`, or a new revision of an existing map."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise _exists(path)
    if path.exists() and not is_map(path):
        raise BadMap(f"{path} exists and is not a map; choose another name", path)
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
                os.chmod(own.path, 0o777 & ~UMASK)  # mkdtemp makes private folders; maps may be shared
                _rename_folder(own.path, path)
                parent.sync()
        except BaseException:
            own.remove()
            raise
        own.close()
    return written


def _exists(path: Path) -> BadMap:
    return BadMap(f"{path} exists; choose another name, or overwrite it (--force, overwrite=True)", path)


def _rename_folder(folder: Path, path: Path) -> None:
    try:
        os.replace(folder, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):  # another process created it
            raise _exists(path) from None
        raise


@contextlib.contextmanager
def hold_for_edit(path: Path, digest: str | None = None) -> Iterator[OpenFolder]:
    """Lock the map for an edit of the state with that `digest`; None accepts any state.

    Raises BadMap if another process locks or has changed the map. Files of a failed edit are deleted. Files are only
    written to the locked folder, never to a map that replaces it at the same path.
    """
    with explain_disk_errors(path), open_map_folder(path) as folder:
        _lock(folder)
        if digest is not None and read_map_header(path)["digest"] != digest:
            raise BadMap(f"{path} was changed by another process since it was loaded; load it again", path)
        try:
            _check_there(folder)  # so it was there when its header was read
            yield folder
            _check_there(folder)
        except BaseException as error:
            if fcntl is not None:  # without locks, another edit may be in progress
                _remove_failed(folder)
            if isinstance(error, FileNotFoundError):
                _check_there(folder)
            raise


def _lock(folder: OpenFolder) -> None:
    """Lock the folder until it is closed or the process exits."""
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
            f"{folder.path} was moved, removed or replaced by another process; load it again", folder.path
        ) from None


def _remove_failed(folder: OpenFolder) -> None:
    with contextlib.suppress(BadMap, OSError):
        revision = int(read_map_header(folder.path)["revision"])
        _check_there(folder)
        remove_files(folder, after=revision)


def number_revision(folder: OpenFolder, state: MapState) -> MapState:
    """Raise the revision of a state above every revision on disk, which failed edits can leave."""
    return replace(state, revision=max(state.revision, find_last_revision(folder) + 1))


def write_all(folder: OpenFolder, state: MapState) -> MapState:
    """Write all files of a map, then the header. Removed additions are dropped."""
    state = state.without_removed(0)
    heads = [state.checked(head.name) for head in state.heads]
    files = [_tensors(folder, state, "head", head.stored.head_tensors(), head.name) for head in heads]
    if state.vocabularies is not None:
        files.append(_tensors(folder, state, "vocabularies", {"centers": state.vocabularies}))
    if state.spaces is not None:
        files.append(_tensors(folder, state, "space", state.spaces.space_tensors()))
    if state.compact is not None:
        files.append(_tensors(folder, state, "compaction", state.compact.compaction_tensors()))
    files += _segment(folder, state, 0)
    return commit(folder, replace(state, files=tuple(files), segments=(len(state.images),)))


def write_addition(folder: OpenFolder, state: MapState) -> MapState:
    """Write the rows that are in no file yet as a new segment, then the header."""
    files, segments = state.files, state.segments
    if len(segments) >= MAX_SEGMENTS:  # keep the first segment, join the additions, and drop what was removed from them
        state = state.without_removed(segments[0])
        first: dict[tuple[str, str | None], dict[str, Any]] = {}
        for entry in files:
            first.setdefault((entry["role"], entry["head"]), entry)
        files, segments = tuple(first.values()), segments[:1]
    first_row = sum(segments)
    files = (*files, *_segment(folder, state, first_row))
    return commit(folder, replace(state, files=files, segments=(*segments, len(state.images) - first_row)))


def write_calibration(folder: OpenFolder, state: MapState) -> MapState:
    """Write the files of the newest head, with its rows in the existing segments, then the header."""
    head, start = state.heads[-1].made_in(state.revision), 0
    files = [entry for entry in state.files if entry["head"] != head.name]
    files.append(_tensors(folder, state, "head", head.stored.head_tensors(), head.name))
    for number, rows in enumerate(state.segments):
        tensors, suffix = head.stored.gallery_tensors(start, start + rows), f"-{number}" if number else ""
        files.append(_tensors(folder, state, "gallery", tensors, head.name, suffix))
        start += rows
    return commit(folder, replace(state, heads=(*state.heads[:-1], head), files=tuple(files)))


def _segment(folder: OpenFolder, state: MapState, first_row: int) -> list[dict[str, Any]]:
    """Write image records, gallery rows, coordinates and compact tokens from `first_row` on."""
    records, rows = folder.path / f"images-r{state.revision:06d}.json", len(state.images)
    here = str(folder.path.resolve())
    written = write_json(records, [_record(one, state.photo_root, here) for one in state.images[first_row:]], folder)
    files = [
        _tensors(folder, state, "gallery", head.stored.gallery_tensors(first_row, rows), head.name)
        for head in [state.checked(one.name) for one in state.heads]
    ]
    if state.spaces is not None:
        files.append(_tensors(folder, state, "coordinates", state.spaces.coordinate_tensors(first_row, rows)))
    if state.compact is not None:
        files.append(_tensors(folder, state, "tokens", state.compact.patch_tensors(first_row, rows)))
    return [*files, _entry(records, written, "images", None)]


def _record(image: ImageRecord, root: str | None, here: str) -> dict[str, Any]:
    """Return an image's entry in the list; without a session the key is left out."""
    position = None if image.position is None else image.position.to_dict()
    values = {
        "id": image.id, "path": shorten_path(image.path, root, here), "digest": image.digest, "fitted": image.fitted,
        "position": position,
    }  # fmt: skip
    return values if image.session is None else {**values, "session": image.session}


def _tensors(
    folder: OpenFolder, state: MapState, role: str, tensors: dict[str, Any], head: str | None = None, suffix: str = ""
) -> dict[str, Any]:
    """Write a file of tensors and return its header entry."""
    name = "" if head in (None, DATABASE) else f"{head}{suffix}-"
    path = folder.path / f"{role}-{name}r{state.revision:06d}.safetensors"
    return _entry(path, write_tensors(path, tensors, {"format": MAP_FORMAT, "role": role}, folder), role, head)


def _entry(path: Path, written: WrittenFile, role: str, head: str | None) -> dict[str, Any]:
    return {"name": path.name, "role": role, "head": head, **vars(written)}


def commit(folder: OpenFolder, state: MapState) -> MapState:
    """Replace the header, then delete files that neither it nor the previous header lists, for readers of that one."""
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
    remove_files(folder, keep=kept)
    return replace(state, digest=digest)

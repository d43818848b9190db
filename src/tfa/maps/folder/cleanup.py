"""What edits leave in and beside a map: files of older revisions, of revisions that were never born, of killed writers.

Names are ours by their pattern. Inside a map whoever tidies holds its lock, so no edit is under way; beside it, folders
are held by those who write them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection
from glob import escape
from pathlib import Path

from tfa.core.files import OpenFolder, tidy
from tfa.maps.folder.header import HEADER_FILE

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

"""Where a map's photos lie, written so that a map may be moved or copied together with them.

In memory a record has an absolute path. On disk it is relative to the photo folder of the map, or to the map itself
("map:photos/…", for uploads); a photo from anywhere else keeps its absolute path.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_IN_MAP = "map:"


def find_common_folder(paths: Sequence[str]) -> str | None:
    """The deepest folder that all photos lie in; None if they share none below the top of the file system."""
    try:
        folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # no photo, or photos on two drives
        return None
    return folder if os.path.dirname(folder) != folder else None


def shorten_path(path: str, root: str | None, folder: str) -> str:
    """A photo's path as the files of the map at `folder` name it."""
    if path.startswith(folder + os.sep):
        return _IN_MAP + Path(path).relative_to(folder).as_posix()
    if root is not None and path.startswith(root + os.sep):
        inside = path[len(root) + 1 :]
        return path if inside.startswith(_IN_MAP) else Path(inside).as_posix()
    return path


def resolve_path(path: str, root: str | None, folder: str) -> str:
    """The inverse."""
    if path.startswith(_IN_MAP):
        return os.path.join(folder, path[len(_IN_MAP) :])
    return path if root is None else os.path.join(root, path)


def describe_photo_folder(root: str | None, folder: str) -> dict[str, Any]:
    """What the header says of the photo folder: where it is, and how to get there from the map."""
    try:
        way = None if root is None else Path(os.path.relpath(root, folder)).as_posix()
    except ValueError:  # on another drive
        way = None
    return {"root": root, "from_map": way}


def resolve_photo_root(facts: dict[str, Any], folder: str) -> str | None:
    """The photo folder: where it was, or if that is gone, where it was as seen from the map."""
    root, way = facts["root"], facts["from_map"]
    if root is None or way is None or os.path.isdir(root):
        return root
    beside = os.path.normpath(os.path.join(folder, way))
    return beside if os.path.isdir(beside) else root

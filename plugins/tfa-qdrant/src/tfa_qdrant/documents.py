"""Documents as files in a folder that one process uses at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from urllib.parse import quote, unquote

from tfa.core.files import hold, sync_folder, write_atomically
from tfa.errors import StoreConflict

_ENDING = ".document"


class HeldFolder:
    """A lock on a folder, which the system releases when the process ends."""

    def __init__(self, folder: Path) -> None:
        path = folder / "held"
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not hold(self._handle):
            holder = os.pread(self._handle, 100, 0).decode("ascii", "replace").strip() or "another process"
            os.close(self._handle)
            raise StoreConflict(
                f"{folder} is in use by {holder}, and only one process can use it; stop that process, use the map "
                "through `tfa serve`, or use a store with a server (milvus://, postgres://)",
                folder,
            )
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.ftruncate(self._handle, 0)
        os.close(self._handle)


class FolderDocuments:
    """One file per document, written atomically. Keys are paths; each part gets an underscore as prefix."""

    def __init__(self, folder: Path, lock: threading.RLock) -> None:
        self._folder, self._lock = folder, lock

    def _path(self, key: str) -> Path:
        *folders, last = (f"_{quote(part, safe=' ', errors='surrogateescape')}" for part in key.split("/"))
        return self._folder.joinpath(*folders, last + _ENDING)

    def read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            write_atomically(self._path(key), lambda temporary: temporary.write_bytes(data))

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        with self._lock:
            if self.read(key) != old:
                return False
            self.put(key, new)
            return True

    def keys(self, prefix: str = "") -> list[str]:
        found = []
        for path in self._folder.rglob(f"_*{_ENDING}"):
            parts = path.relative_to(self._folder).as_posix().removesuffix(_ENDING).split("/")
            found.append("/".join(unquote(part[1:], errors="surrogateescape") for part in parts))
        return sorted(key for key in found if key.startswith(prefix))

    def erase(self, key: str) -> None:
        path = self._path(key)
        with self._lock:
            if path.exists():
                path.unlink()
                sync_folder(path.parent)

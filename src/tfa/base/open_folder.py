"""A folder by its handle: what is written lands in that very folder, also if another one took its name meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class OpenFolder:
    """Open until it is closed. Where folders cannot be opened, as on Windows, `handle` is None and its path is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle: int | None = None
        with contextlib.suppress(PermissionError):
            self.handle = os.open(path, os.O_RDONLY)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def is_there(self) -> bool:
        """Does the path still lead to this folder?"""
        if self.handle is None:
            return self.path.is_dir()
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self) -> list[str]:
        return os.listdir(self.path if self.handle is None else self.handle)

    def read(self, name: str) -> bytes:
        with self._naming():
            handle = os.open(self._place(name), os.O_RDONLY, dir_fd=self.handle)
        with open(handle, "rb") as file:
            return file.read()

    def temporary(self, name: str) -> tuple[int, str]:
        """A new private file, open for writing, and the name that it has until it is renamed to `name`."""
        hidden = f".{name}.{secrets.token_hex(6)}.tmp"
        with self._naming():
            return os.open(self._place(hidden), _CREATE, 0o600, dir_fd=self.handle), hidden

    def rename(self, old: str, new: str) -> None:
        """Also over a file of the new name."""
        with self._naming():
            os.replace(self._place(old), self._place(new), src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def chmod(self, name: str, mode: int) -> None:
        with self._naming():
            os.chmod(self._place(name), mode, dir_fd=self.handle)

    def remove(self, name: str) -> None:
        with self._naming():
            os.unlink(self._place(name), dir_fd=self.handle)

    def sync(self) -> None:
        """Make what was renamed here survive a power cut."""
        if self.handle is not None:
            try:
                os.fsync(self.handle)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that syncs no folders
                    raise

    def _place(self, name: str) -> str:
        return name if self.handle is not None else str(self.path / name)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors of the system name a file as it was given; make that a path."""
        try:
            yield
        except OSError as error:
            for key in ("filename", "filename2"):
                if isinstance(getattr(error, key), str):
                    setattr(error, key, str(self.path / getattr(error, key)))
            raise

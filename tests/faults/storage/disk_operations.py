"""Every operation by which storage changes the disk, interposed: counted, failed, ended by a kill, or written down.

Storage writes through `tfa.core.files` and `open_folder` alone: `open` in the first, and functions of `os`. Reading
passes untouched.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfa.core import files

CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
Watcher = Callable[[str, Path, Any], None]  # what happens, to which path, with what (bytes, another path)


class _Watched:
    """A file whose writes are told, and can be cut in the middle."""

    def __init__(self, file: Any, path: Path, watch: Watcher) -> None:
        self._file, self._path, self._watch = file, path, watch

    def write(self, content: Any) -> int:
        content = bytes(content)
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._watch("write", self._path, content[:half])  # a kill here leaves a torn file
        self._file.write(content[half:])
        self._file.flush()
        self._watch("write", self._path, content[half:])
        return len(content)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *given: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def watched(watch: Watcher, before: Watcher | None = None) -> Iterator[None]:
    """Tell `watch` of each operation after it happened, `before` of each that is about to."""
    opened: dict[int, Path] = {}
    real_open, real_os_open, tell = open, os.open, before or (lambda *_: None)

    def full(path: Any, folder: int | None) -> Path:
        """A path as it was given, or as a name in an open folder, or as an open file itself."""
        if isinstance(path, int):
            return opened.get(path, Path("?"))
        return Path(path) if folder is None else opened.get(folder, Path("?")) / path

    def open_file(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wxa+"):
            return real_open(path, mode, *more, **named)
        where = full(path, None)
        tell("open", where, mode)
        file = real_open(path, mode, *more, **named)
        opened[file.fileno()] = where
        if "w" in mode and not isinstance(path, int):
            watch("truncate", where, None)
        return _Watched(file, where, watch)

    def open_handle(path: Any, flags: int, *more: Any, **named: Any) -> int:
        where = full(path, named.get("dir_fd"))
        tell("open", where, flags)
        handle = real_os_open(path, flags, *more, **named)
        opened[handle] = where
        if flags & CHANGING:
            watch("create", where, None)
        return handle

    def interposed(name: str) -> Any:
        real = getattr(os, name)

        def operation(target: Any, *more: Any, **named: Any) -> Any:
            path = full(target, named.get("src_dir_fd", named.get("dir_fd")))
            told = full(more[0], named.get("dst_dir_fd")) if name == "replace" else None
            tell(name, path, told)
            result = real(target, *more, **named)
            watch(name, path, told)
            return result

        return operation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "open", open_file, raising=False)
        patch.setattr(os, "open", open_handle)
        for name in ("replace", "fsync", "unlink", "mkdir", "chmod", "rmdir"):
            patch.setattr(os, name, interposed(name))
        yield


def count_of(edit: Callable[[], object]) -> int:
    """How many operations an edit takes."""
    operations: list[str] = []
    with watched(lambda name, *_: operations.append(name)):
        edit()
    return len(operations)


@contextlib.contextmanager
def killed_at(number: int) -> Iterator[None]:
    """End the process, as by kill -9, right after the operation of that number, counted from 0."""
    left = [number]

    def watch(*_: Any) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    with watched(watch):
        yield


@contextlib.contextmanager
def failing_at(number: int, error: OSError) -> Iterator[list[str]]:
    """Let the operation of that number fail, and all after it that take room; yields those that were tried."""
    tried: list[str] = []

    def refuse(name: str, path: Path, more: Any) -> None:
        tried.append(name)
        takes_room = name in ("open", "fsync", "mkdir", "replace")
        if len(tried) > number and takes_room and not (name == "open" and more == os.O_RDONLY):
            raise OSError(error.errno, error.strerror, str(path))

    with watched(lambda *_: None, refuse):
        yield tried

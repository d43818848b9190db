"""An emulated disk: states that a power cut can leave during an edit.

The model is that of POSIX, where a file system promises no more than it must. A file's content survives if it was
synced after it was written; otherwise it may be there, cut off, zeros, or absent. What a folder was told (a name made,
renamed, removed, of a file or of another folder) survives if the folder was synced after; otherwise each of these may
have reached the disk or not, in any order that keeps those of one name in turn. A rename is two of these: a disk may
have the new name, the old one, both or none.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DAMAGE = ("whole", "half", "zeros", "nothing")
ROOT = 0  # the inode of the folder in which everything happens
State = dict[Path, bytes | None]  # files, and folders without content
Names = dict[tuple[int, str], int]  # of a folder's inode and a name in it, the inode that it leads to


@dataclass
class Inode:
    """A file: what was written to it, and what of that was synced. Or a folder."""

    written: bytes = b""
    synced: bytes = b""
    safe: bool = False  # is all that was written synced?
    folder: bool = False


@dataclass(frozen=True)
class Entry:
    """What a folder was told: from now on `name` is that file or folder; None: there is no such name."""

    folder: int
    name: str
    inode: int | None


@dataclass
class Disk:
    """Operations as they come; `crashes` at any time tells what may be left."""

    root: Path
    inodes: dict[int, Inode] = field(default_factory=lambda: {ROOT: Inode(folder=True)})
    names: Names = field(default_factory=dict)  # as the running system sees them
    durable: Names = field(default_factory=dict)  # as the disk has them for sure
    pending: list[Entry] = field(default_factory=list)  # told, not synced

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """A disk that holds the files of a folder, all synced."""
        disk = cls(folder)
        for path in sorted(folder.rglob("*")):  # a folder before what lies in it
            content = path.read_bytes() if path.is_file() else b""
            parent = disk.found(path.parent)
            assert parent is not None
            number = disk._new(Inode(content, content, True, path.is_dir()))
            disk.names[parent, path.name] = disk.durable[parent, path.name] = number
        return disk

    def found(self, path: Path) -> int | None:
        """The inode that a path leads to, in the running system; None for what is elsewhere or nowhere."""
        if not path.is_relative_to(self.root):
            return None
        at: int | None = ROOT
        for part in path.relative_to(self.root).parts:
            at = None if at is None else self.names.get((at, part))
        return at

    def _new(self, inode: Inode) -> int:
        self.inodes[len(self.inodes)] = inode
        return len(self.inodes) - 1

    def _tell(self, path: Path, inode: int | None) -> None:
        folder = self.found(path.parent)
        if folder is not None:
            self.pending.append(Entry(folder, path.name, inode))
            self._apply(self.names, self.pending[-1])

    def watch(self, name: str, path: Path, more: Any) -> None:
        """One operation of `disk_operations.watched`."""
        number = self.found(path)
        if name in ("create", "truncate") and number is None:
            self._tell(path, self._new(Inode()))
        elif name == "mkdir":
            self._tell(path, self._new(Inode(folder=True)))
        elif number is None:
            return
        elif name == "truncate":
            self.inodes[number].written, self.inodes[number].safe = b"", False
        elif name == "write":
            self.inodes[number].written, self.inodes[number].safe = self.inodes[number].written + more, False
        elif name == "fsync" and not self.inodes[number].folder:
            self.inodes[number].synced, self.inodes[number].safe = self.inodes[number].written, True
        elif name == "fsync":
            for entry in [entry for entry in self.pending if entry.folder == number]:
                self._apply(self.durable, entry)
            self.pending = [entry for entry in self.pending if entry.folder != number]
        elif name == "replace":
            self._tell(path, None)
            self._tell(more, number)
        elif name in ("unlink", "rmdir"):
            self._tell(path, None)

    @staticmethod
    def _apply(names: Names, entry: Entry) -> None:
        if entry.inode is None:
            names.pop((entry.folder, entry.name), None)
        else:
            names[entry.folder, entry.name] = entry.inode

    def crashes(self, rng: random.Random, most: int) -> Iterator[State]:
        """Return the distinct states that a power cut can leave now, up to a maximum."""
        subsets = list(itertools.product((True, False), repeat=len(self.pending))) if len(self.pending) <= 6 else []
        choices = [(subset, damage) for subset in subsets for damage in DAMAGE]
        while len(choices) < most and len(self.pending) > 6:
            choices.append((tuple(rng.random() < 0.5 for _ in self.pending), rng.choice(DAMAGE)))
        rng.shuffle(choices)
        seen = set()
        for subset, damage in choices:
            names = dict(self.durable)
            for entry, reached in zip(self.pending, subset, strict=True):
                if reached:
                    self._apply(names, entry)
            state = dict(self._below(ROOT, self.root, names, damage))
            known = tuple(sorted((str(path), hash(content)) for path, content in state.items()))
            if known not in seen:
                seen.add(known)
                yield state
            if len(seen) == most:
                return

    def _below(self, folder: int, path: Path, names: Names, damage: str) -> Iterator[tuple[Path, bytes | None]]:
        for (parent, name), number in names.items():
            if parent == folder and self.inodes[number].folder:
                yield path / name, None
                yield from self._below(number, path / name, names, damage)
            elif parent == folder:
                yield path / name, self._left(self.inodes[number], damage)

    @staticmethod
    def _left(inode: Inode, damage: str) -> bytes:
        if inode.safe or damage == "whole":
            return inode.written
        if damage == "half":
            return inode.written[: len(inode.written) // 2]
        return bytes(len(inode.written)) if damage == "zeros" else inode.synced


def materialise(state: State, root: Path, into: Path) -> None:
    """Write such a state, of files below `root`, to another folder."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for path, content in state.items():
        target = into / path.relative_to(root)
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)

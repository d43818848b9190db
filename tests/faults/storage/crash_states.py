"""An emulated disk: what a power cut may leave of the operations of an edit.

The model is that of POSIX, where a file system promises no more than it must. A file's content survives if it was
synced after it was written; otherwise it may be there, cut off, zeros, or absent. What a folder was told (a name made,
renamed, removed) survives if the folder was synced after; otherwise each of these may have reached the disk or not, in
any order that keeps those of one name in turn.
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


@dataclass
class Inode:
    """A file: what was written to it, and what of that was synced."""

    written: bytes = b""
    synced: bytes = b""
    safe: bool = False  # is all that was written synced?


@dataclass(frozen=True)
class Entry:
    """What a folder was told: from now on `name` is that file; None: there is no such name."""

    folder: Path
    name: str
    inode: int | None


@dataclass
class Disk:
    """Operations as they come; `crashes` at any time tells what may be left."""

    root: Path
    inodes: dict[int, Inode] = field(default_factory=dict)
    names: dict[Path, int] = field(default_factory=dict)  # as the running system sees them
    durable: dict[Path, int] = field(default_factory=dict)  # as the disk has them for sure
    pending: list[Entry] = field(default_factory=list)  # told, not synced

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """A disk that holds the files of a folder, all synced."""
        disk = cls(folder)
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            disk.names[file] = disk.durable[file] = disk._new(Inode(content, content, True))
        return disk

    def _new(self, inode: Inode) -> int:
        self.inodes[len(self.inodes)] = inode
        return len(self.inodes) - 1

    def _tell(self, path: Path, inode: int | None) -> None:
        self.pending.append(Entry(path.parent, path.name, inode))
        if inode is None:
            self.names.pop(path, None)
        else:
            self.names[path] = inode

    def watch(self, name: str, path: Path, more: Any) -> None:
        """One operation of `disk_operations.watched`."""
        if name == "create" and path not in self.names:
            self._tell(path, self._new(Inode()))
        elif name == "truncate":
            if path not in self.names:
                self._tell(path, self._new(Inode()))
            inode = self.inodes[self.names[path]]
            inode.written, inode.safe = b"", False
        elif name == "write":
            inode = self.inodes[self.names[path]]
            inode.written, inode.safe = inode.written + more, False
        elif name == "fsync" and path in self.names:
            inode = self.inodes[self.names[path]]
            inode.synced, inode.safe = inode.written, True
        elif name == "fsync":
            for entry in [entry for entry in self.pending if entry.folder == path]:
                self._apply(self.durable, entry)
            self.pending = [entry for entry in self.pending if entry.folder != path]
        elif name == "replace":
            moved = self.names[path]
            self._tell(path, None)
            self._tell(more, moved)
        elif name == "unlink" and path in self.names:
            self._tell(path, None)

    @staticmethod
    def _apply(names: dict[Path, int], entry: Entry) -> None:
        if entry.inode is None:
            names.pop(entry.folder / entry.name, None)
        else:
            names[entry.folder / entry.name] = entry.inode

    def crashes(self, rng: random.Random, most: int) -> Iterator[dict[Path, bytes]]:
        """Different states that a power cut now may leave; at most so many."""
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
            state = {path: self._left(self.inodes[number], damage) for path, number in names.items()}
            known = tuple(sorted((str(path), hash(content)) for path, content in state.items()))
            if known not in seen:
                seen.add(known)
                yield state
            if len(seen) == most:
                return

    @staticmethod
    def _left(inode: Inode, damage: str) -> bytes:
        if inode.safe or damage == "whole":
            return inode.written
        if damage == "half":
            return inode.written[: len(inode.written) // 2]
        return bytes(len(inode.written)) if damage == "zeros" else inode.synced


def materialise(state: dict[Path, bytes], root: Path, into: Path) -> None:
    """Write such a state, of files below `root`, to another folder."""
    shutil.rmtree(into, ignore_errors=True)
    for path, content in state.items():
        target = into / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

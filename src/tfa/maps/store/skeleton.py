"""The skeleton of a map in a store: an ordinary small map of a sample of the images, file by file in documents.

It brings the query side and the decisions of every head, and what a calibration is judged on. It is read through the
ordinary reader, with its checks. Of compact tokens it has none: they stay where patches are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfa.errors import BadMap
from tfa.maps.folder import reader, writer
from tfa.maps.folder.header import HEADER
from tfa.maps.state import MapState, NamedHead
from tfa.maps.store.documents import needed
from tfa.search.store import Store

SAMPLE = 4096  # images of a skeleton at most
BLOCK = 16  # neighbouring photos of a sample: a place needs its neighbours to be judged


def sampled(count: int, limit: int = SAMPLE) -> np.ndarray:
    """Which of so many images are the sample: all, or blocks of neighbours evenly spaced over the list."""
    if count <= limit:
        return np.arange(count)
    blocks = limit // BLOCK
    starts = np.linspace(0, count - BLOCK, blocks).astype(np.int64)
    return (starts[:, None] + np.arange(BLOCK)).ravel()


def write_skeleton(folder: Path, state: MapState) -> None:
    """A map as `Publisher.finish` takes it: without its compact tokens."""
    writer.write_new(folder, replace(state, compact=None, revision=1), overwrite=False)


def put_skeleton(store: Store, prefix: str, folder: Path) -> None:
    """Every file of a map's folder as a document, the header last."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    if HEADER not in names:
        raise BadMap(f"{folder} is not a map: it has no {HEADER}", folder)
    for name in sorted(names, key=lambda name: name == HEADER):
        store.put(f"{prefix}{name}", (folder / name).read_bytes())


def read_skeleton(store: Store, prefix: str) -> MapState:
    """The skeleton in a state; its arrays lie in a temporary file that goes with them."""
    keys = store.keys(prefix)
    if f"{prefix}{HEADER}" not in keys:
        raise BadMap(f"{prefix}{HEADER} is missing in the store: the map is not whole; build it again")
    with tempfile.TemporaryDirectory(prefix="tfa-skeleton-", ignore_cleanup_errors=True) as place:
        folder = Path(place) / "skeleton.tfa"
        folder.mkdir()
        for key in keys:
            name = key.removeprefix(prefix)
            if Path(name).name == name:
                (folder / name).write_bytes(needed(store, key))
        return reader.read(folder)  # mapped files outlive their names


def second_order_only(heads: Sequence[NamedHead]) -> list[NamedHead]:
    """The heads that a map in a store can have: those made of the space's rows."""
    return [head for head in heads if head.stored.in_space]

"""What a layout finds in a folder: images in a fixed order and which of them show the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfa.errors import TfaError

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")


class BadDataset(TfaError):
    """A dataset's folder lacks something, or holds something else than its layout promises."""


@dataclass(frozen=True)
class DatasetFiles:
    """A dataset as its layout reads it. Positives are indices into `database`, sorted, maybe none."""

    database: tuple[Path, ...]
    queries: tuple[Path, ...]
    positives: tuple[np.ndarray, ...]  # int64, one array for each query
    conditions: Mapping[str, np.ndarray] = field(default_factory=dict)  # name → indices of its queries
    notes: tuple[str, ...] = ()  # what the user should know: "queries without positives: 3"


def images_in(folder: Path, *, deep: bool = False) -> tuple[Path, ...]:
    """Images of a folder in the order of their names (of their paths below it, if `deep`)."""
    if not folder.is_dir():
        raise BadDataset(f"{folder} is missing; this layout needs it")
    listed = folder.rglob("*") if deep else folder.iterdir()
    found = sorted((p for p in listed if p.suffix.lower() in IMAGES and p.is_file()), key=lambda p: p.as_posix())
    if not found:
        raise BadDataset(f"{folder} holds no image; images end in {' '.join(IMAGES)}")
    return tuple(found)


def same_labels(database: Sequence[str], queries: Sequence[str]) -> tuple[np.ndarray, ...]:
    """For each query the database images that carry its label."""
    where: dict[str, list[int]] = {}
    for index, label in enumerate(database):
        where.setdefault(label, []).append(index)
    return tuple(np.array(where.get(label, []), np.int64) for label in queries)

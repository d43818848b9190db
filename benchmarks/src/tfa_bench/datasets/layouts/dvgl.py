"""Images named `@utm_east@utm_north@…`, as in the Deep Visual Geo-localization Benchmark.

    images/<split>/database/@utm_east@utm_north@….jpg   (SVOX calls it gallery/)
    images/<split>/queries/@utm_east@utm_north@….jpg

Both folders may also be in `<split>/` or in the dataset's folder itself. Several query folders are conditions:
{"night": "queries_night", …}. A positive is at most `radius` meters away, inclusive. If names have no position,
`tolerance` matches frames whose numbers differ by at most `tolerance` (Nordland).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfa.evaluate.positives import within
from tfa.photos.positions import position_from_name
from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in, natural_order, same_frame

_GALLERIES = ("database", "gallery")


def load(
    root: Path,
    *,
    split: str = "test",
    radius: float = 25.0,
    conditions: Mapping[str, str] | None = None,
    tolerance: int | None = None,
) -> DatasetFiles:
    absent = missing(root, split=split, conditions=conditions)
    if absent:
        raise BadDataset(f"{root} lacks {', '.join(absent)}; this layout needs images/{split}/database and queries")
    base = _base(root, split)
    database = images_in(_gallery(base), deep=True)
    named = {name: images_in(base / folder, deep=True) for name, folder in _folders(conditions).items()}
    queries = tuple(path for paths in named.values() for path in paths)
    ends = np.cumsum([len(paths) for paths in named.values()])
    parts = {name: np.arange(end - len(paths), end) for (name, paths), end in zip(named.items(), ends, strict=True)}
    parts = parts if conditions else {}
    bare = not any(position_from_name(path.name) for path in (*database, *queries))
    if bare and tolerance is not None and not conditions:
        note = f"names have no position: a query matches frames with its number ± {tolerance}"
        database, queries = natural_order(database), natural_order(queries)
        return DatasetFiles(database, queries, same_frame(len(database), len(queries), tolerance), notes=(note,))
    return DatasetFiles(database, queries, within(_points(database), _points(queries), radius), parts)


def missing(root: Path, *, split: str = "test", conditions: Mapping[str, str] | None = None, **_: object) -> list[str]:
    """List missing folders; the other options of `load` do not matter."""
    base = _base(root, split)
    absent = [] if _gallery(base).is_dir() else [f"{_below(base, root)}database"]
    return absent + [
        f"{_below(base, root)}{name}" for name in _folders(conditions).values() if not (base / name).is_dir()
    ]


def _folders(conditions: Mapping[str, str] | None) -> Mapping[str, str]:
    return conditions or {"": "queries"}


def _base(root: Path, split: str) -> Path:
    """Return the folder with database and queries; `images/<split>` if none exists, for error messages."""
    places = (root / "images" / split, root / split, root)
    return next((place for place in places if _gallery(place).is_dir()), places[0])


def _gallery(base: Path) -> Path:
    return next((base / name for name in _GALLERIES if (base / name).is_dir()), base / _GALLERIES[0])


def _below(base: Path, root: Path) -> str:
    return "" if base == root else f"{base.relative_to(root).as_posix()}/"


def _points(paths: Sequence[Path]) -> np.ndarray:
    positions = [position_from_name(path.name) for path in paths]
    bare = [path for path, position in zip(paths, positions, strict=True) if position is None]
    if bare:
        raise BadDataset(
            f"{len(bare):,} of {len(paths):,} images are not named @utm_east@utm_north@… (first: {bare[0]}); "
            "format the dataset with its downloader, or provide positives.json with database/ and queries/"
        )
    return np.array([(position.x, position.y) for position in positions if position is not None], np.float64)

"""A dataset layout: `before/NAME.png` is a database image, `after/NAME.png` a query of the same place.

A folder in this layout has a `card.json` that names it; see docs/how-to/benchmark-your-data.md.
"""

from __future__ import annotations

from pathlib import Path

from tfa_bench.datasets.files import DatasetFiles, images_in, same_labels


def load(root: Path, *, before: str = "before", after: str = "after") -> DatasetFiles:
    database, queries = images_in(root / before), images_in(root / after)
    names = [path.stem for path in database], [path.stem for path in queries]
    return DatasetFiles(database, queries, same_labels(*names))


def missing(root: Path, *, before: str = "before", after: str = "after") -> list[str]:
    """Return the missing folders, which `tfa bench check` lists."""
    return [name for name in (before, after) if not (root / name).is_dir()]

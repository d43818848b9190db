"""Pairs of images under the same name in two folders, as AmsterTime has them.

    new/<name>.png     database
    old/<name>.jpg     queries

A query's positive is the database image with its name; the endings may differ.
"""

from __future__ import annotations

from pathlib import Path

from tfa_bench.datasets.files import BadDataset, DatasetFiles, images_in, same_labels


def load(root: Path, *, database: str = "new", queries: str = "old") -> DatasetFiles:
    known, query_images = images_in(root / database), images_in(root / queries)
    stems = [path.stem for path in known], [path.stem for path in query_images]
    for folder, names in ((database, stems[0]), (queries, stems[1])):
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise BadDataset(f"{root / folder} holds {twice} under two endings; keep one of them")
    alone = sorted(set(stems[1]) - set(stems[0]))
    if alone:
        raise BadDataset(
            f"{len(alone):,} images of {root / queries} have no partner of the same name in {root / database} "
            f"(first: {', '.join(alone[:3])})"
        )
    return DatasetFiles(known, query_images, same_labels(*stems))


def missing(root: Path, *, database: str = "new", queries: str = "old") -> list[str]:
    """What the folder lacks."""
    return [name for name in (database, queries) if not (root / name).is_dir()]

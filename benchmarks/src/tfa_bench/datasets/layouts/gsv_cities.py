"""A city of GSV-Cities. Images name their place; which of them are queries is for the user to say.

    Images/<City>/<City>_<place id>_<year>_<month>_<bearing>_<lat>_<lon>_<panorama>.jpg
    queries.txt        one image a line: these are the queries, all others are the database
    positives.json     or, in its place, {"query.jpg": ["database.jpg", …]}

With queries.txt a positive is an image of the same place id.
"""

from __future__ import annotations

from pathlib import Path

from tfa_bench.datasets.files import (
    BadDataset,
    DatasetFiles,
    by_name,
    images_in,
    listed_positives,
    read_positives,
    same_labels,
)
from tfa_bench.datasets.text_tables import lines_of

POSITIVES, QUERIES = "positives.json", "queries.txt"
TAKES_POSITIVES = True


def load(root: Path, *, city: str, positives: str = POSITIVES, queries: str = QUERIES) -> DatasetFiles:
    folder = root / "Images" / city
    images = images_in(folder)
    file = root / positives
    if file.is_file():
        database, query_images = _parted(images, list(read_positives(file)), folder, file)
        rows = listed_positives(file, by_name(database, folder), by_name(query_images, folder), len(query_images))
        return DatasetFiles(database, query_images, rows, notes=(f"queries and positives are those of {file.name}",))
    listed = root / queries
    if not listed.is_file():
        raise BadDataset(f"{root} holds neither {positives} nor {queries}; which images are queries is not published")
    names = [line.strip() for line in lines_of(listed) if line.strip()]
    database, query_images = _parted(images, names, folder, listed)
    rows = same_labels([place_of(path) for path in database], [place_of(path) for path in query_images])
    return DatasetFiles(database, query_images, rows, notes=(f"queries are those of {listed.name}",))


def missing(root: Path, *, city: str, positives: str = POSITIVES, queries: str = QUERIES) -> list[str]:
    """What the folder lacks."""
    absent = [] if (root / "Images" / city).is_dir() else [f"Images/{city}"]
    listed = any((root / name).is_file() for name in (positives, queries))
    return absent if listed else [*absent, f"{positives} or {queries}"]


def place_of(path: Path) -> str:
    """The second field of the name: the place within its city."""
    fields = path.stem.split("_")
    if len(fields) < 8 or not fields[1].isdecimal():
        raise BadDataset(f"{path} is not named <City>_<place id>_<year>_<month>_<bearing>_<lat>_<lon>_<panorama>")
    return fields[1]


def _parted(
    images: tuple[Path, ...], names: list[str], folder: Path, file: Path
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Database and queries: the images not listed and those listed."""
    known, wanted = by_name(images, folder), set(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadDataset(f"{file}: {len(unknown):,} names are not in {folder} (first: {', '.join(unknown[:3])})")
    queries = tuple(path for path in images if path.name in wanted)
    database = tuple(path for path in images if path.name not in wanted)
    if not queries or not database:
        raise BadDataset(f"{file} names {len(queries):,} of {len(images):,} images as queries; some must be, some not")
    return database, queries

"""UAV-VisLoc: drone photos with positions, and tiles that the user cuts from the satellite maps.

    NN/drone/NN_0001.JPG …   NN/NN.csv            filename (or num), lat, lon, …
    NN/tiles/*.png           NN/tiles/tiles.csv   file, lat, lon of the tile's center[, half_width in meters]

The paper's tiling and its coverage rule beyond 100 m are not public. Here a positive is a tile whose center is within
`radius` of the photo; `coverage` also requires that the tile shows the photo's position. Both rules, and one gallery
of all maps, are our choice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfa.evaluate.positives import earth_points, within
from tfa_bench.datasets.files import BadDataset, DatasetFiles, TextTable, bad_line, images_in, read_table, whole_number


def load(root: Path, *, maps: Sequence[str] = (), radius: float = 100.0, coverage: bool = False) -> DatasetFiles:
    """Match drone photos with the tiles of all maps; `maps` names the folders to use [default: all]."""
    queries: dict[Path, tuple[float, float]] = {}
    database: dict[Path, tuple[float, float]] = {}
    widths: list[float] = []
    notes = ["the paper's tiling and coverage rule are not public; these are your tiles and our rule"]
    for name in maps or _maps(root):
        photos, without = _photos(root / name)
        queries.update(photos)
        if without:
            notes.append(f"{name}: {without} photos have no row in {name}.csv and are left out")
        tiles, half_widths = _tiles(root / name / "tiles", coverage)
        database.update(tiles)
        widths.extend(half_widths)
    where, query_positions = np.array(list(database.values())), np.array(list(queries.values()))
    positives = within(earth_points(where), earth_points(query_positions), radius)
    if coverage:
        positives = _covering(positives, where, query_positions, np.array(widths))
        notes.append("positives also cover the photo's position with their half_width")
    return DatasetFiles(tuple(database), tuple(queries), positives, notes=tuple(notes))


def _maps(root: Path) -> list[str]:
    areas = sorted(drone.parent.name for drone in root.glob("*/drone") if drone.is_dir())
    if not areas:
        raise BadDataset(f"{root} has no folder NN/drone; unpack UAV-VisLoc there")
    return areas


def _photos(folder: Path) -> tuple[dict[Path, tuple[float, float]], int]:
    """Return drone photos of a map with positions, sorted by name, and the number without one."""
    images = images_in(folder / "drone")
    table = read_table(folder / f"{folder.name}.csv")
    named = table.optional("filename", "file", "name")
    counted = table.column("filename", "file", "name", "num") if named is None else named
    positions = {}
    for line, row in table.rows:
        stem = Path(row[counted]).stem
        number = whole_number(stem) if named is None else None
        if number is not None:
            stem = f"{folder.name}_{number:04d}"
        positions[stem.lower()] = _position(table, line, row)
    placed = {image: positions[image.stem.lower()] for image in images if image.stem.lower() in positions}
    if not placed:
        raise BadDataset(f"{table.path} names no photos of {folder / 'drone'}; its first row is {table.rows[0][1]}")
    return placed, len(images) - len(placed)


def _tiles(folder: Path, coverage: bool) -> tuple[dict[Path, tuple[float, float]], list[float]]:
    """Return tiles of a map with centers, sorted by name, and optionally their half widths in meters."""
    table = read_table(folder / "tiles.csv")
    file = table.column("file", "filename", "name")
    half = table.column("half_width", "half-width", "half_width_m") if coverage else None
    centres_and_widths = {}
    for line, row in table.rows:
        tile = folder / row[file]
        if not os.path.isfile(tile):  # False for names that no file system accepts
            raise bad_line(table.path, line, f"{row[file][:80]!r} is not a file in {folder}")
        if tile in centres_and_widths:
            raise bad_line(table.path, line, f"{row[file]!r} is listed twice; a tile has one center")
        centres_and_widths[tile] = (_position(table, line, row), 0.0 if half is None else table.number(line, row, half))
    ordered = sorted(centres_and_widths, key=lambda tile: tile.as_posix())
    return {tile: centres_and_widths[tile][0] for tile in ordered}, [centres_and_widths[tile][1] for tile in ordered]


def _position(table: TextTable, line: int, row: Sequence[str]) -> tuple[float, float]:
    lat = table.number(line, row, table.column("lat", "latitude"))
    lon = table.number(line, row, table.column("lon", "lng", "longitude"))
    if abs(lat) > 90 or abs(lon) > 180:
        raise bad_line(table.path, line, f"lat {lat:g}, lon {lon:g} is not a position on Earth; check the column order")
    return lat, lon


def _covering(
    positives: Sequence[np.ndarray], where: np.ndarray, query_positions: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Select the positives of each query whose north-up square contains the query's position."""
    points, kept = earth_points(where), []
    for close, position in zip(positives, query_positions, strict=True):
        offsets = (points[close] - earth_points(position[None])) @ east_and_north(position).T
        kept.append(close[np.abs(offsets).max(axis=1) <= widths[close]])
    return tuple(kept)


def east_and_north(degrees: np.ndarray) -> np.ndarray:
    """Return unit vectors `(2, 3)` to the east and to the north at one latitude and longitude."""
    lat, lon = np.radians(degrees)
    east = [-np.sin(lon), np.cos(lon), 0.0]
    north = [-np.sin(lat) * np.cos(lon), -np.sin(lat) * np.sin(lon), np.cos(lat)]
    return np.array([east, north])

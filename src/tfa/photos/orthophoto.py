"""Cut an orthophoto into tiles with known centers (rasterio, extra `geo`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.core.files import make_folder, write_atomically, write_text
from tfa.core.progress import Progress, as_progress
from tfa.errors import BadImage, BadSpec, MissingExtra
from tfa.types import POSITION_KINDS

LONGEST = 1024  # maximum side of a tile in pixels; encoders read fewer
LEAST_SHOWN = 0.5  # minimum fraction of a tile with data
TILE_POSITIONS = "positions.csv"
DEGREE = math.radians(1) * 6_371_000.0  # meters per degree of latitude


@dataclass(frozen=True)
class Tiles:
    """Result of cutting an orthophoto."""

    written: int
    left_out: int  # tiles with little or no data
    size: tuple[int, int]  # tile width and height in pixels of the orthophoto


def cut_tiles(
    file: Path, out: Path, size: float, step: float | None = None, progress: bool | Progress | None = None
) -> Tiles:
    """Write square tiles of `size` meters, one every `step` meters, and `positions.csv` with their centers.

    `out` must be new or empty. One tile is in memory at a time. The last tile of a row or column ends at the edge.
    """
    step = size if step is None else step
    if not (0 < step <= size < math.inf):
        raise BadSpec(
            f"tiles of {size:g} m every {step:g} m are not possible; --step must be above 0 and at most --size"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadSpec(f"{out} exists and is not empty; choose another --out")
    with _opened(file) as dataset:
        across, down = _measure_pixels(dataset, file)
        width, height = (max(round(size / one), 1) for one in (across, down))
        if width > dataset.width or height > dataset.height:
            covered = f"{dataset.width * across:,.0f} m by {dataset.height * down:,.0f} m"
            raise BadSpec(f"{file} covers {covered}, less than a tile of {size:g} m; use a smaller --size")
        columns = _starts(dataset.width, width, max(round(step / across), 1))
        rows = _starts(dataset.height, height, max(round(step / down), 1))
        make_folder(out)
        listed, left_out = [",".join(("file", *POSITION_KINDS[0]))], 0
        with as_progress(progress).task("cutting", len(rows) * len(columns), "tiles") as task:
            for top in rows:
                for left in columns:
                    tile = _tile(dataset, left, top, width, height)
                    if tile is None:
                        left_out += 1
                    else:
                        name = f"{file.stem}_{top:06d}_{left:06d}.jpg"
                        write_atomically(out / name, partial(tile.save, format="JPEG", quality=92))
                        lon, lat = _find_center(dataset, left + width / 2, top + height / 2)
                        quoted = name.replace('"', '""')
                        listed.append(f'"{quoted}",{lat:.8f},{lon:.8f}')
                    task.advance()
        if len(listed) == 1:
            raise BadImage(f"{file} has no data: every tile is empty (nodata)", file)
        write_text(out / TILE_POSITIONS, "\n".join(listed) + "\n")
    return Tiles(len(listed) - 1, left_out, (width, height))


def _starts(length: int, size: int, step: int) -> list[int]:
    """Return the starts of tiles; the last tile ends at the edge."""
    starts = list(range(0, length - size + 1, step))
    return starts if starts[-1] + size == length else [*starts, length - size]


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        import rasterio
        from rasterio.errors import RasterioIOError
    except ImportError:
        raise MissingExtra("orthophotos need rasterio; install with: pip install 'tfa-vpr[geo]'") from None
    try:
        with rasterio.open(file) as dataset:
            yield dataset
    except RasterioIOError as error:
        raise BadImage(f"{file} cannot be read: {error}; pass a GeoTIFF", file) from None


def _measure_pixels(dataset: Any, file: Path) -> tuple[float, float]:
    """Return width and height of a pixel in meters; raise BadImage if the file cannot be cut."""
    if dataset.crs is None or dataset.transform.is_identity:
        raise BadImage(f"{file} has no coordinate system; pass a georeferenced GeoTIFF", file)
    if dataset.transform.b or dataset.transform.d or dataset.transform.e >= 0:
        raise BadImage(f"{file} is not north up; rotate it first with: gdalwarp {file.name} north-up.tif", file)
    if set(dataset.dtypes[:3]) != {"uint8"}:
        kinds = ", ".join(sorted(set(dataset.dtypes)))
        raise BadImage(
            f"{file} has {kinds} pixels, must be uint8; convert it with: gdal_translate -ot Byte -scale", file
        )
    across, down = abs(dataset.transform.a), abs(dataset.transform.e)
    if dataset.crs.is_geographic:
        lat = dataset.transform.f + dataset.transform.e * dataset.height / 2
        return across * DEGREE * math.cos(math.radians(lat)), down * DEGREE
    unit = dataset.crs.linear_units_factor[1]
    return across * unit, down * unit


def _tile(dataset: Any, left: int, top: int, width: int, height: int) -> Image.Image | None:
    """Read a tile, downscaled to LONGEST pixels; None if it has too little data."""
    from rasterio.enums import Resampling
    from rasterio.windows import Window

    window, scale = Window(left, top, width, height), min(LONGEST / max(width, height), 1.0)
    shape = (max(round(height * scale), 1), max(round(width * scale), 1))
    shown = dataset.dataset_mask(window=window, out_shape=shape) > 0
    if shown.mean() < LEAST_SHOWN:
        return None
    bands = [1, 2, 3] if dataset.count >= 3 else [1, 1, 1]
    pixels = dataset.read(bands, window=window, out_shape=(3, *shape), resampling=Resampling.average)
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(pixels * shown, 0, -1)))


def _find_center(dataset: Any, column: float, row: float) -> tuple[float, float]:
    """Return longitude and latitude of a pixel."""
    from rasterio.warp import transform

    grid = dataset.transform  # north up: x depends only on the column, y on the row
    [lon], [lat] = transform(dataset.crs, "EPSG:4326", [grid.c + grid.a * column], [grid.f + grid.e * row])
    return lon, lat

"""Tiles of an orthophoto: content, positions, empty tiles and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tfa.errors import BadImage, BadSpec
from tfa.photos.orthophoto import cut_tiles
from tfa.photos.positions import read_positions_csv

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("rasterio.warp")


def ortho(path, crs="EPSG:32631", pixel=0.5, dtype="uint8", **more):
    """250 by 200 pixels whose red is the column and whose green is the row; the last 80 columns show nothing."""
    rows, columns = np.mgrid[:200, :250]
    pixels = np.stack([columns, rows, np.full_like(rows, 7)]).astype(dtype)
    pixels[:, :, 170:] = 0
    corner = rasterio.Affine(pixel, 0, 448_200.0, 0, -pixel, 5_412_000.0)
    profile = {"transform": corner, "crs": crs, "nodata": 0, **more}
    with rasterio.open(path, "w", driver="GTiff", width=250, height=200, count=3, dtype=dtype, **profile) as file:
        file.write(pixels)
    return path


def test_tiles_show_their_window_and_say_their_centre(tmp_path, run):
    ortho(tmp_path / "o.tif")
    out = tmp_path / "tiles"
    told = run("tiles", tmp_path / "o.tif", "--out", out, "--size", 40, "--step", 20, "--json")
    told = json.loads(told.stdout)
    # Across they begin at 0, 40, 80, 120, 160 and, at the edge, 170; the last two show nearly nothing.
    assert told == {"out": str(out), "tiles": 16, "left_out": 8, "pixels": {"across": 80, "down": 80}}
    assert len(list(out.iterdir())) == 17
    where = read_positions_csv(out / "positions.csv")
    [lon], [lat] = rasterio.warp.transform("EPSG:32631", "EPSG:4326", [448_200 + 40 + 20], [5_412_000 - 20 - 20])
    assert where["o_000040_000080.jpg"].pair == pytest.approx((lat, lon), abs=1e-7)
    pixels = np.asarray(Image.open(out / "o_000040_000080.jpg"), float)
    assert pixels[..., :2].mean(axis=(0, 1)) == pytest.approx((119.5, 79.5), abs=1.5)


def test_what_cannot_be_cut_is_refused(tmp_path):
    good = ortho(tmp_path / "o.tif")
    (tmp_path / "text.tif").write_text("no picture")
    turned = rasterio.Affine(0.5, 0.1, 0, 0.1, -0.5, 0)
    refused = [
        (tmp_path / "text.tif", BadImage, "pass a GeoTIFF"),
        (ortho(tmp_path / "turned.tif", transform=turned), BadImage, "not north up"),
        (ortho(tmp_path / "nowhere.tif", crs=None), BadImage, "has no coordinate system"),
        (ortho(tmp_path / "deep.tif", dtype="uint16"), BadImage, "must be uint8"),
    ]
    for file, kind, complaint in refused:
        with pytest.raises(kind, match=complaint):
            cut_tiles(file, tmp_path / "out", 40)
    with pytest.raises(BadSpec, match="covers 125 m by 100 m"):
        cut_tiles(good, tmp_path / "out", 101)
    with pytest.raises(BadSpec, match="at most --size"):
        cut_tiles(good, tmp_path / "out", 40, 41)
    with pytest.raises(BadSpec, match="not empty"):
        cut_tiles(good, tmp_path, 40)
    assert not (tmp_path / "out").exists()

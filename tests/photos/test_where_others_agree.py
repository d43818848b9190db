"""Positions as programs that are not ours write and read them: gpxpy, GDAL, the package utm."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tests.photos.test_where_taken import HERE, dji, packet, photo
from tfa.errors import MissingExtra
from tfa.photos.find_positions import PositionSources, find_positions
from tfa.photos.metadata import read_embedded_position
from tfa.photos.orthophoto import cut_tiles
from tfa.photos.positions import to_degrees, to_meters
from tfa.types import Position


def test_a_track_that_gpxpy_wrote_places_photos(tmp_path):
    gpxpy = pytest.importorskip("gpxpy.gpx", reason="gpxpy is not installed (pip install -e '.[dev]')")
    start = datetime(2025, 6, 1, 10, tzinfo=UTC)
    segment = gpxpy.GPXTrackSegment(
        [
            gpxpy.GPXTrackPoint(
                50 + 0.001 * n, 7 - 0.002 * n, elevation=100.0 + n, time=start + timedelta(seconds=4 * n)
            )
            for n in range(5)
        ]
    )
    for version in ("1.0", "1.1"):
        track, file = gpxpy.GPXTrack(), gpxpy.GPX()
        track.segments.append(segment)
        file.tracks.append(track)
        (tmp_path / "t.gpx").write_text(file.to_xml(version), "utf-8")
        path = photo(tmp_path / "a.jpg", taken="2025:06:01 12:00:06", x9011="+02:00")
        [found], _ = find_positions([path], tmp_path, PositionSources(gpx=tmp_path / "t.gpx"))
        assert found.to_dict() == pytest.approx({"lat": 50.0015, "lon": 6.997, "alt": 101.5})


def test_gdal_reads_the_same_of_a_photo(tmp_path):
    rasterio = pytest.importorskip("rasterio")
    said = {"GpsLatitude": "+22.5", "GpsLongitude": "-113.25", "AbsoluteAltitude": "+80.5", "GimbalYawDegree": "-90"}
    path = photo(tmp_path / "a.jpg", xmp=packet(dji(**said)), gps={**HERE, 17: 225.0})
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning), rasterio.open(path) as file:
        exif, [xmp] = file.tags(), file.tags(ns="xml:XMP").values()
    drone = {
        name.partition("}")[2]: float(value)
        for element in ElementTree.fromstring(xmp).iter()
        for name, value in element.attrib.items()
    }
    found = read_embedded_position(path)
    assert found.pair == (drone["GpsLatitude"], drone["GpsLongitude"])
    assert (found.alt, found.heading) == (drone["AbsoluteAltitude"], drone["GimbalYawDegree"] % 360)
    plain = read_embedded_position(photo(tmp_path / "b.jpg", gps={**HERE, 17: 225.0}))
    angles = [
        sum(float(part) / 60**power for power, part in enumerate(re.findall(r"[\d.]+", exif[f"EXIF_GPS{name}"])))
        for name in ("Latitude", "Longitude", "ImgDirection")
    ]
    assert (*plain.pair, plain.heading) == pytest.approx(angles)


def test_utm_is_that_of_another_program():
    pytest.importorskip("pyproj")
    utm = pytest.importorskip("utm", reason="utm is not installed (pip install -e '.[dev]')")
    generator = np.random.default_rng(0)
    for lat, lon in zip(
        generator.uniform(-79, 83, 40).tolist(), generator.uniform(-180, 180, 40).tolist(), strict=True
    ):
        east, north, number, _ = utm.from_latlon(lat, lon)
        zone = f"{number}{'NS'[lat < 0]}"
        [metres] = to_meters([Position(lat=lat, lon=lon)], zone)
        assert metres.pair == pytest.approx((east, north), abs=0.01)
        [degrees] = to_degrees([Position(x=east, y=north)], zone)
        assert degrees.pair == pytest.approx((lat, lon), abs=1e-7)


def test_what_is_not_installed_is_named_with_how_to_install_it(tmp_path, monkeypatch):
    for module in ("pyproj", "rasterio"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"need pyproj; install with: pip install 'tfa-vpr\[geo\]'"):
        to_degrees([Position(x=448_251.8, y=5_411_932.7)], "31N")
    with pytest.raises(MissingExtra, match=r"need rasterio; install with: pip install 'tfa-vpr\[geo\]'"):
        cut_tiles(tmp_path / "ortho.tif", tmp_path / "tiles", 40)
    assert not (tmp_path / "tiles").exists()

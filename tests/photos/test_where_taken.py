"""What photos, tracks and zones say of where a photo was taken: XMP, EXIF, GPX, UTM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from tfa.core.files import parse_xml
from tfa.errors import BadPositions
from tfa.photos.find_positions import PositionSources, find_positions
from tfa.photos.metadata import read_embedded_position, read_photo_time
from tfa.photos.positions import read_gpx, read_positions_csv, to_degrees, to_meters, utm_code
from tfa.types import Position

HERE = {1: "N", 2: (IFDRational(52), IFDRational(30)), 3: "E", 4: (IFDRational(13), IFDRational(15))}
RDF = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:drone-dji="http://www.dji.com/drone-dji/1.0/"'


def photo(
    path: Path, *, xmp: str | None = None, gps: dict | None = None, taken: str | None = None, **more: str
) -> Path:
    exif = Image.Exif()
    exif.get_ifd(0x8825).update(gps or {})
    if taken is not None:
        exif.get_ifd(0x8769).update({0x9003: taken, **{int(tag[1:], 16): text for tag, text in more.items()}})
    written = {} if xmp is None else {"xmp": xmp.encode()}
    Image.new("RGB", (4, 4)).save(path, exif=exif, **written)
    return path


def packet(attributes: str = "", elements: str = "", before: str = "") -> str:
    inside = f"<rdf:RDF {RDF}><rdf:Description {attributes}>{elements}</rdf:Description></rdf:RDF>"
    return f'{before}<x:xmpmeta xmlns:x="adobe:ns:meta/">{inside}</x:xmpmeta>'


def dji(**values: str) -> str:
    return " ".join(f'drone-dji:{name}="{value}"' for name, value in values.items())


# --- what a photo says ---


def test_the_xmp_of_a_drone_comes_before_exif_as_attributes_and_as_elements(tmp_path):
    said = {"GpsLatitude": "+22.5", "GpsLongtitude": "-113.25", "AbsoluteAltitude": "+80.5", "RelativeAltitude": "+30",
                "GimbalYawDegree": "-90.0", "FlightYawDegree": "+12"}  # fmt: skip
    elements = "".join(f"<drone-dji:{name}>{value}</drone-dji:{name}>" for name, value in said.items())
    for number, xmp in enumerate((packet(dji(**said)), packet(elements=elements))):
        found = read_embedded_position(photo(tmp_path / f"{number}.jpg", xmp=xmp, gps=HERE))
        assert found == Position(lat=22.5, lon=-113.25, alt=80.5, heading=270.0)


def test_exif_fills_what_xmp_leaves_out_and_says_height_and_direction(tmp_path):
    gps = {**HERE, 5: b"\1", 6: IFDRational(7, 2), 16: "T", 17: IFDRational(450, 2)}
    assert read_embedded_position(photo(tmp_path / "a.jpg", gps=gps)) == Position(
        lat=52.5, lon=13.25, alt=-3.5, heading=225
    )
    yaw = packet(dji(FlightYawDegree="10", GpsLatitude="0.000000", GpsLongitude="0.0"))
    found = read_embedded_position(photo(tmp_path / "b.jpg", xmp=yaw, gps=gps))
    assert found == Position(lat=52.5, lon=13.25, alt=-3.5, heading=10.0)


def test_an_all_zero_block_and_hostile_xmp_are_no_position(tmp_path):
    zeros = (IFDRational(0), IFDRational(0), IFDRational(0))
    nowhere = {1: "N", 2: zeros, 3: "E", 4: zeros, 6: IFDRational(0)}
    good = dji(GpsLatitude="1", GpsLongitude="2")
    entity = '<!DOCTYPE x [<!ENTITY a "aaaa">]>'
    for number, xmp in enumerate(
        [
            None, packet(good, before=entity), packet(good)[:-9], packet(dji(GpsLatitude="95", GpsLongitude="2")),
            packet(dji(GpsLatitude="nan", GpsLongitude="2")), packet(good, "x" * 1_000_001),
        ]
    ):  # fmt: skip
        path = tmp_path / f"{number}.png"  # where a packet may be long
        assert read_embedded_position(photo(path, xmp=xmp, gps=nowhere)) is None, number
    with pytest.raises(ValueError, match="nested too deep"):
        parse_xml(b"<a>" * 101 + b"</a>" * 101)


def test_metadata_behind_the_pixels_of_a_png_is_read_without_decoding_them(tmp_path, monkeypatch):
    path, exif = tmp_path / "a.png", Image.Exif()
    exif.get_ifd(0x8825).update(HERE)
    Image.new("RGB", (4, 4)).save(path, exif=exif.tobytes())
    chunks, content = [], path.read_bytes()
    while 8 + sum(map(len, chunks)) < len(content):
        start = 8 + sum(map(len, chunks))
        chunks.append(content[start : start + 12 + int.from_bytes(content[start : start + 4], "big")])
    late = sorted(chunks, key=lambda one: {b"eXIf": 1, b"IEND": 2}.get(one[4:8], 0))
    assert late != chunks
    path.write_bytes(content[:8] + b"".join(late))
    with Image.open(path) as image:
        assert "exif" not in image.info
    monkeypatch.setattr(Image, "_getdecoder", lambda *_, **__: pytest.fail("pixels were decoded"))
    assert read_embedded_position(path) == read_embedded_position(path.read_bytes()) == Position(lat=52.5, lon=13.25)


def test_a_csv_may_tell_height_and_heading(tmp_path):
    (tmp_path / "p.csv").write_text("file,lat,lon,heading,alt\na.jpg,1,2,350,30\nb.jpg,1,2,,\n", "utf-8")
    assert read_positions_csv(tmp_path / "p.csv") == {
        "a.jpg": Position(lat=1, lon=2, alt=30, heading=350),
        "b.jpg": Position(lat=1, lon=2),
    }
    (tmp_path / "p.csv").write_text("file,x,y,heading\na.jpg,1,2,east\n", "utf-8")
    with pytest.raises(BadPositions, match="line 2: heading is 'east', must be a number"):
        read_positions_csv(tmp_path / "p.csv")


# --- a track ---


def track(path: Path, *segments: list[tuple[str, float, float, float]]) -> Path:
    points = "".join(
        "<trkseg>"
        + "".join(
            f'<trkpt lat="{lat}" lon="{lon}"><ele>{ele}</ele><time>2025-06-01T{clock}Z</time></trkpt>'
            for clock, lat, lon, ele in one
        )
        + "</trkseg>"
        for one in segments
    )
    path.write_text(f'<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk>{points}</trk></gpx>', "utf-8")
    return path


def test_a_track_places_photos_by_their_time(tmp_path):
    gpx = track(
        tmp_path / "t.gpx",
        [
            ("10:00:00", 50, 179.9, 100),
            ("10:00:10", 50.5, -179.9, 110),
            ("10:00:10.5", 0, 0, 0),
            ("10:02:00", 51, 0, 0),
        ],
        [("10:02:30", 52, 1, 0)],
    )
    clocks = {
        "a": ("2025:06:01 10:00:05", {}),  # no zone: taken as UTC
        "b": ("2025:06:01 12:00:02", {"x9011": "+02:00", "x9291": "50"}),
        "gap": ("2025:06:01 10:01:00", {}),
        "pause": ("2025:06:01 10:02:15", {}),  # between two segments
        "late": ("2025:06:01 10:03:00", {}),
    }
    paths = [photo(tmp_path / f"{name}.jpg", taken=taken, **more) for name, (taken, more) in clocks.items()]
    paths.append(photo(tmp_path / "timeless.jpg", gps=HERE))
    found, notes = find_positions(paths, tmp_path, PositionSources(gpx=gpx))
    assert found[0] == Position(lat=50.25, lon=-180.0, alt=105.0)
    assert found[1].to_dict() == pytest.approx({"lat": 50.125, "lon": 179.95, "alt": 102.5})
    assert found[2:5] == [None] * 3
    assert found[5] == Position(lat=52.5, lon=13.25)  # what the photo itself says
    assert [note.split(" ", 1)[0] for note in notes] == ["3", "1", "4", "3"]
    assert "--gpx-offset SECONDS" in notes[2]
    moved, _ = find_positions(paths[:1], tmp_path, PositionSources(gpx=gpx, gpx_offset=-2.5, gpx_gap=600))
    assert moved[0].alt == pytest.approx(102.5)


def test_a_track_that_says_nothing_of_the_photos_is_an_error_that_says_why(tmp_path):
    gpx = track(tmp_path / "t.gpx", [("10:00:00", 50, 7, 0), ("10:00:10", 51, 7, 0)])
    path = photo(tmp_path / "a.jpg", taken="2025:06:01 12:00:05")
    with pytest.raises(BadPositions, match=r"begin 7,195 s after it\); correct the camera's clock with --gpx-offset"):
        find_positions([path], None, PositionSources(gpx=gpx))
    with pytest.raises(BadPositions, match="none of 1 has a time"):
        find_positions([photo(tmp_path / "b.jpg", taken="0000:00:00 00:00:00")], None, PositionSources(gpx=gpx))
    assert read_photo_time(tmp_path / "absent.jpg") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no XML", "is not XML"),
        ("<kml/>", "its root element is <kml>"),
        ('<!DOCTYPE gpx [<!ENTITY a "b">]><gpx/>', "DOCTYPE"),
        ("<gpx><trk><trkseg><trkpt lat='1' lon='2'/></trkseg></trk></gpx>", "no track point with a time"),
        ("<gpx><trk><trkseg><trkpt lat='91' lon='2'><time>2025-06-01T10:00:00Z</time></trkpt></trkseg></trk></gpx>",
         "a point has lat '91'"),
        ("<gpx><trk><trkseg><trkpt lat='1' lon='2'><time>noon</time></trkpt></trkseg></trk></gpx>",
         "the point time 'noon'"),
    ],
)  # fmt: skip
def test_what_is_no_track_is_refused(tmp_path, text, complaint):
    (tmp_path / "t.gpx").write_text(text, "utf-8")
    with pytest.raises(BadPositions, match=complaint):
        read_gpx(tmp_path / "t.gpx")


# --- UTM ---


def test_zones_are_named_by_number_and_hemisphere():
    assert (utm_code("33N"), utm_code("7s")) == (32633, 32707)
    for zone in ("0N", "61N", "33", "33U", "N33", ""):
        with pytest.raises(BadPositions, match="is not a UTM zone"):
            PositionSources(utm=zone)


def test_utm_and_degrees_are_two_names_of_one_point(tmp_path):
    pytest.importorskip("pyproj")
    # The Eiffel tower and Sydney's opera, as public gazetteers list them.
    for zone, metres, degrees in (("31N", (448251.8, 5411932.7), (48.8582, 2.2945)),
                                  ("56S", (334873.2, 6252266.1), (-33.8568, 151.2153))):  # fmt: skip
        place = Position(x=metres[0], y=metres[1], alt=5.0)
        [found, other] = to_degrees([place, Position(lat=1, lon=2)], zone)
        assert np.allclose(found.pair, degrees, atol=1e-4)
        assert (found.alt, other) == (5.0, Position(lat=1, lon=2))
        assert np.allclose(to_meters([found], zone)[0].pair, metres, atol=1e-3)
    with pytest.raises(BadPositions, match="outside UTM zone 31N"):
        to_degrees([Position(x=9e9, y=1)], "31N")
    photo(tmp_path / "@448251.8@5411932.7@31@U@.jpg")
    found, _ = find_positions(sorted(tmp_path.glob("*.jpg")), tmp_path, PositionSources(utm="31N"))
    assert np.allclose(found[0].pair, (48.8582, 2.2945), atol=1e-4)

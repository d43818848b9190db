"""Exported tables and points as GDAL reads them; values that it cannot represent."""

from __future__ import annotations

import csv
import errno
import json
import os
import struct
import sys

import numpy as np
import pytest

from tests.exports.answers.conftest import METRES, TAKEN
from tfa.errors import BadPositions, BadSpec, DiskFull, MissingExtra
from tfa.exports import ExportContext, write_answers
from tfa.exports.answers import check_positions
from tfa.exports.answers.record import ANSWER_COLUMNS, iso_time, spaced, times_of
from tfa.photos.positions import read_gpx, to_degrees
from tfa.types import Answer, Position

raw = pytest.importorskip("pyogrio.raw", reason="pyogrio is not installed: GDAL did not read what was written")
LAT, LON = 52.5 + 1e-5, 13.25 - 1e-5


def read(path, **how):
    """Points (lon, lat) or None, and columns by name, as GDAL has them."""
    meta, _, shapes, columns = raw.read(path, **how)
    points = [None if shape is None else struct.unpack("<dd", shape[5:21]) for shape in shapes]
    return points, dict(zip(meta["fields"], columns, strict=True))


def test_gdal_reads_geojson(answers, tmp_path):
    assert write_answers(tmp_path / "a.geojson", answers) == 3
    points, columns = read(tmp_path / "a.geojson")
    assert points == [(LON, LAT), (13.25, 52.5), None, None, (LON, LAT)]
    assert list(columns["located_by"]) == ["place", "image", None, None, "place"]
    assert [name.rpartition("/")[2] for name in columns["query"]] == [
        "a.jpg",
        'ä, "b"\\n.png',
        "c.jpg",
        "d.webp",
        "e.jpg",
    ]
    assert list(columns["confidence"]) == [0.97, 0.4, 0.0, 0.2, 0.97]
    assert [bool(one) for one in columns["sure"]] == [True, False, False, False, True]
    assert columns["time"][0] == np.datetime64("2025-06-01T10:00:00.250")
    assert np.isnat(columns["time"][1])
    numbers = {"score": 1.5, "inliers": 12, "radius": 12.5, "image_alt": 34.5, "image_heading": 120.0}
    assert {name: columns[name][0] for name in numbers} == numbers
    assert (columns["lost"][3], columns["place_missing"][3]) == (0.75, "the camera is lost")
    assert list(columns["verdict"][:2]) == ["recognized", "not recognized"]
    assert columns["reason"][0] == "its patches match"
    assert columns["error"][2] == "c.jpg cannot be opened"
    written = json.loads((tmp_path / "a.geojson").read_text("utf-8"))
    assert "crs" not in written  # RFC 7946 knows one
    assert list(written["features"][0]["properties"]) == [*ANSWER_COLUMNS, "located_by"]


def test_a_spreadsheet_runs_no_text_of_a_csv(tmp_path):
    names = ["=1+1.png", "+x.png", "-x.png", "@x.png", "a=b.png"]
    write_answers(tmp_path / "a.csv", [Answer(query=name) for name in names])
    with open(tmp_path / "a.csv", encoding="utf-8", newline="") as file:
        assert [row["query"] for row in csv.DictReader(file)] == [
            "'=1+1.png",
            "'+x.png",
            "'-x.png",
            "'@x.png",
            "a=b.png",
        ]


def test_gdal_reads_csv(answers, tmp_path):
    assert write_answers(tmp_path / "a.CSV", answers) == 3
    points, columns = read(
        tmp_path / "a.CSV", X_POSSIBLE_NAMES="lon", Y_POSSIBLE_NAMES="lat", AUTODETECT_TYPE="YES"
    )  # fmt: skip
    assert points == [(LON, LAT), None, None, None, (LON, LAT)]
    assert list(columns) == list(ANSWER_COLUMNS)
    assert list(columns["image_lat"][:2]) == [52.5, 52.5]
    content = (tmp_path / "a.CSV").read_bytes()
    assert content.count(b"\r\n") == content.count(b"\n") == 6
    rows = list(csv.DictReader(content.decode().splitlines()))
    assert rows[0] | {"query": ""} == {
        **dict.fromkeys(ANSWER_COLUMNS, ""), "verdict": "recognized", "reason": "its patches match",
        "time": "2025-06-01T10:00:00.25Z", "image": "map/3.png", "score": "1.5",
        "confidence": "0.97", "sure": "true", "reranked": "true", "inliers": "12", "lat": repr(LAT), "lon": repr(LON),
        "radius": "12.5", "image_lat": "52.5", "image_lon": "13.25", "image_alt": "34.5", "image_heading": "120.0",
    }  # fmt: skip


def test_gdal_and_we_ourselves_read_gpx(answers, tmp_path):
    assert write_answers(tmp_path / "a.gpx", answers) == 2
    points, columns = read(tmp_path / "a.gpx", layer="waypoints")
    assert points == [(LON, LAT)] * 2
    assert list(columns["name"]) == [answers[0].query, answers[4].query]
    assert list(columns["ele"]) == [34.5] * 2
    times = np.array(["2025-06-01T10:00:00.250", "2025-06-01T10:00:07.250"], "datetime64[ms]")
    assert (columns["time"] == times).all()
    assert columns["desc"][0] == "confidence 0.97, ± 12 m, matches map/3.png"
    _, track = read(tmp_path / "a.gpx", layer="track_points")
    assert (track["time"] == times).all()
    assert read_gpx(tmp_path / "a.gpx").at(1_748_772_000.25, 60) == Position(lat=LAT, lon=LON, alt=34.5)
    assert write_answers(tmp_path / "a.gpx", answers, ExportContext(times=[None] * 5)) == 2
    assert "<time>" not in (tmp_path / "a.gpx").read_text("utf-8")
    assert "<trk>" not in (tmp_path / "a.gpx").read_text("utf-8")


def test_metres_are_refused_where_only_degrees_are_known_unless_the_zone_is(in_metres, tmp_path):
    for name in ("a.gpx", "a.geojson"):
        with pytest.raises(
            BadPositions, match=r"in meters, such as x 381000.3 m.* --set out.utm=33N; otherwise write \.csv or"
        ):
            write_answers(tmp_path / name, in_metres)
        assert not (tmp_path / name).exists()
    assert write_answers(tmp_path / "a.geojson", in_metres, ExportContext(utm="33N")) == 3
    points, columns = read(tmp_path / "a.geojson")
    [there] = to_degrees([in_metres[0].place.position], "33N")
    assert points[0] == (there.lon, there.lat)
    assert (columns["x"][0], columns["image_y"][0]) == (METRES.x + 1e-5, METRES.y)
    assert write_answers(tmp_path / "a.csv", in_metres) == 3
    with pytest.raises(BadPositions, match="UTM zone"):
        write_answers(tmp_path / "b.csv", in_metres, ExportContext(utm="33"))


def test_without_any_position_points_are_none(tmp_path):
    context = [Answer(query="a.jpg", hits=[], confidence=0.1)]
    assert [write_answers(tmp_path / f"a{ending}", context) for ending in (".geojson", ".gpx", ".csv")] == [0, 0, 0]
    assert read(tmp_path / "a.geojson")[0] == [None]
    assert read(tmp_path / "a.gpx", layer="waypoints")[0] == []
    with pytest.raises(BadPositions, match="no map image has a position"):
        check_positions("a.gpx", [None], None)
    check_positions("a.geojson", [None], None)


def test_what_cannot_be_written_is_said(answers, tmp_path, monkeypatch):
    with pytest.raises(BadSpec, match=r"a\.kml must end in one of \.mcap \.geojson \.gpx \.csv"):
        write_answers(tmp_path / "a.kml", answers)
    with pytest.raises(BadSpec, match="got 2 times for 5 answers"):
        write_answers(tmp_path / "a.csv", answers, ExportContext(times=[1, 2]))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rosbags", None)
        with pytest.raises(MissingExtra, match=r"tfa-vpr\[bags\]"):
            write_answers(tmp_path / "a.mcap", answers)
    before = {file.name for file in tmp_path.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for ending in (".mcap", ".geojson", ".gpx", ".csv"):
        with pytest.raises(DiskFull, match=rf"the disk is full at .*a\{ending}"):
            write_answers(tmp_path / f"a{ending}", answers)
    assert {file.name for file in tmp_path.iterdir()} == before


def test_times(answers):
    assert times_of(answers) == [TAKEN, None, None, None, TAKEN + 7_000_000_000]
    assert spaced([None, None, None]) == [0, 10**9, 2 * 10**9]
    assert spaced([None, None, 5 * 10**9, None, 9]) == [3 * 10**9, 4 * 10**9, 5 * 10**9, 6 * 10**9, 9]
    assert spaced([None, 1]) == [0, 1]  # no time is before 1970
    assert iso_time(TAKEN + 1) == "2025-06-01T10:00:00.250000001Z"
    assert iso_time(-1) == "1969-12-31T23:59:59.999999999Z"
    assert [iso_time(one) for one in (None, 10**21, 10**30)] == [None] * 3

"""Positions: the CSV and its errors, names, EXIF, and which of them wins."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from tfa.errors import BadPositions
from tfa.photos.find_positions import find_positions
from tfa.photos.metadata import read_embedded_position
from tfa.photos.positions import position_from_name, read_positions_csv
from tfa.types import Position

finite = st.floats(allow_nan=False, allow_infinity=False)
metres = st.floats(-1e12, 1e12)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def photo(path: Path, gps: dict[int, object] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if gps is not None:
        exif.get_ifd(0x8825).update(gps)
    Image.new("RGB", (4, 4)).save(path, exif=exif)
    return path


def angle(degrees: float, minutes: float = 0, seconds: float = 0) -> tuple[IFDRational, ...]:
    return tuple(IFDRational(Fraction(value).limit_denominator(10_000)) for value in (degrees, minutes, seconds))


# --- Position ---


def test_a_position_reads_well_on_both_hemispheres():
    assert str(Position(lat=52.5163, lon=13.3777)) == "52.51630° N, 13.37770° E"
    assert str(Position(lat=-33.85, lon=-70.5)) == "33.85000° S, 70.50000° W"
    assert str(Position(x=12.34, y=-45.6)) == "x 12.3 m, y -45.6 m"


@given(lat=st.floats(-90, 90), lon=st.floats(-180, 180), x=metres, y=metres)
def test_a_position_survives_its_dict(lat, lon, x, y):
    for position in (Position(lat=lat, lon=lon), Position(x=x, y=y)):
        assert Position.from_dict(position.to_dict()) == position
        assert len(position.to_dict()) == 2


@pytest.mark.parametrize(
    "values",
    [{}, {"lat": 1.0}, {"lat": 1.0, "x": 2.0}, {"lat": 91.0, "lon": 0.0}, {"lat": 0.0, "lon": -180.5},
     {"x": float("nan"), "y": 0.0}, {"x": True, "y": 0.0}, {"x": "1", "y": 0.0}, {"lat": 0, "lon": 0, "z": 1},
     {"lat": 0.0, "lon": 0.0, "x": 0.0, "y": 0.0}],
)  # fmt: skip
def test_what_is_no_position_is_refused(values):
    with pytest.raises(BadPositions):
        Position.from_dict(values)


# --- the CSV ---


def test_a_csv_may_have_a_bom_spaces_blank_lines_more_columns_and_any_order(tmp_path):
    text = '\ufeff Lon , note, FILE,lat\n\n 13.5 , hello, ./a\\b.jpg , 52.25\n,,,\n-1,,"c, d.jpg",2\n'
    assert read_positions_csv(written(tmp_path / "p.csv", text)) == {
        "a/b.jpg": Position(lat=52.25, lon=13.5),
        "c, d.jpg": Position(lat=2.0, lon=-1.0),
    }


def test_a_csv_of_metres(tmp_path):
    assert read_positions_csv(written(tmp_path / "p.csv", "file,x,y\na.jpg,1e3,-2\n")) == {
        "a.jpg": Position(x=1000.0, y=-2.0)
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: the header is 'nothing'"),
        ("name,lat,lon\na,1,2\n", "line 1: the header is 'name,lat,lon'; it must have the columns file,lat,lon"),
        ("file;lat;lon\na;1;2\n", "separated by commas"),
        ("file,lat,lon\n", "no rows"),
        ("file,lat,lon\na.jpg,1,2\nb.jpg,north,2\n", "line 3: lat is 'north', must be a number"),
        ("file,lat,lon\na.jpg,1\n", "line 2: lon is '', must be a number"),
        ("file,x,y\na.jpg,nan,2\n", "line 2: x is 'nan', must be a number"),
        ("file,x,y\na.jpg,1_000,2\n", "line 2: x is '1_000', must be a number"),
        ("file,lat,lon\na.jpg,90.1,2\n", "line 2: lat is 90.1, must be between -90 and 90"),
        ("file,lat,lon\na.jpg,1,-181\n", "line 2: lon is -181, must be between -180 and 180"),
        ("file,lat,lon\na.jpg,1,2\n\n./a.jpg,1,2\n", "line 4: ./a.jpg is already listed in line 2"),
        ("file,lat,lon\n,1,2\n", "line 2: no file name"),
    ],
)
def test_a_bad_csv_is_refused_with_its_line(tmp_path, text, complaint):
    path = written(tmp_path / "p.csv", text)
    with pytest.raises(BadPositions) as caught:
        read_positions_csv(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_csv_that_is_absent_or_no_text_is_refused(tmp_path):
    with pytest.raises(BadPositions, match="cannot read"):
        read_positions_csv(tmp_path / "absent.csv")
    (tmp_path / "latin.csv").write_bytes(b"file,lat,lon\ncaf\xe9.jpg,1,2\n")
    with pytest.raises(BadPositions, match="UTF-8"):
        read_positions_csv(tmp_path / "latin.csv")


# --- names ---


def test_utm_names():
    name = "@0543256.96@4178906.70@10@S@037.75683@-122.40990@abc@@@@@@201308@@.jpg"
    assert position_from_name(name) == Position(x=543256.96, y=4178906.70)
    assert position_from_name("@-1@2@.jpg") == Position(x=-1.0, y=2.0)


@pytest.mark.parametrize(
    "name", ["photo.jpg", "a@1@2@.jpg", "@1@2.jpg", "@@2@.jpg", "@east@2@.jpg", "@nan@2@.jpg", "@1@inf@.jpg", "@", ""]
)
def test_malformed_names_have_no_position(name):
    assert position_from_name(name) is None


# --- EXIF ---


@settings(deadline=None)
@given(
    lat=st.tuples(st.integers(0, 89), st.integers(0, 59), st.integers(0, 59_999)),
    lon=st.tuples(st.integers(0, 179), st.integers(0, 59), st.integers(0, 59_999)),
    references=st.tuples(st.sampled_from("NS"), st.sampled_from("EW")),
)
def test_exif_written_by_pillow_comes_back(lat, lon, references):
    gps = {1: references[0], 3: references[1]}
    for tag, (degrees, minutes, thousandths) in ((2, lat), (4, lon)):
        gps[tag] = (IFDRational(degrees), IFDRational(minutes), IFDRational(thousandths, 1000))
    exif, file = Image.Exif(), io.BytesIO()
    exif.get_ifd(0x8825).update(gps)
    Image.new("RGB", (2, 2)).save(file, "JPEG", exif=exif)
    found = read_embedded_position(file.getvalue())
    if not any(lat + lon):
        assert found is None  # what cameras write without a fix
        return
    expected = [d + m / 60 + s / 3_600_000 for d, m, s in (lat, lon)]
    assert found.lat == pytest.approx(expected[0] * (-1 if references[0] == "S" else 1), abs=1e-9)
    assert found.lon == pytest.approx(expected[1] * (-1 if references[1] == "W" else 1), abs=1e-9)


@pytest.mark.parametrize(
    "gps",
    [
        None,
        {},
        {1: "N", 2: angle(52), 3: "E"},
        {1: "N", 2: (IFDRational(52, 0), IFDRational(0), IFDRational(0)), 3: "E", 4: angle(13)},
        {1: "N", 2: angle(52), 3: "E", 4: (IFDRational(13), IFDRational(0, 0), IFDRational(0))},
        {1: "X", 2: angle(52), 3: "E", 4: angle(13)},
        {1: "", 2: angle(52), 3: "E", 4: angle(13)},
        {2: angle(52), 4: angle(13)},
        {1: "N", 2: angle(91), 3: "E", 4: angle(13)},
    ],
)
def test_incomplete_or_impossible_gps_is_no_position(tmp_path, gps):
    assert read_embedded_position(photo(tmp_path / "a.jpg", gps)) is None


def test_lower_case_references_and_whole_degrees_are_read(tmp_path):
    path = photo(tmp_path / "a.jpg", {1: "s", 2: (IFDRational(33, 2),), 3: "w", 4: (IFDRational(70), IFDRational(30))})
    assert read_embedded_position(path) == Position(lat=-16.5, lon=-70.5)


def test_broken_files_have_no_position(tmp_path):
    whole = photo(tmp_path / "a.jpg", {1: "N", 2: angle(52), 3: "E", 4: angle(13)}).read_bytes()
    assert read_embedded_position(tmp_path / "a.jpg") == Position(lat=52.0, lon=13.0)
    assert read_embedded_position(tmp_path / "absent.jpg") is None
    assert read_embedded_position(written(tmp_path / "text.jpg", "no image")) is None
    for cut in range(0, len(whole), 7):  # wherever the file ends, nothing is raised
        (tmp_path / "cut.jpg").write_bytes(whole[:cut])
        read_embedded_position(tmp_path / "cut.jpg")
    start = whole.index(b"Exif")
    for index in range(start, start + 160):  # whatever byte of the EXIF block is wrong, nothing is raised
        (tmp_path / "bad.jpg").write_bytes(whole[:index] + bytes([whole[index] ^ 0xFF]) + whole[index + 1 :])
        read_embedded_position(tmp_path / "bad.jpg")


# --- which one wins ---


def test_csv_wins_over_name_and_name_over_exif(tmp_path):
    gps = {1: "N", 2: angle(1), 3: "E", 4: angle(2)}
    names = ["@1@2@a.jpg", "@3@4@b.jpg", "c.jpg", "d.jpg"]
    paths = [photo(tmp_path / name, gps) for name in names[:3]] + [photo(tmp_path / "d.jpg")]
    csv = written(tmp_path / "p.csv", "file,x,y\n@1@2@a.jpg,7,8\n")
    found, notes = find_positions(paths, tmp_path, csv)
    assert found == [Position(x=7.0, y=8.0), Position(x=3.0, y=4.0), Position(lat=1.0, lon=2.0), None]
    assert any("1 image without a position" in note and "d.jpg" in note for note in notes)
    assert any("1 photos have lat/lon and 2 have x/y" in note for note in notes)


def test_without_a_csv_a_map_without_positions_is_no_news(tmp_path):
    assert find_positions([photo(tmp_path / "a.jpg")], tmp_path, None) == ([None], [])
    assert find_positions([], None, None) == ([], [])


def test_rows_match_by_relative_path_or_a_unique_ending(tmp_path):
    paths = [photo(tmp_path / "town" / name) for name in ("x/a.jpg", "y/a.jpg", "y/b.jpg", "c\u0301.jpg")]
    csv = written(tmp_path / "p.csv", "file,x,y\ny/a.jpg,1,1\nb.jpg,2,2\ntown/x/a.jpg,3,3\n\u0107.jpg,4,4\n")
    found, notes = find_positions(paths, tmp_path / "town", csv)
    assert [position.x for position in found] == [3.0, 1.0, 2.0, 4.0]
    assert notes == []


def test_rows_without_a_photo_are_counted(tmp_path):
    paths = [photo(tmp_path / "a.jpg")]
    csv = written(tmp_path / "p.csv", "file,x,y\nz.jpg,1,1\na.jpg,2,2\nother/a.jpg,3,3\n")
    found, notes = find_positions(paths, tmp_path, csv)
    assert found == [Position(x=2.0, y=2.0)]
    assert notes == ["2 rows of p.csv match no image (first: z.jpg)"]


def test_a_full_name_is_not_overruled_by_a_loose_one(tmp_path):
    paths = [photo(tmp_path / "sub" / "a.jpg")]
    csv = written(tmp_path / "p.csv", "file,x,y\na.jpg,1,1\nsub/a.jpg,2,2\n")
    found, notes = find_positions(paths, tmp_path, csv)
    assert found == [Position(x=2.0, y=2.0)]
    assert notes == ["1 row of p.csv matches no image (first: a.jpg)"]


def test_ambiguous_doubled_and_foreign_rows_are_refused(tmp_path):
    paths = [photo(tmp_path / name) for name in ("x/a.jpg", "y/a.jpg", "x/y/b.jpg")]
    with pytest.raises(BadPositions, match=r"a\.jpg is ambiguous, matching .* and "):
        find_positions(paths, tmp_path, written(tmp_path / "p.csv", "file,x,y\na.jpg,1,1\n"))
    with pytest.raises(BadPositions, match="both name"):
        find_positions(paths, tmp_path, written(tmp_path / "p.csv", "file,x,y\nb.jpg,1,1\ny/b.jpg,1,1\n"))
    with pytest.raises(BadPositions, match=r"none of its 1 rows matches a photo \(first row: q\.jpg"):
        find_positions(paths, tmp_path, written(tmp_path / "p.csv", "file,x,y\nq.jpg,1,1\n"))


def test_without_a_root_paths_match_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [photo(Path("x/a.jpg")), photo(Path("y/a.jpg"))]
    csv = written(tmp_path / "p.csv", "file,x,y\ny/a.jpg,1,1\n./x/a.jpg,2,2\n")
    assert [position.x for position in find_positions(paths, None, csv)[0]] == [2.0, 1.0]

"""Photo lists from folders, manifests and buckets: content, order and errors."""

import sys
from pathlib import Path

import pytest

from tests.maps.building.builders import Published, build
from tests.maps.conftest import photo
from tfa.errors import BadImage, BadManifest, MissingExtra, NoImages
from tfa.maps.building import list_photos
from tfa.photos.find_positions import PositionSources, find_positions
from tfa.types import EncoderOptions, Position


@pytest.fixture
def places(tmp_path):
    for number in range(6):
        photo(tmp_path / "places" / f"{number}.png", number)
    return tmp_path / "places"


def manifest(folder, text):
    (folder / "list.csv").write_text(text)
    return folder / "list.csv"


def test_shards_are_runs_of_the_list_and_know_their_sample(places):
    listed = list_photos(places)
    shards = listed.shards(4, [0, 3, 5])
    assert [len(shard) for shard in shards] == [4, 2]
    assert [shard.sample for shard in shards] == [(0, 3), (1,)]
    assert [one.uri for shard in shards for one in shard.photos] == sorted(str(path) for path in places.iterdir())


def test_another_content_is_another_list(places):
    before = list_photos(places)
    assert list_photos(places).digest == before.digest
    photo(places / "3.png", 33)
    assert list_photos(places).digest != before.digest


def test_a_manifest_has_positions_sessions_and_its_own_order(places):
    path = manifest(places, f"session,uri,lat,lon\nmonday,3.png,1.5,2.5\n,{places}/1.png,,\n")
    first, second = list_photos(path).photos
    assert (first.uri, first.session, first.position) == (str(places / "3.png"), "monday", Position(lat=1.5, lon=2.5))
    assert (second.uri, second.session, second.position) == (str(places / "1.png"), None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,lat,lon\na.png,1,2\n", r"list\.csv, line 1: the columns are 'file,lat,lon', must be uri"),
        ("uri,lat\n0.png,1\n", r"line 1: column lat is present without lon"),
        ("uri\n0.png\n\n \n1.png\n0.png\n", r"line 6: .*0\.png is already listed in line 2; keep one"),
        ("uri,lat,lon\n0.png,1,2\n1.png,north,2\n", r"line 3: lat is 'north', must be a number; correct it"),
        ("uri,lat,lon\n0.png,1,\n", r"line 2: a position needs lat and lon.*leave both cells empty"),
        ("uri,lat,lon\n0.png,99,2\n", r"line 2: lat is 99, must be between -90 and 90"),
        ("uri,session\n,a\n", r"line 2: the uri is empty; write the path"),
        ("uri\na,b.png\n", r"line 2: 2 cells, the header has 1; quote"),
        ("uri\n", r"lists no photo; write one row"),
    ],
)
def test_a_mistake_in_a_manifest_is_named_by_its_line(places, text, said):
    with pytest.raises(BadManifest, match=said):
        list_photos(manifest(places, text))


def test_a_photo_that_is_not_there_is_named_by_its_line_or_left_out(places):
    path = manifest(places, "uri\n0.png\ngone.png\n1.png\n")
    with pytest.raises(BadImage, match=r"line 3: .*gone\.png does not exist; .*--skip-bad"):
        list_photos(path)
    listed = list_photos(path, skip_bad=True)
    assert len(listed) == 2
    assert [uri for uri, _ in listed.skipped] == [str(places / "gone.png")]


def test_positions_are_found_as_for_a_map_in_a_folder(places, tmp_path):
    pytest.importorskip("pyproj")
    where = tmp_path / "where.csv"
    where.write_text("file,x,y\n0.png,390000,5820000\n2.png,390100,5820000\n")
    sources = PositionSources(csv=where, utm="33N")
    listed = list_photos(places, positions=sources)
    found, notes = find_positions([Path(photo.uri) for photo in listed.photos], places, sources)
    assert [photo.position for photo in listed.photos] == found
    assert listed.photos[0].position.is_global
    assert list(listed.notes) == notes
    in_manifest = list_photos(manifest(places, "uri,x,y\n1.png,390000,5820000\n0.png,1,2\n"), positions=sources)
    assert [photo.position for photo in in_manifest.photos] == [found[0], found[0]]  # the CSV comes first


def test_a_parquet_manifest_reads_as_its_csv(places, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"uri": ["0.png", "1.png"], "x": [1.0, None], "y": [2.0, None], "session": ["a", None]}
    parquet.write_table(arrow.table(columns), places / "list.parquet")
    own = list_photos(manifest(places, "uri,x,y,session\n0.png,1,2,a\n1.png,,,\n"))
    assert list_photos(places / "list.parquet").photos == own.photos
    parquet.write_table(arrow.table({"uri": ["0.png", ""]}), places / "list.parquet")
    with pytest.raises(BadManifest, match="row 2: the uri is empty"):
        list_photos(places / "list.parquet")
    (places / "list.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(BadManifest, match="cannot read the manifest"):
        list_photos(places / "list.parquet")


def test_without_pyarrow_it_says_what_to_install(places, monkeypatch):
    (places / "list.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-vpr\[parquet\]'"):
        list_photos(places / "list.parquet")


@pytest.fixture
def bucket(fleet):
    """The fleet, in a bucket of this process's memory."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(fleet), "/cars", recursive=True)
    memory.pipe("/cars/notes.txt", b"no photo")
    memory.pipe("/cars/.hidden.png", b"no photo")
    yield memory
    memory.rm("/cars", recursive=True)


def test_photos_of_a_bucket_make_the_map_of_the_folder(fleet, bucket, url, tmp_path):
    build("memory://cars", url)
    build(fleet, f"sqlite://{tmp_path}/folder.db/places")
    found, folder = Published(url), Published(f"sqlite://{tmp_path}/folder.db/places")
    assert found.vectors.tobytes() == folder.vectors.tobytes()
    assert [one["digest"] for one in found.payload] == [one["digest"] for one in folder.payload]
    assert found.payload[3]["path"] == "memory:///cars/003.png"


def test_what_a_bucket_lacks_is_named_by_its_url(bucket, url):
    with pytest.raises(NoImages, match="memory://trucks"):
        list_photos("memory://trucks")
    with pytest.raises((MissingExtra, NoImages), match="nothing://"):
        list_photos("nothing://x")
    listed = list_photos("memory://cars")
    bucket.pipe("/cars/007.png", b"broken")
    bucket.rm("/cars/008.png")
    with pytest.raises(BadImage, match=r"memory:///cars/00[78]\.png"):
        build(listed, url)
    report = build(listed, url, options=EncoderOptions(skip_bad=True))
    assert sorted(uri for uri, _ in report.skipped) == ["memory:///cars/007.png", "memory:///cars/008.png"]
    assert not any("/tmp" in reason for _, reason in report.skipped)

"""A map and photos in an S3 bucket: built, queried, edited."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.fakes import FakeEncoder
from tests.maps.building.builders import build
from tests.maps.conftest import photo
from tests.maps.store.conftest import told
from tests.maps.store.stores import new_url
from tfa.errors import NoImages, StoreUnavailable
from tfa.maps import PlaceMap
from tfa.maps.building import list_photos
from tfa.search.store import open_map_store

pytestmark = pytest.mark.stores


@pytest.fixture
def drive(tmp_path, bucket, monkeypatch):
    """Photos in a bucket, one with a name that a URL would have to quote, and the same in a folder."""
    fs = pytest.importorskip("pyarrow.fs")
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(12):
        photo(tmp_path / "drive" / (f"@{place}@{place}@.png" if place else "50% straße #1?.png"), place)
    fs.copy_files(
        str(tmp_path / "drive"), f"{bucket}/drive", destination_filesystem=fs.FileSystem.from_uri(f"s3://{bucket}")[0]
    )
    return f"s3://{bucket}/drive"


def test_a_map_in_a_bucket_is_built_asked_and_edited(drive, bucket, s3_endpoint, tmp_path):
    pytest.importorskip("tfa_lance", reason="tfa-lance is not installed: pip install -e plugins/tfa-lance")
    here, there = new_url("memory://here{n}"), f"lance+s3://{bucket}/maps/town?endpoint={s3_endpoint}"
    build(tmp_path / "drive", here)
    build(list_photos(drive), there)
    local, town = (PlaceMap.load(url, encoder=FakeEncoder()) for url in (here, there))
    dusk = photo(tmp_path / "dusk.png", 5, light=0.8)
    assert told(town.query(dusk, k=3, rerank=True)) == told(local.query(dusk, k=3, rerank=True))
    assert town.storage.record(0).path == f"{drive}/50% straße #1?.png"
    [added] = town.add([photo(tmp_path / "new.png", 40)]).added
    other = PlaceMap.load(there, encoder=FakeEncoder())
    assert other.query(tmp_path / "new.png", k=1, rerank=True)[0].id == added


def test_of_those_that_swap_a_document_of_a_bucket_at_once_one_wins(bucket):
    pytest.importorskip("tfa_lance", reason="tfa-lance is not installed: pip install -e plugins/tfa-lance")
    stores, together = [open_map_store(f"lance+s3://{bucket}/race/town")[0] for _ in range(4)], Barrier(4)

    def swap(who: int) -> bytes | None:
        together.wait()
        return b"%d" % who if stores[who].swap("town/header", None, b"%d" % who) else None

    with ThreadPoolExecutor(4) as threads:
        won = [own for own in threads.map(swap, range(4)) if own is not None]
    assert [stores[0].read("town/header")] == won


def test_a_bucket_that_is_not_there_is_named(bucket):
    pytest.importorskip("tfa_lance", reason="tfa-lance is not installed: pip install -e plugins/tfa-lance")
    with pytest.raises(StoreUnavailable, match=f"the bucket of s3://{bucket}-gone/maps does not exist"):
        open_map_store(f"lance+s3://{bucket}-gone/maps/town")
    with pytest.raises(NoImages, match=f"cannot list s3://{bucket}-gone/photos: .*bucket"):
        list_photos(f"s3://{bucket}-gone/photos")

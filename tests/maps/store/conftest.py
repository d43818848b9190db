"""A small second-order map in memory stores."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.maps.store.stores import new_url
from tfa.maps import PlaceMap

PLACES = 14


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A map of 14 places, not saved."""
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(PLACES):
        photo(tmp_path / "town" / f"@{place}@{place}@.png", place)
    return PlaceMap.build(tmp_path / "town", head="second-order", encoder=FakeEncoder(), spec=SPEC)


@pytest.fixture
def url():
    return new_url("memory://test{n}")


@pytest.fixture
def town(small, url):
    """The same in a store."""
    return small.publish(url, dims=64)


@pytest.fixture
def another(town, url):
    """Opens the same map once more, as another process would."""
    return lambda: PlaceMap.load(url, encoder=FakeEncoder())


@pytest.fixture
def dusk(tmp_path):
    return photo(tmp_path / "dusk.png", 5, light=0.8)


@pytest.fixture
def camera(tmp_path):
    return [photo(tmp_path / "camera" / f"{place}.png", place, light=0.7) for place in range(12)]


def told(hits):
    return [(hit.id, hit.score) for hit in hits]

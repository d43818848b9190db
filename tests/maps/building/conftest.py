"""Photos for sharded builds, and a separate cache for every test."""

import pytest

from tests.maps.building.builders import LOG
from tests.maps.conftest import photo


@pytest.fixture
def fleet(tmp_path):
    """Folder of 75 photos: 25 places, three photos each, in the order of a drive."""
    for number in range(75):
        photo(tmp_path / "fleet" / f"{number:03d}.png", number // 3, light=1.0 - 0.1 * (number % 3))
    return tmp_path / "fleet"


@pytest.fixture
def encoded(tmp_path, monkeypatch):
    """Folder in which workers write down what they encode."""
    folder = tmp_path / "encoded"
    folder.mkdir()
    monkeypatch.setenv(LOG, str(folder))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def url(tmp_path):
    return f"sqlite://{tmp_path}/maps.db/places"

"""A small map of made-up photos under the fake encoder, served in this process."""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tfa.maps import PlaceMap
from tfa.service.app import create_app
from tfa.service.settings import ServiceSettings
from tfa.types import BuildOptions

FLOATS = BuildOptions(head="paper", storage="float16")

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, a map of them, and a token cache."""
    folder = tmp_path_factory.mktemp("service")
    for place in range(14):
        photo(folder / "town" / f"{place:02d}.png", place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(folder / "cache"))
        PlaceMap.build(folder / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=FLOATS).save(folder / "town.tfa")
    return folder


@pytest.fixture
def town(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the map that a test may edit."""
    shutil.copytree(built / "cache", tmp_path / "cache")
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(built / "town.tfa", tmp_path / "town.tfa")


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Until it holds; a condition that never does fails the test instead of hanging it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened within {seconds} s"
        time.sleep(0.005)


def opened(path: Path, encoder: Any = None) -> PlaceMap:
    return PlaceMap.load(path, encoder=encoder or FakeEncoder())


@pytest.fixture
def serve(town: Path) -> Iterator[Serve]:
    """`serve(read_api_key="x")`: a client of a service of the map (or of other maps) with these settings."""
    with ExitStack() as stack:

        def start(*maps: PlaceMap, raises: bool = True, **settings: Any) -> TestClient:
            app = create_app(maps or [opened(town)], ServiceSettings(**settings))
            client = TestClient(app, base_url="http://localhost", raise_server_exceptions=raises)
            stack.enter_context(client)
            wait_until(lambda: client.get("/readyz").status_code == 200)
            return client

        yield start


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()


@cache
def picture(place: int, light: float = 1.0, kind: str = "PNG", size: tuple[int, int] | None = None) -> bytes:
    """The bytes of a photo of a place."""
    with tempfile.TemporaryDirectory() as folder, Image.open(photo(Path(folder) / "p.png", place, light)) as image:
        written = io.BytesIO()
        (image if size is None else image.resize(size)).save(written, kind)
        return written.getvalue()


def ask(client: TestClient, content: bytes, name: str = "dusk.png", map: str | None = None, **fields: Any) -> Any:
    asked = {} if map is None else {"map": map}
    return client.post("/v1/query", files={"image": (name, content)}, data=fields, params=asked)


def add(client: TestClient, *photos: tuple[str, bytes], **fields: Any) -> Any:
    return client.post("/v1/images", files=[("images", one) for one in photos], data=fields)


def ids(client: TestClient) -> list[int]:
    return [image["id"] for image in client.get("/v1/images", params={"limit": 1000}).json()["images"]]

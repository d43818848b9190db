"""A real service in a thread, for clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.service.conftest import wait_until
from tfa.maps import PlaceMap
from tfa.service.app import create_app
from tfa.service.server import address_of, bind_socket
from tfa.service.settings import ServiceSettings


def build_town(folder: Path) -> Path:
    """A saved map of 14 made-up photos."""
    for place in range(14):
        photo(folder / "town" / f"{place:02d}.png", place)
    PlaceMap.build(folder / "town", head="paper", encoder=FakeEncoder(), spec=SPEC).save(folder / "town.tfa")
    return folder / "town.tfa"


@contextmanager
def running_service(path: Path, settings: ServiceSettings, **config: float) -> Iterator[tuple[str, FastAPI]]:
    """The address of a service of the map, and the app itself."""
    with serving([PlaceMap.load(path, encoder=FakeEncoder())], settings, **config) as running:
        yield running


@contextmanager
def serving(maps: Sequence[PlaceMap], settings: ServiceSettings, **config: float) -> Iterator[tuple[str, FastAPI]]:
    """The same of open maps."""
    app = create_app(maps, settings)
    with bind_socket(settings) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", **config))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started and app.state.service.status == "ready")
            yield address_of(listening), app
        finally:
            server.should_exit = True
            thread.join(30)

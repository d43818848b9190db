"""A real headless Chromium, a service of made-up answers, and a page that complains of nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.find_browser import HOW, find_browser
from tests.browser.stub_answers import street
from tests.browser.stub_service import StubService, serve
from tests.waiting import PATIENCE

DESK, PHONE = {"width": 1200, "height": 850}, {"width": 360, "height": 740}


@pytest.fixture(scope="package")
def launch() -> Iterator[Callable[..., Any]]:
    """Start a browser. Not for the session: playwright's event loop would be in the way of other tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing; pip install playwright")
    path = find_browser()
    if path is None:
        pytest.skip(f"no Chromium was found; {HOW}")
    # A browser that runs as root, as in a container, has no sandbox to start.
    usual = ["--no-sandbox"] if os.geteuid() == 0 else []
    usual += ["--disable-dev-shm-usage", "--disable-gpu"]
    with playwright.sync_playwright() as started:
        yield lambda *more: started.chromium.launch(executable_path=path, args=[*usual, *more])


@pytest.fixture(scope="package")
def browser(launch: Callable[..., Any]) -> Iterator[Any]:
    """One browser for the folder."""
    running = launch()
    yield running
    running.close()


@dataclass(frozen=True)
class Served:
    """A stub service that runs, and where."""

    stub: StubService
    url: str


@pytest.fixture
def service() -> Iterator[Served]:
    stub = StubService()
    server = serve(stub)
    yield Served(stub, f"http://127.0.0.1:{server.server_address[1]}/")
    server.shutdown()
    server.server_close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page of a service. At the end: no error in its script, no breach of its policy, no call elsewhere."""
    contexts, complaints = [], []

    def complain(message: Any) -> None:
        # A refusal of the service is told on the console too; the page shows it in its own place.
        if message.type == "error" and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def opened(url: str, hash: str = "", **options: Any) -> Any:
        context = browser.new_context(viewport=options.pop("viewport", DESK), **options)
        context.set_default_timeout(1000 * PATIENCE)  # milliseconds
        contexts.append(context)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: sent.url.startswith((url, f"blob:{url}")) or complaints.append(sent.url))
        page.goto(url + hash)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "asked.jpg"
    path.write_bytes(street(77))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"camera-{number}.jpg" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(street(200 + number))
    return paths

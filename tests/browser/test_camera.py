"""The camera view against the real service: Chromium plays the town's second drive as its camera."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.browser.steps import drawing, wait_for_text, wait_until
from tests.client.conftest import serving
from tfa import PlaceMap
from tfa.encoders import load_encoder
from tfa.errors import WeightsMissing
from tfa.service.settings import ServiceSettings

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TOWN = Path(str(files("tfa"))) / "demo" / "town"
FIRST, FRAMES, SIZE = 8, 6, (320, 240)


def write_video(path: Path, photos: list[Path]) -> None:
    """Write photos as an uncompressed video (YUV4MPEG2), one photo a second."""
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{SIZE[0]} H{SIZE[1]} F1:1 Ip A1:1 C420jpeg\n".encode())
        for photo in photos:
            luminance, *colors = Image.open(photo).resize(SIZE).convert("YCbCr").split()
            parts = [luminance, *(color.resize((SIZE[0] // 2, SIZE[1] // 2)) for color in colors)]
            file.write(b"FRAME\n" + b"".join(part.tobytes() for part in parts))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        encoder = load_encoder()
    except WeightsMissing as error:
        pytest.skip(f"the default encoder's weights are not available: {error}")
    photos = sorted((TOWN / "references").iterdir())[12:32]
    place_map = PlaceMap.build(photos, encoder=encoder, positions=TOWN / "positions.csv")
    place_map.save(tmp_path_factory.mktemp("camera") / "town.tfa")
    with serving([place_map], ServiceSettings(port=0)) as (url, _):
        yield f"{url}/"


@pytest.fixture
def chromium(launch: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """A browser whose camera plays the second drive."""
    write_video(tmp_path / "drive.y4m", sorted((TOWN / "queries").iterdir())[FIRST : FIRST + FRAMES])
    running = launch(
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={tmp_path / 'drive.y4m'}",
        "--use-fake-ui-for-media-stream",
    )
    yield running
    running.close()


def test_a_camera_is_followed(service: str, chromium: Any) -> None:
    page, complaints = chromium.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
    page.goto(f"{service}#camera")
    wait_until(page, "document.querySelector('#camera-plan canvas')?.width > 0")
    before = drawing(page, "#camera-plan canvas")
    page.click("#camera-start")
    wait_for_text(page, "#camera-status", "of 3 frames recognized")
    verdict = page.locator("#camera-verdict").inner_text()
    assert any(word in verdict for word in ("recognized", "probable"))
    assert "position x" in verdict
    assert "±" in verdict
    assert "line: the path" in page.locator("#camera-plan-words").inner_text()
    assert drawing(page, "#camera-plan canvas") != before
    page.click("#camera-stop")
    wait_until(page, "document.querySelector('#camera-video').srcObject === null")
    assert page.locator("#camera-start").is_enabled()
    assert complaints == []


def test_a_camera_that_is_refused_is_explained(service: str, chromium: Any) -> None:
    page = chromium.new_page()
    page.add_init_script(
        "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError'))"
    )
    page.goto(f"{service}#camera")
    page.click("#camera-start")
    wait_for_text(page, "#camera-alert", "was not allowed to use the camera")
    assert page.locator("#camera-start").is_enabled()

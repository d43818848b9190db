"""The page against the real service: a small map, the fake encoder, all the way through."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.steps import IS_LOADED, ask, ask_why, choose, drawing, wait_for_text, wait_until
from tests.client.conftest import running_service, serving
from tests.fakes import FakeEncoder, random_image
from tests.maps.store.stores import new_url
from tfa import Client, PlaceMap
from tfa.service.settings import ServiceSettings

PHOTOS = 12


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The address of a service of a map with positions, its photos, and the folder of both."""
    folder = tmp_path_factory.mktemp("real")
    photos = folder / "photos"
    photos.mkdir()
    for number in range(PHOTOS):
        random_image(number, (160, 120)).save(photos / f"{number:02d}.png")
    lines = [f"{number:02d}.png,{52.5 + 0.0004 * number},{13.3 + 0.0003 * (number % 4)}" for number in range(PHOTOS)]
    (folder / "where.csv").write_text("\n".join(["file,lat,lon", *lines]))

    built = PlaceMap.build(photos, head="paper", encoder=FakeEncoder(), positions=folder / "where.csv")
    built.save(folder / "town.tfa")
    with running(folder / "town.tfa") as url:
        yield url, photos, folder


@contextmanager
def running(path: Path, **settings: Any) -> Iterator[str]:
    """The address of a service of the map."""
    with running_service(path, ServiceSettings(port=0, **settings)) as (url, _):
        yield f"{url}/"


def test_a_photo_of_the_map_is_found_and_explained(open_page, town):
    url, photos, _ = town
    page = open_page(url)
    wait_for_text(page, "#map-facts", f"{PHOTOS} photos · fake@28")
    wait_for_text(page, "#plan-words", f"{PHOTOS} positions.")
    ask_why(page, photos / "05.png")
    best = page.locator(".hit").first.inner_text()
    assert "05.png" in best
    assert "52.50200°" in best
    wait_until(page, f"[...document.querySelectorAll('.hit img')].every({IS_LOADED})")
    assert drawing(page, ".pair canvas")[0] > 1000
    assert page.locator(".words button").count() > 0
    parts = [float(row.split("\t")[1]) for row in page.locator("#why table tbody tr").all_inner_texts()]
    assert abs(sum(parts[:-1]) - parts[-1]) < 0.005  # rounded to three digits each


@pytest.mark.parametrize("place", ["folder", "store"])
def test_candidates_sessions_and_region_choose_the_answers(open_page, town, tmp_path, place):
    built = PlaceMap.build(town[1], encoder=FakeEncoder(), positions=town[2] / "where.csv")
    for number in (50, 51):
        random_image(number, (160, 120)).save(tmp_path / f"{number}.png")
        built.add([tmp_path / f"{number}.png"], session="Monday, 5 May")
    built.save(tmp_path / "own.tfa")
    served = built if place == "folder" else built.publish(new_url("memory://page{n}"), dims=64)
    with serving([served], ServiceSettings(port=0)) as (url, _):
        page = open_page(f"{url}/")
        page.click(".options summary")
        page.fill("[name=k]", "20")
        page.fill("[name=candidates]", "0")
        ask(page, town[1] / "05.png")
        wait_for_text(page, "#recognize-alert", "candidates=0 is out of range")
        page.fill("[name=candidates]", "3")
        page.fill("[name=sessions]", "noon\nMonday, 5 May")
        ask(page, town[1] / "05.png")
        wait_until(page, "document.querySelectorAll('.hit').length === 2")
        page.fill("[name=sessions]", "")
        page.fill("[name=region]", "13, 52.4, 14, 52.5011")
        ask(page, town[1] / "05.png")
        wait_until(page, "document.querySelectorAll('.hit').length === 3")


def test_the_report_of_the_real_map_gives_advice(open_page, town):
    page = open_page(town[0], "#report")
    page.wait_for_selector(".headline")
    assert "tfa calibrate" in page.inner_text("#report .advice")
    assert "carrier" not in page.inner_text("#report")


def test_a_photo_is_added_found_and_removed(open_page, town):
    url, _, folder = town
    new = folder / "new.png"
    random_image(500, (160, 120)).save(new)
    page = open_page(url, "#map")
    page.click("#add-box summary")
    choose(page, "add-files", new)
    page.click("#add-send")
    wait_for_text(page, "#map-status", "Added 1 photo.")
    wait_for_text(page, "#map-facts", f"{PHOTOS + 1} photos")
    page.click("#tab-recognize")
    ask(page, new)
    assert "new" in page.locator(".hit").first.inner_text()
    page.click("#tab-map")
    page.fill("#filter", "new")
    wait_for_text(page, "#map-range", "1 to 1 of 1")
    wait_until(page, f"[...document.querySelectorAll('#photos img')].every({IS_LOADED})")
    page.click("#photos button")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-facts", f"{PHOTOS} photos")
    wait_for_text(page, "#photos-none", "No image has “new” in its name.")


def test_a_broken_photo_is_refused_in_words(open_page, town, tmp_path: Path):
    page = open_page(town[0])
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    ask(page, broken)
    assert "broken" in page.inner_text("#recognize-alert") or "photo" in page.inner_text("#recognize-alert")
    assert page.locator(".hit").count() == 0


def test_a_calibration_runs_and_is_put_in_use(open_page, town):
    url, photos, folder = town
    camera = []
    for number in range(6):
        camera.append(folder / f"camera-{number}.png")
        random_image(100 + number, (160, 120)).save(camera[-1])
    page = open_page(url, "#calibrate")
    choose(page, "calibrate-files", photos / "00.png")
    page.click("#calibrate-send")
    wait_for_text(page, "#calibrate-alert", "in the map")  # photos that the map holds cannot calibrate it
    page.click("[aria-label='Remove 00.png']")
    choose(page, "calibrate-files", camera)
    page.fill("#calibrate-form [name=name]", "phone")
    page.click("#calibrate-send")
    wait_for_text(page, "#job-status", "The map is calibrated to phone.")
    assert page.locator("#changes tbody tr").count() == 6
    wait_for_text(page, "#map-facts", "calibrated to phone")


def test_a_camera_with_a_name_adapts_its_answers_and_is_reset(open_page, town, tmp_path: Path):
    own = shutil.copytree(town[2] / "town.tfa", tmp_path / "own.tfa")
    with running(own, edit_api_key="edits") as url:
        page = open_page(url)
        page.click(".options summary")
        page.fill("[name=camera]", "a b")
        ask(page, town[1] / "05.png")
        wait_for_text(page, "#recognize-alert", "is not allowed: must match [A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
        page.fill("[name=camera]", "door")
        ask(page, town[1] / "05.png")
        wait_for_text(page, "#recognize-status", "adapted by 0 photos of door")
        Client(url).query_many([random_image(number, (160, 120)) for number in range(20)], camera="cam0")
        page.click("#tab-calibrate")
        wait_for_text(page, "#cameras-list", "20 photos")
        assert "door" in page.inner_text("#cameras-list")
        page.click("[aria-label='Reset cam0']")
        wait_for_text(page, "#calibrate-alert", "edit API key")
        page.fill("#api-key", "edits")
        page.keyboard.press("Enter")
        page.wait_for_selector("#api-key-form", state="hidden")
        page.click("[aria-label='Reset cam0']")
        wait_for_text(page, "#cameras-words", "1 of at most 64 cameras")
        page.click("#cameras-reset")
        wait_for_text(page, "#cameras-words", "0 of at most 64 cameras")
    assert list(own.glob("session-*")) == []

"""The map view: lists, filters, adds, removes."""

from __future__ import annotations

from tests.browser.steps import ask, choose, wait_for_text


def test_photos_come_page_by_page(open_page, service):
    page = open_page(service.url, "#map")
    wait_for_text(page, "#map-range", "1 to 24 of 30")
    assert page.locator("#photos li").count() == 24
    assert page.is_disabled("#page-back")
    page.click("#page-on")
    wait_for_text(page, "#map-range", "25 to 30 of 30")
    assert page.locator("#photos li").count() == 6
    assert page.is_disabled("#page-on")
    page.click("#page-back")
    wait_for_text(page, "#map-range", "1 to 24 of 30")


def test_a_filter_narrows_the_list(open_page, service):
    page = open_page(service.url, "#map")
    page.fill("#filter", "street-01")
    wait_for_text(page, "#map-range", "1 to 10 of 10")
    assert page.locator("#photos li").count() == 10
    page.fill("#filter", "nowhere")
    wait_for_text(page, "#map-range", "No photo has this in its name")


def test_photos_are_added(open_page, service, photos):
    page = open_page(service.url, "#map")
    page.click("#add-box summary")
    choose(page, "add-files", photos)
    assert page.inner_text("#add-send") == "Add 3 photos"
    page.click("[aria-label='Leave out camera-1.jpg']")
    page.click("#add-send")
    wait_for_text(page, "#map-status", "Added 2 photos.")
    wait_for_text(page, "#map-facts", "32 photos")
    assert page.is_disabled("#add-send")
    page.fill("#filter", "camera")
    wait_for_text(page, "#map-range", "1 to 2 of 2")
    assert "added after fitting" in page.inner_text("#photos")
    assert [photo["image"] for photo in service.stub.maps["town"].photos.values()][-2:] == [
        "camera-0.jpg",
        "camera-2.jpg",
    ]


def test_a_removal_is_asked_for_first(open_page, service):
    page = open_page(service.url, "#map")
    page.click("[aria-label='Remove street-007.jpg']")
    assert "Remove street-007.jpg?" in page.inner_text("#confirm")
    page.keyboard.press("Escape")
    page.wait_for_selector("#confirm", state="hidden")
    page.click("[aria-label='Remove street-007.jpg']")
    page.click("#confirm >> text=Keep it")
    assert 7 in service.stub.maps["town"].photos
    page.click("[aria-label='Remove street-007.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-status", "Removed street-007.jpg.")
    wait_for_text(page, "#map-facts", "29 photos")
    page.wait_for_selector("[aria-label='Remove street-007.jpg']", state="detached")
    assert 7 not in service.stub.maps["town"].photos
    assert page.evaluate("document.activeElement.id") == "filter"


def test_an_answer_stays_while_the_map_is_edited(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    page.click("#tab-map")
    page.click("[aria-label='Remove street-020.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-facts", "29 photos")
    page.click("#tab-recognise")
    assert page.locator(".hit").count() == 5
    wait_for_text(page, "#plan-words", "29 positions of the map; numbered: the 5 matches")


def test_a_refused_addition_says_why_and_keeps_the_photos(open_page, service, tmp_path):
    page = open_page(service.url, "#map")
    page.click("#add-box summary")
    bad = tmp_path / "list.png"
    bad.write_text("no pixels")
    choose(page, "add-files", bad)
    page.click("#add-send")
    wait_for_text(page, "#map-alert", "list.png is not a photo that can be read")
    assert page.locator("#add-list li").count() == 1
    assert page.is_enabled("#add-send")


def test_a_service_that_takes_no_edits_offers_none(open_page, service):
    service.stub.maps["town"].editable = False
    page = open_page(service.url, "#map")
    page.wait_for_selector("#photos li")
    assert page.is_visible("#map .read-only")
    assert page.is_hidden("#add-box")
    assert page.locator("#photos button").count() == 0
    page.click("#tab-calibrate")
    assert page.is_hidden("#calibrate-form")

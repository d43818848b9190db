"""The map view: lists, filters, adds, removes."""

from __future__ import annotations

from tests.browser.steps import IS_LOADED, ask, choose, drawing, wait_for_text, wait_until


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
    wait_for_text(page, "#photos-none", "No image has “nowhere” in its name.")
    page.click("text=Show all images")
    wait_for_text(page, "#map-range", "1 to 24 of 30")
    assert page.is_hidden("#photos-none")


def test_the_plan_is_moved_scaled_and_picked_from_and_has_the_answers_place(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    page.click("#tab-map")
    wait_for_text(page, "#map-plan-words", "30 positions; numbered: the 5 matches of your photo, 1 is the best;")
    canvas = page.locator("#map-plan-canvas")
    whole = drawing(page, "#map-plan-canvas")
    canvas.hover()
    page.mouse.wheel(0, -300)
    scaled = drawing(page, "#map-plan-canvas")
    page.mouse.down()
    page.mouse.move(300, 300, steps=3)
    page.mouse.up()
    assert len({tuple(whole), tuple(scaled), tuple(drawing(page, "#map-plan-canvas"))}) == 3
    assert page.is_hidden("#map-plan .picked")  # a drag is no click
    page.click("#map-plan >> text=Fit")
    assert drawing(page, "#map-plan-canvas") == whole
    canvas.focus()
    page.keyboard.press("Enter")  # the nearest to the middle
    wait_for_text(page, "#map-plan .picked", "Image ")
    wait_until(page, f"[...document.querySelectorAll('.picked img')].some({IS_LOADED})")
    assert drawing(page, "#map-plan-canvas") != whole
    town = service.stub.maps["town"]
    town.positions = lambda: {"kind": None, "points": []}
    page.click("[aria-label='Remove street-020.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-plan-none", "tfa build PHOTOS --positions")  # what to do where there is no plan
    assert page.is_hidden("#map-plan-canvas")


def test_photos_are_added(open_page, service, photos):
    page = open_page(service.url, "#map")
    page.click("#add-box summary")
    choose(page, "add-files", photos)
    assert page.inner_text("#add-send") == "Add 3 photos"
    page.click("[aria-label='Remove camera-1.jpg']")
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


def test_a_removal_is_asked_for_once_and_is_not_the_loudest_thing(open_page, service):
    page = open_page(service.url, "#map")
    button = page.locator("[aria-label='Remove street-007.jpg']")
    quiet = "node => [getComputedStyle(node).borderColor, getComputedStyle(node).color]"
    assert button.evaluate(quiet) == ["rgba(0, 0, 0, 0)", "rgb(77, 91, 105)"]  # no frame, the ink of what is aside
    page.click("[aria-label='Remove street-007.jpg']")
    assert "Remove street-007.jpg?" in page.inner_text("#confirm")
    page.keyboard.press("Escape")
    page.wait_for_selector("#confirm", state="hidden")
    page.click("[aria-label='Remove street-007.jpg']")
    page.click("#confirm >> text=Keep")
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
    page.click("#tab-recognize")
    assert page.locator(".hit").count() == 5
    wait_for_text(page, "#plan-words", "29 positions; numbered: the 5 matches")


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

"""The calibrate view: job progress and changed decisions."""

from __future__ import annotations

from tests.browser.steps import ask, choose, wait_for_text


def test_a_calibration_shows_its_progress_and_what_changed(open_page, service, photos):
    page = open_page(service.url, "#calibrate")
    assert page.is_disabled("#calibrate-send")
    choose(page, "calibrate-files", photos)
    page.fill("#calibrate-form [name=name]", "phone")
    page.click("#calibrate-send")
    wait_for_text(page, "#job-status", "1 of 3 photos encoded")
    assert 0.3 < page.eval_on_selector("#job-bar", "bar => bar.value") < 0.7
    assert page.is_disabled("#calibrate-send")
    wait_for_text(page, "#job-status", "The map is calibrated to phone.")
    assert page.inner_text("#changes-title") == "Changes by phone"
    rows = dict(row.split("\t", 1) for row in page.locator("#changes tbody tr").all_inner_texts())
    assert rows["carrier"] == "partial\tadaptive (changed)"
    assert rows["assignment"] == "soft\tsoft"
    assert rows["strengths"] == "c 0.250, β 0.513\tc 0.310, β 0.180 (changed)"
    assert rows["global token"] == "used\tleft out (changed)"
    assert "3 decisions changed." in page.inner_text("#changes")
    assert "within noise" in page.inner_text("#changes dl")
    assert "3 photos are few" in page.inner_text("#changes")
    wait_for_text(page, "#map-facts", "calibrated to phone")
    sent = next(fields for method, path, fields in service.stub.calls if path == "/v1/calibrations")
    assert sent == {"name": "phone"}  # whether scores are calibrated is left to the service


def test_a_calibration_that_fails_says_why(open_page, service, photos):
    service.stub.failing_job = "3 of 3 photos are in the map; calibrate with photos the map does not hold"
    page = open_page(service.url, "#calibrate")
    choose(page, "calibrate-files", photos)
    page.click("#calibrate-send")
    wait_for_text(page, "#calibrate-alert", "3 of 3 photos are in the map")
    assert page.is_hidden("#changes")
    assert page.is_hidden("#job")
    assert page.is_enabled("#calibrate-send")  # the photos are kept


def test_another_calibration_can_be_put_in_use(open_page, service):
    town = service.stub.maps["town"]
    town.calibrations, town.active = ["day", "night"], "day"
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#map-facts", "calibrated to day")
    assert page.input_value("#active-select") == "day"
    page.select_option("#active-select", "night")
    page.click("#active-form button")
    wait_for_text(page, "#map-facts", "calibrated to night")
    page.select_option("#active-select", "")
    page.click("#active-form button")
    wait_for_text(page, "#map-facts", "not calibrated")
    assert town.active is None
    page.click("#tab-recognize")
    page.click(".options summary")
    choices = page.locator("[name=calibration] option").all_inner_texts()
    assert choices == ["active (none)", "day", "night", "none"]


def rows_of(page):
    """What the list of cameras says: name, photos seen, photos that taught."""
    rows = page.locator("#cameras-list tbody tr").all_inner_texts()
    return [tuple(cell.strip() for cell in row.split("\t")[:3]) for row in rows]


def test_cameras_are_listed_and_reset(open_page, service, photo):
    service.stub.cameras, service.stub.edit_api_key = {"door": 3, "cam0": 600}, "edits"
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#cameras-words", "2 of at most 64 cameras.")
    assert rows_of(page) == [("cam0", "600 photos", "300"), ("door", "3 photos", "2")]
    page.click("#tab-recognize")
    page.click(".options summary")
    page.fill("[name=camera]", "roof")
    ask(page, photo)
    wait_for_text(page, "#recognize-status", "adapted by 0 photos of roof")
    page.click("#tab-calibrate")  # updated whenever the tab is shown
    wait_for_text(page, "#cameras-words", "3 of at most 64 cameras.")
    assert rows_of(page)[0] == ("roof", "1 photo", "1")
    page.focus("[aria-label='Reset door']")
    page.keyboard.press("Enter")
    wait_for_text(page, "#calibrate-alert", "this needs the edit API key")
    assert "door" in service.stub.cameras
    page.fill("#api-key", "edits")
    page.click("text=Use API key")
    page.wait_for_selector("#api-key-form", state="hidden")
    page.click("[aria-label='Reset door']")
    wait_for_text(page, "#cameras-status", "Reset: door.")
    wait_for_text(page, "#cameras-words", "2 of at most 64 cameras.")
    assert set(service.stub.cameras) == {"cam0", "roof"}
    page.click("#cameras-reset")
    wait_for_text(page, "#cameras-words", "0 of at most 64 cameras.")
    assert service.stub.cameras == {}
    assert page.is_hidden("#cameras-reset")


def test_a_service_without_edits_lists_cameras_and_resets_none(open_page, service):
    service.stub.maps["town"].editable, service.stub.cameras = False, {"cam0": 2}
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#cameras-words", "1 of at most 64 cameras.")
    assert rows_of(page) == [("cam0", "2 photos", "1")]
    assert page.is_hidden("#cameras-reset")
    assert page.locator("#cameras-list button").count() == 0


def test_a_service_that_keeps_no_cameras_does_not_speak_of_them(open_page, service):
    service.stub.most = 0
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#map-facts", "30 photos")
    assert page.is_hidden("#cameras")

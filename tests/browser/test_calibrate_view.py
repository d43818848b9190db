"""The calibrate view: the job's progress, and what changed."""

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
    assert page.inner_text("#changes-title") == "What changed with phone"
    rows = dict(row.split("\t", 1) for row in page.locator("#changes tbody tr").all_inner_texts())
    assert rows["Kernel"] == "partial\tadaptive (changed)"
    assert rows["Assignment"] == "soft\tsoft"
    assert rows["Centring β"] == "0.510\t0.180 (changed)"
    assert rows["Global token"] == "used\tleft out (changed)"
    assert "4 decisions changed." in page.inner_text("#changes")
    assert "3 photos are few" in page.inner_text("#changes")
    wait_for_text(page, "#map-facts", "calibrated to phone")
    sent = next(fields for method, path, fields in service.stub.calls if path == "/v1/calibrations")
    assert sent == {"name": "phone"}  # whether scores are calibrated is left to the service


def test_a_calibration_that_fails_says_why(open_page, service, photos):
    service.stub.failing_job = "3 of 3 photos are in the map themselves; calibrate with photos the map does not hold"
    page = open_page(service.url, "#calibrate")
    choose(page, "calibrate-files", photos)
    page.click("#calibrate-send")
    wait_for_text(page, "#calibrate-alert", "3 of 3 photos are in the map themselves")
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
    page.click("text=Use this one")
    wait_for_text(page, "#map-facts", "calibrated to night")
    page.select_option("#active-select", "")
    page.click("text=Use this one")
    wait_for_text(page, "#map-facts", "not calibrated")
    assert town.active is None
    page.click("#tab-recognise")
    page.click(".options summary")
    choices = page.locator("[name=calibration] option").all_inner_texts()
    assert choices == ["in use (none)", "day", "night", "none"]


def test_what_was_learnt_from_queries_is_told_and_forgotten(open_page, service, photo):
    service.stub.learns, service.stub.edit_token = True, "edits"
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#self-words", "0 queries seen, the scores of 0 kept. From 16 on, answers are corrected")
    assert page.is_disabled("#self-reset")
    page.click("#tab-recognise")
    ask(page, photo)
    page.click("#tab-calibrate")  # told anew each time the tab is seen
    wait_for_text(page, "#self-words", "1 query seen, the scores of 1 kept. From 16 on")
    service.stub.seen = 600
    page.click("#tab-map")
    page.click("#tab-calibrate")
    wait_for_text(page, "#self-words", "600 queries seen, the scores of 512 kept. Answers are corrected")
    page.focus("#self-reset")
    page.keyboard.press("Enter")
    wait_for_text(page, "#calibrate-alert", "this needs the edit token")
    assert service.stub.seen == 600
    page.fill("#token", "edits")
    page.click("text=Use token")
    page.wait_for_selector("#token-form", state="hidden")
    page.click("#self-reset")
    wait_for_text(page, "#job-status", "forgot what it learnt")
    assert service.stub.seen == 0
    wait_for_text(page, "#self-words", "0 queries seen, the scores of 0 kept")


def test_a_service_without_edits_tells_what_was_learnt_and_does_not_forget(open_page, service):
    service.stub.maps["town"].editable, service.stub.learns = False, True
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#self-words", "0 queries seen")
    assert page.is_hidden("#self-reset")


def test_a_service_that_learns_nothing_does_not_speak_of_it(open_page, service):
    page = open_page(service.url, "#calibrate")
    wait_for_text(page, "#map-facts", "30 photos")
    assert page.is_hidden("#self")

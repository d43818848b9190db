"""API keys, several maps, and stored choices."""

from __future__ import annotations

from tests.browser.steps import IS_LOADED, ask, wait_for_text, wait_until


def test_a_wrong_api_key_is_told_and_the_right_one_opens_the_map(open_page, service, photo):
    service.stub.read_api_key = "right"
    page = open_page(service.url)
    wait_for_text(page, "#start-alert", "this needs the read API key of the service")
    assert page.evaluate("document.activeElement.id") == "api-key"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    wait_until(page, "document.querySelector('#api-key').value === ''")
    wait_for_text(page, "#start-alert", "this needs the read API key of the service")
    page.fill("#api-key", "right")
    page.click("text=Use API key")
    wait_for_text(page, "#map-facts", "30 photos")
    assert page.is_hidden("#api-key-form")
    assert page.is_hidden("#start-alert")
    assert page.evaluate("[sessionStorage.getItem('tfa-api-key'), localStorage.length]") == ["right", 0]
    ask(page, photo)  # photos of the map need the API key too
    wait_until(page, f"[...document.querySelectorAll('.hit img')].every({IS_LOADED})")
    page.reload()
    wait_for_text(page, "#map-facts", "30 photos")


def test_a_question_refused_for_want_of_an_api_key_is_asked_again_with_it(open_page, service, photo):
    page = open_page(service.url)
    wait_for_text(page, "#map-facts", "30 photos")
    service.stub.read_api_key = "right"
    ask(page, photo)
    assert "this needs the read API key" in page.inner_text("#recognize-alert")
    page.fill("#api-key", "right")
    page.click("text=Use API key")
    page.wait_for_selector(".hit")
    assert page.is_hidden("#recognize-alert")


def test_reading_may_need_less_than_editing(open_page, service):
    service.stub.read_api_key, service.stub.edit_api_key = "reader", "editor"
    page = open_page(service.url, "#map")
    page.fill("#api-key", "reader")
    page.click("text=Use API key")
    page.click("[aria-label='Remove street-001.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-alert", "this needs the edit API key of the service")
    assert 1 in service.stub.maps["town"].photos
    page.fill("#api-key", "editor")
    page.click("text=Use API key")
    page.wait_for_selector("#api-key-form", state="hidden")
    page.click("[aria-label='Remove street-001.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-status", "Removed street-001.jpg.")
    assert 1 not in service.stub.maps["town"].photos


def test_one_map_needs_no_chooser(open_page, service):
    page = open_page(service.url)
    wait_for_text(page, "#map-name", "town")
    assert page.is_hidden("#map-chooser")


def test_another_map_is_chosen_and_remembered(open_page, service, photo):
    service.stub.second_map()
    page = open_page(service.url)
    ask(page, photo)
    page.select_option("#map-select", "hall")
    wait_for_text(page, "#map-name", "hall")
    wait_for_text(page, "#plan-words", "8 positions.")
    assert page.is_hidden("#own")  # the answer was of the other map
    ask(page, photo)
    assert "x\u00a0" in page.locator(".hit").first.inner_text()  # metres, no degrees
    asked = [fields.get("map") for _, path, fields in service.stub.calls if path == "/v1/query"]
    assert asked == [None, "hall"]
    page.reload()
    wait_for_text(page, "#map-name", "hall")


def test_a_map_that_is_served_no_longer_is_forgotten(open_page, service):
    service.stub.second_map()
    page = open_page(service.url)
    page.select_option("#map-select", "hall")
    wait_for_text(page, "#map-name", "hall")
    del service.stub.maps["hall"]
    page.reload()
    wait_for_text(page, "#map-name", "town")
    assert page.is_hidden("#start-alert")

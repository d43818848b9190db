"""Tokens, several maps, and what is remembered."""

from __future__ import annotations

from tests.browser.steps import IS_LOADED, ask, wait_for_text, wait_until


def test_a_wrong_token_is_told_and_the_right_one_opens_the_map(open_page, service, photo):
    service.stub.read_token = "right"
    page = open_page(service.url)
    wait_for_text(page, "#start-alert", "this needs the read token of the service")
    assert page.evaluate("document.activeElement.id") == "token"
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    wait_until(page, "document.querySelector('#token').value === ''")
    wait_for_text(page, "#start-alert", "this needs the read token of the service")
    page.fill("#token", "right")
    page.click("text=Use token")
    wait_for_text(page, "#map-facts", "30 photos")
    assert page.is_hidden("#token-form")
    assert page.is_hidden("#start-alert")
    assert page.evaluate("[sessionStorage.getItem('tfa-token'), localStorage.length]") == ["right", 0]
    ask(page, photo)  # photos of the map need the token too
    wait_until(page, f"[...document.querySelectorAll('.hit img')].every({IS_LOADED})")
    page.reload()
    wait_for_text(page, "#map-facts", "30 photos")


def test_a_question_refused_for_want_of_a_token_is_asked_again_with_it(open_page, service, photo):
    page = open_page(service.url)
    wait_for_text(page, "#map-facts", "30 photos")
    service.stub.read_token = "right"
    ask(page, photo)
    assert "this needs the read token" in page.inner_text("#recognise-alert")
    page.fill("#token", "right")
    page.click("text=Use token")
    page.wait_for_selector(".hit")
    assert page.is_hidden("#recognise-alert")


def test_reading_may_need_less_than_editing(open_page, service):
    service.stub.read_token, service.stub.edit_token = "reader", "editor"
    page = open_page(service.url, "#map")
    page.fill("#token", "reader")
    page.click("text=Use token")
    page.click("[aria-label='Remove street-001.jpg']")
    page.click("#confirm button.danger")
    wait_for_text(page, "#map-alert", "this needs the edit token of the service")
    assert 1 in service.stub.maps["town"].photos
    page.fill("#token", "editor")
    page.click("text=Use token")
    page.wait_for_selector("#token-form", state="hidden")
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
    wait_for_text(page, "#plan-words", "8 positions of the map.")
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

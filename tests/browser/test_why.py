"""The why view: heat on both photos, words and their patches, lines between patches."""

from __future__ import annotations

import threading

from tests.browser.conftest import PHONE
from tests.browser.steps import DRAWING, ask, ask_why, drawing, finished_drawing, wait_until
from tests.waiting import PATIENCE

OVERLAY = ".pair canvas"


def test_both_photos_carry_their_heat(open_page, service, photo):
    page = open_page(service.url)
    ask_why(page, photo)
    assert page.inner_text("#why-title") == "Why street-002.jpg?"
    assert page.evaluate("document.activeElement.id") == "why-title"  # the reader is taken there
    assert "Confidence 0.97." in page.inner_text("#why")
    assert "of the 80 patches of your photo make up half" in page.inner_text("#why")
    assert "6 inliers: matching patches in the same spatial arrangement" in page.inner_text("#why")
    colours = page.eval_on_selector(
        OVERLAY,
        """canvas => [...document.querySelectorAll('.pair img')].map(image => {
          const [whole, own] = [canvas.getBoundingClientRect(), image.getBoundingClientRect()];
          const at = (x, y) => [...canvas.getContext('2d').getImageData(
            (own.left - whole.left + x * own.width) * canvas.width / whole.width,
            (own.top - whole.top + y * own.height) * canvas.height / whole.height, 1, 1).data];
          return { warm: at(0.48, 0.42), cold: at(0.03, 0.93), corner: at(0.97, 0.03) };
        })""",
    )
    for side in colours:
        assert side["warm"][0] > side["warm"][2] + 60  # orange: speaks for the match
        assert side["cold"][2] > side["cold"][0]  # blue: against it
        assert side["warm"][3] > side["corner"][3]  # strong where the contribution is


def test_one_overlay_is_shown_at_a_time(open_page, service, photo):
    page = open_page(service.url)
    ask_why(page, photo)
    heat = finished_drawing(page, OVERLAY)
    assert page.locator(".overlays input:checked").count() == 1
    page.check(".overlays >> text=Inliers")
    lines = drawing(page, OVERLAY)
    assert page.locator(".overlays input:checked").count() == 1
    assert page.is_hidden("#why .key.plus")  # the key of what is not shown
    page.check("text=Photos only")
    assert drawing(page, OVERLAY) == [0, 0]
    assert 0 < lines[0] < heat[0] / 2  # lines alone: no veil, no heat below them
    page.check("text=Heat map")
    assert drawing(page, OVERLAY) == heat


def test_the_pictures_are_scrolled_to_when_they_are_there(open_page, service, photo):
    page = open_page(service.url, viewport=PHONE, reduced_motion="reduce")
    ask(page, photo)
    held = threading.Event()
    town = service.stub.maps["town"]
    town.why = lambda key, why=town.why: (held.wait(PATIENCE), why(key))[1]
    page.click(".hit:nth-child(1) button")
    page.wait_for_selector("#why [role=status]")
    assert page.inner_text(".hit:nth-child(1) button") == "Loading…"
    before = page.evaluate("scrollY")
    held.set()
    wait_until(page, f"scrollY > {before} && document.querySelector('.hit button').textContent === 'Why?'")
    first = page.locator(".pair img").first.bounding_box()
    assert 0 <= first["y"] < PHONE["height"] / 3  # the first photo is seen, below what chooses the overlay
    assert first["y"] + first["height"] <= PHONE["height"]


def test_a_word_shows_its_patches_by_pointer_and_by_focus(open_page, service, photo):
    page = open_page(service.url)
    ask_why(page, photo)
    bare = finished_drawing(page, OVERLAY)
    words = page.locator(".words button")
    assert words.count() == 6
    assert "Word 3" in words.first.inner_text()
    assert "+0.120" in words.first.inner_text()
    assert "−0.029" in words.nth(4).inner_text()
    crops = words.first.locator(".crops canvas")  # the patches that it means: two of the photo, one of the map's
    assert crops.count() == 3
    assert "yours: 2 patches" in words.first.inner_text()
    assert all(crops.nth(at).evaluate(DRAWING)[0] > 1000 for at in range(3))
    words.first.hover()
    pointed = drawing(page, OVERLAY)
    page.mouse.move(2, 2)
    assert drawing(page, OVERLAY) == bare
    words.first.focus()
    focused = drawing(page, OVERLAY)
    words.nth(1).focus()
    assert pointed == focused != bare
    assert drawing(page, OVERLAY) not in (bare, focused)
    page.keyboard.press("Enter")  # kept when the focus goes on
    assert words.nth(1).get_attribute("aria-pressed") == "true"
    kept = drawing(page, OVERLAY)
    page.focus("#why-title")
    assert drawing(page, OVERLAY) == kept


def test_a_head_without_words_says_so(open_page, service, photo):
    service.stub.maps["town"].linearised = True
    page = open_page(service.url)
    ask_why(page, photo)
    told = page.inner_text("#why")
    assert "No visual words" in told
    assert "if the patch had more weight" in told
    assert "relative to the average" in told
    assert page.locator(".words").count() == 0
    assert page.locator("#why table tbody tr").count() == 3


def test_the_parts_add_up_in_a_table(open_page, service, photo):
    page = open_page(service.url)
    ask_why(page, photo)
    rows = page.locator("#why table tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [["local", "0.610"], ["global token", "0.200"], ["Score", "0.810"]]


def test_an_error_of_why_is_told_in_its_place(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    service.stub.read_api_key = "secret"
    page.click(".hit:nth-child(1) button")
    page.wait_for_selector("#why [role=alert]")
    assert "this needs the read API key" in page.inner_text("#why [role=alert]")
    assert page.is_visible("#api-key-form")

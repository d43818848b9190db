"""Keyboard, narrow screens, dark mode, reduced motion, names for everything."""

from __future__ import annotations

import time

import pytest

from tests.browser.conftest import PHONE
from tests.browser.steps import ask, ask_why, choose, wait_for_text
from tests.waiting import PATIENCE

TABS = ["recognize", "camera", "map", "calibrate", "report"]

# Contrast of every visible text with what lies behind it, by the formula of WCAG 2; the worst ones.
CONTRASTS = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest(':disabled, noscript')) continue;
    const style = getComputedStyle(node);
    const ink = node.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(parts(ink)), light(behind(node))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((one, other) => one[0] - other[0]);
}"""

UNNAMED = """() => [
  ...[...document.querySelectorAll('img')].filter(i => !i.hasAttribute('alt')),
  ...[...document.querySelectorAll('input:not([hidden]), select, progress')].filter(i => !i.labels || !i.labels.length),
  ...[...document.querySelectorAll('button')].filter(b => !b.textContent.trim() && !b.ariaLabel),
  ...[...document.querySelectorAll('svg.chart, canvas.plan-canvas')].filter(c => !c.getAttribute('aria-label')),
].map(node => node.outerHTML.slice(0, 120))"""


def offered(page):
    """The pickers that the page opens from now on. Asked for early: the browser takes a moment to hand them over."""
    pickers = []
    page.on("filechooser", lambda picker: pickers.append(picker))
    return pickers


def choose_in(pickers, page, photo):
    end = time.monotonic() + PATIENCE
    while not pickers:
        assert time.monotonic() < end, "no file picker was opened"
        page.wait_for_timeout(20)  # in which the browser hands over its events
    pickers.pop().set_files(photo)


def everything_shown(page, photo):
    """Go through all views so that all that they show has been filled in."""
    ask_why(page, photo)
    for tab in TABS[1:]:
        page.click(f"#tab-{tab}")
        filled = {"map": "#photos li", "calibrate": "#calibrate-form", "report": ".headline"}
        page.wait_for_selector(filled.get(tab, f"#{tab}"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_both_schemes(open_page, service, photo, scheme):
    page = open_page(service.url, color_scheme=scheme)
    page.emulate_media(reduced_motion="reduce", color_scheme=scheme)
    everything_shown(page, photo)
    service.stub.read_api_key = "x"  # for an alert and the API key's form
    page.click("#tab-recognize")
    page.click(".hit:nth-child(2) button")
    page.wait_for_selector("#why [role=alert]")
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    for tab in TABS:
        page.click(f"#tab-{tab}")
        found = page.evaluate(CONTRASTS)
        assert len(found) > 10
        assert found[0][0] >= 4.5, found[:5]
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(245, 246, 248)", "dark": "rgb(15, 20, 26)"}[scheme]


def test_all_is_done_by_keyboard_alone(open_page, service, photo):
    page = open_page(service.url)
    pickers = offered(page)
    wait_for_text(page, "#map-facts", "30 photos")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"the focus on {selector} cannot be seen"
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("[role=tab]")
    tab_to("#recognize-files .drop")
    page.keyboard.press("Enter")
    choose_in(pickers, page, photo)
    page.wait_for_selector(".hit")
    tab_to(".hit button")
    page.keyboard.press("Enter")
    page.wait_for_selector(".words button")
    tab_to(".words button")
    page.focus("#tab-recognize")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-map", "aria-selected") == "true"
    assert page.is_hidden("#recognize")
    page.wait_for_selector("#photos li")
    tab_to("[aria-label='Remove street-000.jpg']")
    page.keyboard.press("Enter")
    tab_to("#confirm .danger")
    page.keyboard.press("Enter")
    wait_for_text(page, "#map-status", "Removed street-000.jpg.")


def test_arrows_home_and_end_move_between_tabs(open_page, service):
    page = open_page(service.url)
    page.focus("#tab-recognize")
    seen = []
    for key in ("ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(key)
        seen.append(page.evaluate("document.activeElement.id"))
    assert seen == ["tab-camera", "tab-report", "tab-recognize", "tab-report", "tab-recognize"]
    assert [page.get_attribute(f"#tab-{tab}", "tabindex") for tab in TABS] == ["0", "-1", "-1", "-1", "-1"]
    assert page.get_attribute("#recognize", "role") == "tabpanel"


def test_a_phone_shows_one_column_and_a_camera_button(open_page, service, photo):
    page = open_page(service.url, viewport=PHONE, has_touch=True, is_mobile=True)
    pickers = offered(page)
    camera = page.locator("#recognize-files .camera")
    assert camera.is_visible()
    assert page.get_attribute("#recognize-files input >> nth=1", "capture") == "environment"
    camera.tap()
    choose_in(pickers, page, photo)
    page.wait_for_selector(".hit")
    own, hits = page.locator("#own").bounding_box(), page.locator("#matches").bounding_box()
    assert own["y"] + own["height"] <= hits["y"]
    everything_shown(page, photo)
    for tab in TABS:
        page.tap(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], tab
        small = page.evaluate(
            "[...document.querySelectorAll('button, select')].filter(b => b.checkVisibility() && "
            "b.getBoundingClientRect().height < 32).map(b => b.outerHTML)"
        )
        assert small == []  # large enough for a thumb


def test_a_desk_has_no_camera_button(open_page, service):
    page = open_page(service.url)
    assert page.is_hidden("#recognize-files .camera")


def test_everything_has_a_name(open_page, service, photo, photos):
    page = open_page(service.url)
    everything_shown(page, photo)
    choose(page, "calibrate-files", photos)
    assert page.evaluate(UNNAMED) == []
    assert page.get_attribute("html", "lang") == "en"


def test_nothing_moves_for_those_who_asked_for_it(open_page, service, photo):
    page = open_page(service.url, reduced_motion="reduce")
    ask(page, photo)
    assert page.eval_on_selector(".hit .bar i", "bar => getComputedStyle(bar).transitionDuration") == "0s"
    page.emulate_media(reduced_motion="no-preference")
    assert page.eval_on_selector(".hit .bar i", "bar => getComputedStyle(bar).transitionDuration") == "0.3s"

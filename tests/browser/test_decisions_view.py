"""The decisions view: reasons in words, evidence drawn."""

from __future__ import annotations

import threading

from tests.browser.steps import wait_for_text
from tests.waiting import PATIENCE
from tfa.core.text import list_rules


def test_decisions_are_told_in_words_and_drawn(open_page, service):
    town, held = service.stub.maps["town"], threading.Event()
    town.report = lambda report=town.report: (held.wait(PATIENCE), report())[1]
    page = open_page(service.url, "#decisions")
    wait_for_text(page, "#decisions-status", "Computing the report.")
    assert page.get_attribute("#decisions-status", "role") == "status"
    held.set()
    wait_for_text(page, ".headline", "30 photos")
    assert page.inner_text("#decisions-status") == ""
    wait_for_text(page, "dd", "hard is used only if it covers more of the map")
    assert page.inner_text(".headline").startswith("30 photos, 1 near-duplicate group, expected recall 91 %")
    assert "global token: used" in page.inner_text("dl")
    assert page.inner_text(".noise").endswith("0.6 standard errors from flipping, within noise (x)")
    titles = page.locator("#decisions-body h3").all_text_contents()
    assert titles[:5] == ["What to do", "Weak spots", "Near duplicates", "Hubs", "How the map was configured"]
    assert page.locator(".small-photo").count() == 4  # the loneliest, two near duplicates, a hub
    assert list_rules()["hub"] in page.inner_text("#decisions-body")
    charts = page.locator("svg.chart")
    assert charts.count() == 3
    texts = [" ".join(charts.nth(at).locator("text").all_text_contents()) for at in range(3)]
    assert "support: distinct images reached" in texts[0]
    assert "agreement of vocabularies" in texts[0]
    assert "variance relative to the first" in texts[1]
    assert "original similarity" in texts[2]
    assert "final similarity" in texts[2]
    assert charts.nth(0).locator(".point").count() == 6
    assert charts.nth(0).locator(".ring").count() == 1
    assert charts.nth(0).locator(".letter").all_text_contents() == list("ABCDEF")
    assert charts.nth(1).locator("path.one, path.other").count() == 2
    assert charts.nth(2).locator("path.dots").get_attribute("d").count("M") == 400
    assert "soft/partial ✓ chosen" in " ".join(page.inner_text("#decisions-body").split())
    assert "γ = 0.500" in page.inner_text("#decisions-body")
    assert "correlation 0.9" in page.inner_text("#decisions-body")


def test_a_calibration_in_use_is_told_beside_the_maps_own_decisions(open_page, service):
    town = service.stub.maps["town"]
    town.calibrations, town.active = ["day"], "day"
    page = open_page(service.url, "#decisions")
    wait_for_text(page, "h3", "calibrated to day")
    assert "carrier: adaptive" in page.locator("dl").nth(0).inner_text()
    page.click("summary:has-text('Without a calibration')")
    assert "assignment: soft" in page.locator("details dl").inner_text()


def test_drawings_stay_inside_their_frames(open_page, service):
    page = open_page(service.url, "#decisions")
    page.wait_for_selector(".chart")
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.chart')].flatMap(chart => {
          const box = chart.viewBox.baseVal;
          return [...chart.querySelectorAll('path, circle, text')].filter(mark => {
            const own = mark.getBBox();
            if (mark.hasAttribute('transform')) return false; // the turned label
            return own.x < 0 || own.y < 0 || own.x + own.width > box.width || own.y + own.height > box.height;
          }).map(mark => mark.outerHTML.slice(0, 80));
        })"""
    )
    assert outside == []


def test_evidence_that_a_map_does_not_keep_is_told(open_page, service):
    town = service.stub.maps["town"]
    plain = town.evidence()
    town.evidence = lambda: {**plain, "candidates": [], "spectrum": None, "similarity": {"original": [], "final": []}}
    page = open_page(service.url, "#decisions")
    wait_for_text(page, "#decisions-body", "This map stores no spectrum.")
    assert page.locator(".chart").count() == 0


def test_ticks_are_round(open_page, service):
    page = open_page(service.url)
    found = page.evaluate(
        """async () => {
          const { ticks, around } = await import('/static/charts.js');
          return [ticks(0, 1), ticks(5.8, 9.3), around([2, 2]), around([])];
        }"""
    )
    assert found[0] == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert found[1] == [6, 7, 8, 9]
    assert found[2][0] < 2 < found[2][1]
    assert found[3] == [0, 1]

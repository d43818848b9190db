"""The report view: advice first, outliers with their photos, no decisions."""

from __future__ import annotations

import threading

from tests.browser.steps import wait_for_text
from tests.waiting import PATIENCE
from tfa.core.text import list_rules


def test_the_report_begins_with_advice_and_has_no_decisions(open_page, service):
    town, held = service.stub.maps["town"], threading.Event()
    town.report = lambda report=town.report: (held.wait(PATIENCE), report())[1]
    page = open_page(service.url, "#report")
    wait_for_text(page, "#report-status", "Computing the report.")
    assert page.get_attribute("#report-status", "role") == "status"
    held.set()
    wait_for_text(page, ".headline", "30 photos")
    assert page.inner_text("#report-status") == ""
    assert page.inner_text(".headline").startswith("30 photos, 1 near-duplicate group, expected recall 91 %")
    titles = page.locator("#report-body h3").all_text_contents()
    assert titles == ["What to do", "Weak spots", "Near duplicates", "Hubs"]
    assert page.locator(".small-photo").count() == 4  # the loneliest, two near duplicates, a hub
    assert list_rules()["hub"] in page.inner_text("#report-body")
    assert page.locator("#report-body dl").count() == 0


def test_an_older_report_does_not_replace_a_newer_one(open_page, service):
    town = service.stub.maps["town"]
    page = open_page(service.url, "#report")
    wait_for_text(page, ".headline", "30 photos")
    town.report = lambda report=town.report: {**report(), "headline": "31 photos"}
    page.evaluate("import('/static/report.js').then(({ showReport }) => showReport())")
    wait_for_text(page, ".headline", "31 photos")

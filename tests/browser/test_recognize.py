"""The view that recognises a photo: answer, plan, options, errors."""

from __future__ import annotations

from typing import Literal

from tests.browser.steps import IS_LOADED, ask, drawing, dropped, wait_for_text, wait_until
from tests.browser.stub_answers import HOSTILE
from tfa.core.plain import hints, opt
from tfa.types import QueryOptions


def test_a_photo_is_seen_beside_its_matches(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    wait_until(page, "document.querySelector('#own-photo').naturalWidth === 400")
    assert page.inner_text("#own-name") == "asked.jpg"
    assert page.locator(".hit").count() == 5
    best = page.locator(".hit").first
    assert "street-002.jpg" in best.inner_text()
    assert "Confidence 0.97" in best.inner_text()
    assert "12 inliers" in best.inner_text()
    assert "0.810" not in page.inner_text("#recognize")  # the score
    assert "52.50040°" in best.inner_text()
    meter = best.get_by_role("meter")
    assert float(meter.get_attribute("aria-valuenow")) == 0.97
    bar = "document.querySelector('.hit [role=meter]')"  # which grows
    wait_until(page, f"Math.abs({bar}.firstChild.getBoundingClientRect().width / {bar}.clientWidth - 0.97) < 0.01")
    wait_until(page, f"[...document.querySelectorAll('.hit img')].every({IS_LOADED})")
    assert "5 matches, not calibrated" in page.inner_text("#recognize-status")
    verdict = [
        "✓ recognized", "its patches match one place far better than others · confidence 0.97",
        "position 52.50040° N, 13.30246° E ± 8 m (2 images, 95 % agreement)",
    ]  # fmt: skip
    banner = page.locator("#verdict")
    assert [one.replace("\u00a0", " ") for one in banner.locator("> *").all_inner_texts()] == verdict
    assert banner.get_attribute("class") == "verdict recognized"
    assert banner.bounding_box()["y"] < best.bounding_box()["y"]
    wait_for_text(page, "#plan-words", "circle: the estimated position")
    own, other = page.locator("#own").bounding_box(), best.bounding_box()
    assert own["x"] + own["width"] <= other["x"]  # side by side


def test_photos_of_a_camera_say_what_they_were_adapted_by_and_if_the_camera_is_lost(open_page, service, photo):
    page = open_page(service.url)
    page.click(".options summary")
    page.fill("[name=camera]", " cam0 ")
    ask(page, photo)
    wait_for_text(page, "#recognize-status", "not calibrated, adapted by 0 photos of cam0, 0.01 s.")
    page.click("text=Query again")
    wait_for_text(page, "#recognize-status", "adapted by 1 photo of cam0")
    asked = [fields for _, path, fields in service.stub.calls if path == "/v1/query"]
    assert [fields["camera"] for fields in asked] == ["cam0", "cam0"]
    assert "sequence" not in asked[1]
    service.stub.lost = 0.9
    page.select_option("[name=sequence]", "true")
    page.click("text=Query again")
    wait_for_text(page, "#recognize-status", "No matches, adapted by 2 photos of cam0.")
    assert page.locator("#verdict > *").all_inner_texts() == [
        "not recognized", "the camera has been lost for 4 frames · confidence 0.10",
    ]  # fmt: skip
    assert page.locator(".hit").count() == 0
    page.fill("[name=camera]", "")
    page.select_option("[name=sequence]", "")
    page.click("text=Query again")
    page.wait_for_selector(".hit")
    assert "adapted" not in page.inner_text("#recognize-status")


def test_a_photo_can_be_dropped(open_page, service):
    page = open_page(service.url)
    dropped(page, ".drop", "dropped.jpg")
    page.wait_for_selector(".hit")
    assert page.inner_text("#own-name") == "dropped.jpg"


def test_a_photo_dropped_beside_the_zone_does_not_replace_the_page(open_page, service):
    page = open_page(service.url)
    dropped(page, "h1", "stray.jpg")
    assert page.url.startswith(service.url)
    assert page.locator(".hit").count() == 0


def test_what_the_service_says_stays_text(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    assert HOSTILE in page.locator(".hit").nth(1).inner_text()
    page.click("#tab-map")
    wait_for_text(page, "#photos b", HOSTILE)
    assert page.locator("img[src=x]").count() == 0
    assert page.title() == "town – place map"


def test_before_the_first_photo_the_view_says_what_it_does_and_offers_photos_to_try(open_page, service):
    page = open_page(service.url)
    page.wait_for_selector("#start .small-photo")
    assert "Where was a photo taken?" in page.inner_text("#start")
    page.click("[aria-label='Try street-007.jpg']")
    page.wait_for_selector(".hit")
    assert page.inner_text("#own-name") == "street-007.jpg"
    assert page.is_hidden("#start")
    service.stub.maps["town"].photos.clear()
    page.reload()
    wait_for_text(page, "#start", "This map has no images")
    page.click("text=Go to Map")
    wait_for_text(page, "#photos-none", "The map has no images. Add photos above")


def test_the_plan_shows_all_positions_and_marks_the_matches(open_page, service, photo):
    page = open_page(service.url)
    wait_for_text(page, "#plan-words", "30 positions.")
    bare = drawing(page, "#plan-canvas")
    ask(page, photo)
    wait_for_text(page, "#plan-words", "numbered: the 5 matches")
    assert "30 positions" in page.get_attribute("#plan-canvas", "aria-label")
    marked = drawing(page, "#plan-canvas")
    assert bare[0] > 300
    assert marked != bare
    page.hover(".hit >> nth=2")  # a match that is pointed at stands out
    assert drawing(page, "#plan-canvas") != marked


def test_the_plan_keeps_proportions_of_degrees_and_metres(open_page, service):
    page = open_page(service.url)
    found = page.evaluate(
        """async () => {
          const { project } = await import('/static/plan.js');
          const { PlanView } = await import('/static/plan_view.js');
          const globe = project('latlon', [[1, 179.9999, 60], [2, -179.9999, 60], [3, 179.9999, 60.0001]]);
          const flat = project('xy', [[1, 10, 20], [2, 13, 24]]);
          return { globe, flat, round: [99, 100, 260, 0.7].map(PlanView.roundLength) };
        }"""
    )
    east, north = found["globe"][1]["x"], found["globe"][2]["y"]
    assert abs(east - 11.12) < 0.01  # 0.0002° at 60° N, the short way over the date line
    assert abs(north - 11.12) < 0.01  # 0.0001°
    assert found["flat"][1] == {"id": 2, "x": 3, "y": 4}
    assert found["round"] == [50, 100, 200, 0.5]


def test_options_reach_the_service(open_page, service, photo):
    page = open_page(service.url)
    ask(page, photo)
    page.click(".options summary")
    page.fill("[name=k]", "3")
    page.select_option("[name=rerank]", "true")
    page.click("text=Query again")
    wait_until(page, "document.querySelectorAll('.hit').length === 3")
    sent = [fields for method, path, fields in service.stub.calls if path == "/v1/query"]
    assert "rerank" not in sent[0]  # as the map decided
    assert sent[1]["k"] == "3"
    assert sent[1]["rerank"] == "true"
    page.fill("[name=min_confidence]", "0.99")
    page.click("text=Query again")
    wait_for_text(page, "#recognize-status", "The matches are withheld. Lower the min confidence in the options")
    assert "confidence 0.97" in page.inner_text("#verdict")


class MoreOptions(QueryOptions):
    """Options of a later version."""

    weather: Literal["dry", "wet"] | None = opt(None, "Weather of the photo.")
    floors: tuple[int, ...] = opt((), "Floors that may answer.")


def test_every_option_that_the_service_describes_is_in_the_form(open_page, service, photo):
    service.stub.options = MoreOptions
    page = open_page(service.url)
    page.click(".options summary")
    shown = page.eval_on_selector_all("#recognize-fields [name]", "inputs => inputs.map(input => input.name)")
    assert shown == list(hints(MoreOptions))
    assert page.get_attribute("[name=weather]", "title") == "Weather of the photo."
    page.select_option("[name=weather]", "wet")
    page.fill("[name=floors]", "1, 2")
    page.fill("[name=candidates]", "auto")
    page.fill("[name=sessions]", "Monday, 5 May\n\n noon")
    ask(page, photo)
    sent = next(fields for _, path, fields in service.stub.calls if path == "/v1/query")
    sessions = ["Monday, 5 May", "noon"]
    assert sent == {"weather": "wet", "floors": "1, 2", "candidates": "auto", "sessions": sessions}


def test_a_file_that_is_no_photo_gets_the_services_own_sentence(open_page, service, tmp_path, photo):
    page = open_page(service.url)
    bad = tmp_path / "notes.jpg"
    bad.write_text("this is text")
    ask(page, bad)
    alert = page.locator("#recognize-alert")
    assert alert.get_attribute("role") == "alert"
    assert alert.inner_text() == "notes.jpg is not a photo that can be read; send JPEG, PNG or WebP"
    assert page.is_hidden("#own")
    ask(page, photo)
    assert page.is_hidden("#recognize-alert")  # gone with the next answer


def test_a_service_that_went_away_is_told(open_page, service, photo):
    page = open_page(service.url)
    wait_for_text(page, "#map-facts", "30 photos")
    page.context.set_offline(True)
    ask(page, photo)
    assert "The service does not answer" in page.inner_text("#recognize-alert")

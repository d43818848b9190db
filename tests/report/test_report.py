"""What a report finds in a map, and the page it writes."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.report.conftest import photo
from tests.worlds import world
from tfa.core.text import list_rules
from tfa.maps import PlaceMap
from tfa.pipeline import fit
from tfa.report.collect import collect_report, give_advice, write_headline
from tfa.report.html import Axis, bars
from tfa.report.neighbors import Resemblance, find_hubs, find_lonely, group_near_duplicates, measure_resemblance
from tfa.report.page import write_report
from tfa.types import VERDICTS, HeadSpec


def made(first, best=None, alike=(), images=None) -> Resemblance:
    first = np.array(first)
    best = np.ones(len(first)) if best is None else np.array(best, float)
    return Resemblance(np.arange(len(first)), images or len(first), first, best, np.array(alike, int).reshape(-1, 2))


# --- resemblance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_resemblance_is_that_of_the_compiled_vectors(seed):
    scorer = fit(world(30, seed=seed), HeadSpec(words=6)).scorer(0)
    alive = np.delete(np.arange(30), [4, 9])
    found = measure_resemblance(scorer, alive)
    psi = scorer.compile().database[alive].astype(float)
    centred = psi - psi.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    kernel, cosines = psi @ psi.T, unit @ unit.T
    for scores in (kernel, cosines):
        np.fill_diagonal(scores, -np.inf)
    np.testing.assert_allclose(found.best, cosines.max(axis=1), atol=1e-4)
    expected = np.argsort(-kernel, axis=1)[:, :5]
    assert (found.first == expected).mean() > 0.98  # ties of the last digit aside
    assert found.images == 28


def test_copies_of_a_photo_hide_each_other_and_are_near_duplicates(town):
    scorer = town.state.head.scorer
    found = measure_resemblance(scorer, town.rows)
    names = [Path(record.path).stem for record in town.images]
    one, copy = names.index("05"), names.index("05copy")
    assert copy not in found.first[one]
    assert one not in found.first[copy]
    groups = [[names[i] for i in group] for group in group_near_duplicates(found)]
    assert ["03", "03a", "03b"] in groups
    assert ["05", "05copy"] in groups
    assert len(groups) == 2


def test_a_large_map_asks_evenly_spaced_images():
    scorer = fit(world(30), HeadSpec(words=6)).scorer(0)
    found = measure_resemblance(scorer, np.arange(30), most=7)
    assert found.queries.tolist() == [0, 5, 10, 14, 19, 24, 29]
    assert found.first.shape == (7, 5)


def test_images_that_are_all_alike_have_no_cosine():
    from tfa.core.tokens import Tokens

    one = world(1)
    tokens = Tokens(np.repeat(np.asarray(one.patches), 4, axis=0), np.repeat(one.cls, 4, axis=0))
    found = measure_resemblance(fit(tokens, HeadSpec(words=4)).scorer(0), np.arange(4))
    assert group_near_duplicates(found) == [[0, 1, 2, 3]]
    assert (found.first == -1).all()
    assert find_lonely(found) == []
    assert find_hubs(found) == []


def test_groups_are_led_and_do_not_chain():
    chain = [(0, 1), (1, 2), (2, 3)]
    assert group_near_duplicates(made([[0]] * 5, alike=chain)) == [[0, 1], [2, 3]]
    assert group_near_duplicates(made([[0]] * 5)) == []


def test_a_hub_is_returned_far_more_often_than_is_usual():
    first = [[9, (i + 1) % 40, (i + 2) % 40, (i + 3) % 40, (i + 4) % 40] for i in range(40)]
    assert [image for image, _ in find_hubs(made(first))] == [9]
    assert find_hubs(made(first))[0][1] == 44
    assert find_hubs(made([[1], [0]])) == []


def test_a_lonely_image_is_unlike_all_and_nobodys_answer():
    first = [[(i + 1) % 19] for i in range(20)]  # no query returns image 19
    best = np.r_[np.linspace(0.8, 0.9, 19), 0.2]
    assert find_lonely(made(first, best)) == [(19, pytest.approx(0.2))]
    assert find_lonely(made([[19]] * 20, best)) == []
    assert find_lonely(made(np.zeros((0, 5), int), [])) == []


# --- advice ------------------------------------------------------------------------------------------------------

WELL = {
    "path": "town.tfa", "images": 100, "removed_images": 0, "unseen_share": 0.0, "verification": {"admitted": True},
    "calibrations": [{"name": "night", "calibration": {"used": 64, "score": True}}],
}  # fmt: skip


def told(facts, *rest):
    return [one.sentence for one in give_advice(facts, *rest)]


def test_a_map_that_is_well_gets_no_advice():
    assert told(WELL, [], [], []) == []


def test_every_trouble_is_told_with_its_command():
    image = {"id": 7, "image": "a.jpg", "path": "a.jpg"}
    groups = [{"images": [image] * 8}]
    hubs = [{**image, "returned_by": 60}]
    assert "tfa refit town.tfa" in told({**WELL, "unseen_share": 0.3}, [], [], [])[0]
    assert "40 of 140" in told({**WELL, "removed_images": 40}, [], [], [])[0]
    assert "tfa remove town.tfa 7 7 7" in told(WELL, groups, [], [])[0]
    assert told(WELL, [], hubs, []) == []  # its scores are calibrated
    [said] = told({**WELL, "calibrations": []}, [], hubs, [])
    assert "image 7 by 60 others" in said
    assert "tfa calibrate town.tfa" in said
    [few] = told(
        {**WELL, "calibrations": [{**WELL["calibrations"][0], "calibration": {"used": 8, "score": True}}]}, [], [], []
    )
    assert "--name night" in few
    assert few.startswith("Calibrate night again with 64 photos: it used only 8. Run: tfa calibrate")
    assert "(7)" in told(WELL, [], [], [{**image, "cosine": 0.1}])[0]
    assert "--rerank" in told({**WELL, "verification": None}, [], [], [])[0]


def test_a_headline_says_how_many_how_well_and_what_to_do():
    facts = {**WELL, "answers": {"calibration": "night"}}
    recall = [{"calibration": "night", "share": 0.905}, {"calibration": "day", "share": 0.5}]
    assert write_headline(facts, [1, 2, 3], recall, []) == "100 photos, 3 near-duplicate groups, expected recall 90 %"
    few = {
        **facts,
        "images": 1,
        "calibrations": [{**WELL["calibrations"][0], "calibration": {"used": 8, "score": True}}],
    }
    said = write_headline(few, [], [*recall, {"calibration": None, "share": 0.2}], give_advice(few, [], [], []))
    assert said == "1 photo, no near duplicates, expected recall 20 %, calibrate for night with more photos"
    facts["answers"]["calibration"] = None
    assert "expected recall unknown" in write_headline(facts, [1], recall, [])


# --- page --------------------------------------------------------------------------------------------------------


class Checker(HTMLParser):
    """Tags that are opened are closed, and nothing is fetched."""

    VOID = frozenset({"meta", "img", "path", "circle", "rect", "polyline", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_one_file_that_needs_no_other(town, tmp_path):
    report = collect_report(town)
    json.dumps(report, allow_nan=False)
    write_report(tmp_path / "report.html", report)
    text = (tmp_path / "report.html").read_text("utf-8")
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.addresses
    assert all(address.startswith("data:image/") for address in checker.addresses)
    assert "http" not in re.sub(r"data:[^\"]*", "", text)
    assert checker.tags.count("svg") == 1
    assert "prefers-color-scheme: dark" in text
    assert "05copy.png" in text
    titles = ["What to do", "Expected recall", "Weak spots", "Near duplicates", "Hubs", "The map"]
    assert re.findall("<h2>(.*?)</h2>", text) == titles
    assert '<code class="command">tfa report ' in text
    assert '<p class="headline">15 photos, 2 near-duplicate groups, expected recall unknown' in text
    assert "carrier" not in text  # `tfa info --evidence` has the decisions
    shown = ("sure", "expected_recall", "near_duplicate", "hub", "least_recognised")
    for rule in map(list_rules().__getitem__, shown):
        assert html.escape(rule).replace("&#x27;", "&#39;") in text


def test_the_least_recognised_photos_have_their_hits_and_verdicts(town, tmp_path):
    calibrated, camera = PlaceMap.load(town.path, encoder=FakeEncoder()), tmp_path / "camera"
    calibrated.storage.path = None  # the town is shared
    for place in range(8):
        photo(camera / f"{place}.png", place, 90 + place, 0.3)
    calibrated.calibrate(camera, "night")
    report = collect_report(calibrated, calibrated.query_many(camera, k=1))
    trust = [one["hit"]["confidence"] for one in report["least_recognised"]]
    assert trust == sorted(trust)
    assert len(trust) == 6
    assert report["headline"].endswith("calibrate for night with more photos")
    write_report(tmp_path / "report.html", report)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.count('<div class="pair">') == 6
    verdicts = [one["verdict"] for one in report["least_recognised"]]
    shown = [text.count(f" · {verdict}</figcaption>") for verdict in VERDICTS]
    assert shown == [verdicts.count(verdict) for verdict in VERDICTS]


def test_names_are_escaped_and_missing_photos_are_named(town, tmp_path):
    report = collect_report(town)
    evil = {"id": 1, "image": "<script>.png", "path": str(tmp_path / "absent.png"), "returned_by": 9}
    report = {**report, "hubs": [evil], "lonely": [], "duplicates": [], "advice": []}
    write_report(tmp_path / "report.html", report)
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<script>" not in text
    assert "&lt;script&gt;.png" in text
    assert "photo is missing" in text
    assert "Nothing to do" in text


def test_plots_stand_equal_and_extreme_numbers():
    for svg in (bars([0, 3], "x", "y", "alt"), bars([5], "x", "y", "alt")):
        assert "nan" not in svg
        assert svg.count("<text") >= 3
    axis = Axis(0, 10, 0, 100)
    assert axis(5) == pytest.approx(50)
    assert axis.ticks() == pytest.approx([0, 2, 4, 6, 8, 10])

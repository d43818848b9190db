"""The failure explorer in a real browser: its counts are those of `tfa bench score`, and keys reach everything."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.benchmarks.figure_records import write_photos
from tests.benchmarks.synthetic_records import named, synthetic_record, synthetic_truth, written
from tests.browser.conftest import PHONE
from tests.browser.steps import drawing
from tests.browser.test_access import CONTRASTS, UNNAMED
from tfa.evaluate.explorer import UPLOT, write_explorer
from tfa.evaluate.judgement import EvaluatedHit, JudgedAnswer, JudgedQuery, Judgement, Run
from tfa.report.html import ReportTable, TableRow
from tfa.types import Position

QUERIES, IMAGES = 25, 30
LEVELS = "rows => rows.map(row => JSON.parse(document.getElementById('content').textContent).runs[0].answers[row][0])"


def shell(*args: Any) -> str:
    from tfa.cli.app import app

    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of two heads, photos with positions, and the page of both."""
    root, rng = tmp_path_factory.mktemp("explored"), np.random.default_rng(3)
    truth = synthetic_truth([[q, q + 1] if q != 7 else [] for q in range(QUERIES)], database=IMAGES)
    records = []
    for name, share in (("vlad", 0.6), ("bow", 0.5)):
        order = []
        for query in range(QUERIES):
            first = query if rng.random() < share else IMAGES - 1 if rng.random() < 0.4 else rng.integers(IMAGES)
            order.append([first, *(image for image in rng.permutation(IMAGES) if image != first)][:20])
        confidence = rng.normal(5, 1, (QUERIES, 1, 1)).round(1)
        records.append(synthetic_record(truth, np.array(order)[:, None, None], confidence=confidence, head=named(name)))
    written(root / "results", truth, *records)
    write_photos(root / "photos", truth, missing=("queries/3.png",))
    places = [f"{name},{10 * at},{5 * (at % 3)}" for at, name in enumerate(truth.database)]
    places += [f"{name},{10 * at + 2},{at % 3}" for at, name in enumerate(truth.queries)]
    (root / "photos" / "positions.csv").write_text("\n".join(["file,x,y", *places, ""]))
    heads = ["--head", "vlad", "--head", "bow"]
    shell(
        "bench", "explore", "--records", root / "results", *heads, "--photos", root / "photos", "--out", root / "p.html"
    )
    return root


@pytest.fixture
def explorer(town, open_page):
    return lambda hash="", **options: open_page((town / "p.html").as_uri(), hash, **options)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def listed(page: Any) -> list[tuple[int, str]]:
    """Number and marks of each row."""
    numbers, verdicts = (page.locator(f"#list .{kind}").all_inner_texts() for kind in ("number", "verdict"))
    return [(int(number), re.sub(r"[^✓✗|]", "", mark)) for number, mark in zip(numbers, verdicts, strict=True)]


def chosen(page: Any) -> int:
    return int(page.inner_text("#detail-title").split(" · ")[0])


def test_counts_are_those_of_the_score_and_follow_the_threshold(explorer, town):
    page = explorer()
    told = {one["head"]: one for one in json.loads(shell("bench", "score", town / "results", "--json"))}
    vlad = told["vlad"]
    right = round(vlad["recalls"]["1"]["mean"] * vlad["evaluated"])
    assert numbers(page.inner_text("#counts"))[:3] == [QUERIES, right, QUERIES - right]
    cells = page.locator("table tbody tr").first.inner_text().split("\t")
    assert cells[1:5] == [f"{100 * vlad['recalls'][k]['mean']:.1f}" for k in ("1", "5", "10", "20")]
    assert cells[5:7] == [f"{100 * vlad['acceptance'][name]['mean']:.1f}" for name in ("area", "recall_at_99")]
    marks = [mark[0] for _, mark in listed(page)]
    assert marks == ["✗"] * (QUERIES - right) + ["✓"] * right  # wrong ones first
    surest = page.evaluate(LEVELS, [number for number, _ in listed(page)])
    assert surest == [*sorted(surest[: QUERIES - right], reverse=True), *sorted(surest[QUERIES - right :])]

    def accepted() -> list[float]:
        return numbers(page.inner_text("#threshold-counts"))[:4]

    curve = vlad["acceptance"]["curve"]
    for share, recall, precision in zip(*(curve[name] for name in ("answered", "recall", "precision")), strict=True):
        level = sorted(surest, reverse=True)[round(share * QUERIES) - 1]
        page.evaluate(
            "value => { const s = document.getElementById('threshold'); s.step = 'any'; s.value = value;"
            " s.dispatchEvent(new Event('input')); }",
            level,
        )
        taken, good = round(share * QUERIES), round(recall * QUERIES)
        assert accepted() == [taken, QUERIES, good, taken - good]
        assert precision == pytest.approx(good / taken)
    before = drawing(page, "#curve canvas")
    everything = accepted()
    page.locator("#curve .u-over").click(position={"x": 2, "y": 20})  # the fewest answers
    assert accepted()[0] < everything[0]
    assert drawing(page, "#curve canvas") != before
    page.select_option("#show", "confident")
    assert len(listed(page)) == accepted()[3]


def test_keys_reach_everything(explorer):
    page = explorer("#q=17")
    assert chosen(page) == 17
    at = [number for number, _ in listed(page)].index(17)
    page.keyboard.press("j")
    assert chosen(page) == listed(page)[at + 1][0]
    assert page.evaluate("location.hash") == f"#q={chosen(page)}"
    page.keyboard.press("k")
    page.keyboard.press("3")
    assert page.locator(".head").first.locator("[aria-pressed=true]").get_attribute("data-rank") == "3"
    page.focus("#list")
    page.keyboard.press("End")
    assert chosen(page) == listed(page)[-1][0]
    page.keyboard.press("/")
    page.keyboard.type("3.png")
    assert {number for number, _ in listed(page)} == {3, 13, 23}
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    level = page.inner_text("#threshold-value")
    page.keyboard.press("]")
    assert float(page.inner_text("#threshold-value")) > float(level)
    page.keyboard.press("p")
    before = drawing(page, "#plan")
    page.keyboard.press("+")
    zoomed = drawing(page, "#plan")
    page.keyboard.press("ArrowLeft")
    assert len({tuple(before), tuple(zoomed), tuple(drawing(page, "#plan"))}) == 3
    page.keyboard.press("0")
    assert drawing(page, "#plan") == before
    page.evaluate("location.hash = '#q=8'")  # not listed now: all are
    page.locator("#detail-title", has_text="8 · ").wait_for()
    assert len(listed(page)) == QUERIES


def test_two_heads_hubs_and_files_of_the_selection(explorer, town, tmp_path):
    page = explorer()
    words = page.inner_text("#counts")
    page.keyboard.press("c")
    changed = listed(page)
    assert {mark for _, mark in changed} == {"✗|✓", "✓|✗"}
    assert f"{len(changed)} queries changed" in words
    assert page.locator(".head").count() == 2
    with page.expect_download() as saving:
        page.keyboard.press("s")
    saving.value.save_as(tmp_path / "q.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "q.csv").read_text("utf-8"))))
    assert [int(row["number"]) for row in rows[::2]] == [number for number, _ in changed]
    assert [row["head"] for row in rows[:2]] == ["vlad", "bow"]
    assert all(one["right"] != other["right"] for one, other in zip(rows[::2], rows[1::2], strict=True))
    with page.expect_download() as saving:
        page.keyboard.press("g")
    saving.value.save_as(tmp_path / "q.geojson")
    told = json.loads((tmp_path / "q.geojson").read_text("utf-8"))
    assert (told["type"], len(told["features"])) == ("FeatureCollection", len(rows))
    first, number = told["features"][0], int(rows[0]["number"])
    answer = int(re.findall(r"\d+", rows[0]["answer"])[0])
    assert first["geometry"] == {
        "type": "LineString", "coordinates": [[10 * number + 2, number % 3], [10 * answer, 5 * (answer % 3)]],
    }  # fmt: skip
    length = np.hypot(10 * number + 2 - 10 * answer, number % 3 - 5 * (answer % 3))
    assert float(rows[0]["distance_m"]) == pytest.approx(length, abs=1e-3)
    assert first["properties"]["query"] == rows[0]["query"]

    page.keyboard.press("o")  # nothing beside it
    page.keyboard.press("a")
    assert page.locator(".head").count() == 1
    hub = page.locator("#hubs button").first
    wrong = numbers(hub.inner_text().split(":")[1])[0]
    hub.click()
    assert len(listed(page)) == wrong >= 2
    page.select_option("#show", "absent")
    page.locator("#hubs [aria-pressed=true]").click()
    assert [number for number, _ in listed(page)] == [7]
    assert "the place is not in the map" in page.inner_text("#detail")


def lined_page(folder: Path) -> Path:
    """One query and a verified answer, on the globe."""
    write_photos(folder, synthetic_truth([[0]]))
    hit = EvaluatedHit("m", False, 0.95, 2, 70.0, None)
    answer = JudgedAnswer((hit,), 0.95, True, True, lines={"m": (0, 3, 1, 2)})
    run = Run("none", "own head", "probability", 1, (answer,), (2, 2))
    asked = JudgedQuery(0, "q<i>", True, Position(lat=52.0, lon=13.0), "m", "</script><b>")
    files = {"m": folder / "database/0.png", "q<i>": folder / "queries/0.png"}
    place = Position(lat=52.0, lon=13.001)
    judgement = Judgement("t", "near", {"m": place}, (asked,), (run,), files)
    write_explorer(folder / "p.html", judgement, ReportTable([TableRow("own", {"R@1": (0.0, None)}, {})]), ["one"])
    return folder / "p.html"


def test_matches_are_drawn_and_the_plan_is_picked_from(open_page, explorer, tmp_path):
    page = open_page(lined_page(tmp_path).as_uri(), viewport=PHONE)
    page.locator(".pair canvas").wait_for()
    assert "confidence 0.95 · 70 m · 2 inliers" in page.inner_text(".pair")
    assert page.inner_text("#detail").startswith("0 · q<i>\n\n</script><b>\n")  # names are text, never HTML
    page.wait_for_function("document.querySelector('.pair canvas').width > 300")
    assert drawing(page, ".pair canvas")[0] > 50
    page.keyboard.press("l")
    assert page.locator(".pair canvas").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]

    page = explorer("#q=24", color_scheme="dark")
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(CONTRASTS)[0][0] >= 4.5
    page.locator("#plan").scroll_into_view_if_needed()
    box = page.locator("#plan").bounding_box()
    scale = (box["width"] - 56) / (10 * IMAGES - 10)  # all of it lies 28 pixels from the edges
    page.mouse.click(box["x"] + 28 + 2 * scale, box["y"] + box["height"] / 2 + 5 * scale)
    assert chosen(page) == 0


def test_what_is_vendored_is_what_was_published():
    origin = json.loads((UPLOT / "origin.json").read_text("utf-8"))
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in UPLOT.iterdir()}
    del found["origin.json"]
    assert found == origin["sha256"]
    assert f"v{origin['version']}" in (UPLOT / "uPlot.iife.min.js").read_text("utf-8")[:120]

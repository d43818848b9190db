"""Figures from records: the right examples, the right colours, the right numbers."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import ImageColor

from tests.benchmarks.figure_records import EVIDENCE, synthetic_truth, write_photos, write_record, write_town
from tfa.errors import BadSpec
from tfa.explain.draw_montage import EDGE, FRAMES, GAP, GRAY, MONTAGE_LINE, TILE
from tfa_bench.figures.plots import (
    HEADER,
    calibration_curves,
    choose,
    draw_sheet,
    evidence_of,
    find_studies,
    montage_rows,
    positives_in,
    spread_out,
    standardize_rows,
)
from tfa_bench.protocols import FULL_QUERY, budget, cross_fit
from tfa_bench.records import BadRecord

GREEN, RED, EMPTY = (ImageColor.getrgb(colour) for colour in (FRAMES["good"], FRAMES["bad"], GRAY))
PHOTO = (120, 120, 120)


@pytest.fixture
def town(tmp_path):
    return write_town(tmp_path / "results")


def corner(row: int, column: int) -> tuple[int, int]:
    """Top left pixel of an answer's frame; rows have two lines of captions."""
    height = MONTAGE_LINE + 8 + TILE[1] + 6 + 2 * MONTAGE_LINE + 2 * GAP
    return EDGE + TILE[0] + 2 * GAP + column * (TILE[0] + GAP), HEADER + EDGE + MONTAGE_LINE + 8 + row * height


def test_successes_and_failures_are_the_right_queries(town):
    [study] = find_studies(town[0])
    good = choose(study, ["tfa", "anyloc"], successes=True)
    bad = choose(study, ["tfa", "anyloc"], successes=False)
    assert (good.queries, good.eligible) == ((0, 4, 5, 9), 4)
    assert (bad.queries, bad.eligible) == ((1, 10), 2)  # both err on 6: it shows no difference
    assert choose(study, ["anyloc", "tfa"], successes=True).queries == bad.queries
    assert choose(study, ["tfa", "anyloc"], successes=True, rows=3).queries == (0, 5, 9)
    with pytest.raises(BadSpec, match="rows=0"):
        choose(study, ["tfa", "anyloc"], successes=True, rows=0)


def test_queries_missed_by_all_others_and_queries_left_out(town):
    results, truth = town
    write_record(results, truth, "ria", (1, 5, 9))
    [study] = find_studies(results)
    heads = ["tfa", "anyloc", "ria"]
    assert choose(study, heads, successes=True).queries == (0, 4, 5, 9)
    assert choose(study, heads, successes=True, by_all=True).queries == (5, 9)
    rest = choose(study, heads, successes=True, without=(5,))
    assert (rest.queries, rest.eligible) == ((0, 4, 9), 3)


@pytest.mark.parametrize(
    ("eligible", "rows", "chosen"),
    [
        (range(90), 3, [15, 45, 75]),
        (range(90), 6, [7, 22, 37, 52, 67, 82]),
        (range(90), 4, [7, 22, 45, 75]),
        ([0, 1, 2, 3, 80], 4, [0, 2, 3, 80]),  # what a third lacks the others make up for
        ([5], 6, [5]),
        ([], 6, []),
    ],
)
def test_examples_are_spread_over_the_thirds_of_the_queries(eligible, rows, chosen):
    assert spread_out(np.array(list(eligible), int), 90, rows) == chosen


def test_a_query_that_a_head_was_not_evaluated_on_is_no_example(town):
    results, truth = town
    record = write_record(results, truth, "tfa-c8", tuple(range(12)), plan=budget(8, splits=1))
    [study] = find_studies(results)
    grid = choose(study, ["tfa", "tfa-c8"], successes=True)
    assert set(grid.queries) == set(record.evaluated(0)) - {1, 6, 10}
    assert len(record.evaluated(0)) == 4


def test_frames_are_green_where_right_and_red_where_wrong(town, tmp_path):
    results, truth = town
    write_record(results, truth, "ria", (1, 9), nothing=(5,))
    photos = write_photos(tmp_path / "photos", truth, missing=("map/4.png", "queries/0.png"))
    [study] = find_studies(results)
    heads = study.heads("tfa")
    assert heads == ["tfa", "anyloc", "ria"]
    grid = choose(study, heads, successes=True)
    sheet = draw_sheet(montage_rows(grid, truth, photos), heads)
    assert grid.queries == (0, 4, 5, 9)
    expected = [[GREEN, RED, GREEN], [GREEN, RED, GREEN], [GREEN, RED, RED], [GREEN, RED, RED]]
    assert [[sheet.getpixel(corner(row, column)) for column in range(3)] for row in range(4)] == expected

    def inside(row: int, column: int) -> tuple[int, ...]:
        x, y = corner(row, column)
        return sheet.getpixel((x + 12, y + 12))

    assert inside(0, 0) == PHOTO
    assert inside(1, 0) == EMPTY  # map/4.png is not there
    assert inside(2, 2) == EMPTY  # no answer
    assert sheet.getpixel((EDGE + 12, corner(0, 0)[1] + 12)) == EMPTY  # queries/0.png is not there
    assert sheet.getpixel((EDGE + 12, corner(1, 0)[1] + 12)) == PHOTO


def test_calibration_curves_hold_what_the_records_say(town):
    results, truth = town
    write_record(results, truth, "tfa-c8", (0, 1, 2, 3), plan=budget(8, splits=4))
    write_record(results, truth, "tfa-c2", (), plan=budget(2, splits=3))
    write_record(results, truth, "tfa-c2-plain", (), plan=budget(2, splits=3))
    write_record(results, truth, "tfa-fullq", (0, 1, 2), plan=FULL_QUERY)
    write_record(results, truth, "tfa-crossfit", (0,), plan=cross_fit())
    write_record(results, truth, "dual-fullq", (), plan=FULL_QUERY)
    write_record(results, truth, "tfa-fullq-no-cls", (), plan=FULL_QUERY)
    [study] = find_studies(results)
    [curve] = calibration_curves(study)  # dual has no budget
    assert curve.family == "tfa"
    assert list(curve.budgets) == [2, 8]
    assert (curve.budgets[2].mean, curve.budgets[2].spread) == (100, 0)
    shares = [100 * np.mean(study.records["tfa-c8"].evaluated(split) > 3) for split in range(4)]
    assert curve.budgets[8].mean == pytest.approx(np.mean(shares))
    assert curve.budgets[8].spread == pytest.approx(np.std(shares, ddof=1))
    assert {name: [p.mean for p in several] for name, several in curve.apart.items()} == {
        "FullQ": [pytest.approx(75)], "cross-fit": [pytest.approx(100 * 11 / 12)],
    }  # fmt: skip
    assert curve.uncalibrated is not None
    assert curve.uncalibrated.mean == pytest.approx(75)


def test_heads_are_listed_as_people_count(town):
    for n in (10, 8):
        write_record(*town, f"tfa-c{n}", plan=budget(n, splits=2))
    [study] = find_studies(town[0])
    assert list(study.records) == ["anyloc", "tfa", "tfa-c8", "tfa-c10"]
    assert study.heads("tfa") == ["tfa", "anyloc"]
    assert study.heads("none", usual=("tfa-c8",)) == ["tfa-c8", "anyloc", "tfa", "tfa-c10"]


def test_evidence_is_read_with_the_chosen_candidate(town):
    [study] = find_studies(town[0])
    found = evidence_of(study.records["tfa"])
    assert found is not None
    assert found.points == {
        "hard/adaptive": (7.0, pytest.approx(0.6)),
        "soft/partial": (9.0, pytest.approx(0.75)),
        "soft/adaptive+cls": (9.5, pytest.approx(0.8)),
    }
    assert (found.chosen, found.with_global) == ("soft/partial", "soft/adaptive+cls")
    assert evidence_of(study.records["anyloc"]) is None


def test_damaged_evidence_is_refused(tmp_path):
    truth = synthetic_truth()
    truth.write(tmp_path / "town")
    record = write_record(tmp_path, truth, "tfa", decisions={**EVIDENCE, "candidates": {"hard/original": {}}})
    with pytest.raises(BadRecord, match=r"evidence of head 'tfa' is damaged: KeyError 'support'; rerun the head"):
        evidence_of(record)


def test_rows_are_standardized_and_equal_scores_are_zero():
    rows = standardize_rows(np.array([[1, 2, 3], [4, 4, 4], [np.inf, 1, 3], [np.nan] * 3], np.float16))
    assert rows[0] == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert rows[1].tolist() == [0, 0, 0]
    assert np.isnan(rows[2, 0])
    assert rows[2, 1:] == pytest.approx([-1, 1])
    assert np.isnan(rows[3]).all()


def test_positives_are_found_in_the_piece(town):
    [study] = find_studies(town[0])
    rows, columns = positives_in(study.records["tfa"].sample, study.truth)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [(0, 0), (1, 1)]

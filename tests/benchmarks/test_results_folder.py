"""The records in results/ are small and complete, and the results page agrees with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfa_bench.records import Record, find_records, truth_of
from tfa_bench.scores import score
from tfa_bench.tables.page import PRECISION_DEPTH, results_page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "results", ROOT / "results" / "README.md"
SMALL, TITLE = "campus-loop", "Campus Loop"
MOST_BYTES, BLOCK = 12 << 20, 4096  # as files lie on a disk, in blocks
ENCODER = "dinov2-s14-focus@322"


def test_the_folder_is_small():
    sizes = [path.stat().st_size for path in RESULTS.rglob("*")]  # folders take a block, too
    assert sum(-(-size // BLOCK) * BLOCK for size in sizes) < MOST_BYTES


def section(page: str, heading: str, title: str) -> list[str]:
    """Lines of a dataset's table below a heading of the page."""
    return page.partition(f"## {heading}")[2].partition(f"### {title}\n")[2].partition("\n##")[0].splitlines()


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Head's title → numbers of its row in the table of recalls down to place 20."""
    rows = [line.strip("| ").split(" | ") for line in section(PAGE.read_text("utf-8"), "Recall at 1 to 20", TITLE)]
    return {row[0]: row[1:] for row in rows if len(row) == 8 and row[0] != "head"}


def test_recalls_of_the_page_come_out_of_the_records_by_plain_counting(printed: dict[str, list[str]]):
    seen = set()
    for path in find_records(RESULTS / SMALL / ENCODER.replace("/", "_")):
        record, truth = Record.read(path), truth_of(path)
        title = record.head["title"]
        if title not in printed:
            continue
        seen.add(title)
        for k, text in zip((1, 5, 10, 20), printed[title], strict=False):
            if text == "–":
                assert record.depth < k
                continue
            splits = []
            for split in range(len(record.folds)):
                first = record.rankings[record.evaluated(split), split, :, :k]
                right = [
                    [bool(np.isin(row, truth.positives[query]).any()) for row in rows]
                    for query, rows in zip(record.evaluated(split), first, strict=True)
                ]
                splits.append(np.mean(right))
            assert text.split()[0] == f"{100 * np.mean(splits):.2f}", (title, k)
    assert seen == set(printed)
    assert len(seen) >= 10


def test_the_page_prints_what_scoring_gives(printed: dict[str, list[str]]):
    for path in find_records(RESULTS / SMALL / ENCODER.replace("/", "_")):
        record = Record.read(path)
        if record.head["title"] in printed:
            *_, precision, area, at_99 = printed[record.head["title"]]
            scored = score(record, truth_of(path), ks=[1], precision_depth=PRECISION_DEPTH)
            assert scored.mean_average_precision is not None
            assert precision == f"{100 * scored.mean_average_precision.mean:.2f}"
            assert area == f"{100 * scored.acceptance.area.mean:.1f}"
            assert at_99 == f"{100 * scored.acceptance.recall_at_99.mean:.1f}"


def test_a_page_of_the_small_dataset_is_part_of_the_whole_page():
    whole = PAGE.read_text("utf-8")
    small = results_page(RESULTS / SMALL, encoder=ENCODER, command="make results DATA=data")
    assert section(small, "Recall at 1 to 20", TITLE) == section(whole, "Recall at 1 to 20", TITLE) != []
    rows = [line for line in small.splitlines() if line.startswith(f"| {TITLE} |")]
    peers = [line for line in rows if "[" in line or "CLS" in line]
    assert len(peers) > 3
    shown = [_filled(line) for line in whole.splitlines()]
    assert all(_filled(line) in shown for line in peers)


def _filled(line: str) -> list[str]:
    """The cells of a row that say something: a head that was run elsewhere has a column, and nothing in it here."""
    return [cell.strip() for cell in line.split("|") if cell.strip() not in ("", "–")]

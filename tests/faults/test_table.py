"""The table of the campaign: counts add up, the page is changed between its markers alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Campaign
from tests.faults.table import MARKERS, collected, main, markdown

BEGIN, END = MARKERS["histories"]
PAGE = f"# Page\n\nbefore\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n"


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    campaign = Campaign(full=True, out=tmp_path / "counts")
    campaign.count("kills", 3)
    campaign.count("damaged files", 1000, 0)
    campaign.count("kills", 4)
    (tmp_path / "counts" / "another.jsonl").write_text(
        '{"name": "kills", "attempts": 10, "failures": 0, "seconds": 60.4}\n'
    )
    (tmp_path / "counts" / "inputs").mkdir()
    return tmp_path / "counts"


def test_counts_of_all_processes_add_up(counts: Path) -> None:
    rows = collected(counts)
    assert [(row.name, row.attempts, row.failures) for row in rows] == [("damaged files", 1000, 0), ("kills", 17, 0)]
    assert rows[1].seconds >= 60.4
    assert markdown(rows).splitlines()[2:] == [
        "| damaged files | 1,000 | 0 | 0 |",
        "| kills | 17 | 0 | 60 |",
        "| **all** | 1,017 | 0 | 60 |",
    ]


def test_the_page_is_changed_between_its_markers_alone(
    counts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):  # a second time changes nothing
        assert main([str(counts), "--of", "histories", "--docs", str(page)]) == 0
        written = page.read_text()
        assert written == PAGE.replace("old\n", markdown(collected(counts)))
    assert "| kills | 17 | 0 | 60 |" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["no markers", f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}"])
def test_a_page_without_its_markers_is_left_as_it_is(counts: Path, tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(SystemExit, match="once each"):
        main([str(counts), "--of", "histories", "--docs", str(page)])
    assert page.read_text() == text


def test_a_failure_and_an_empty_campaign_fail(counts: Path, tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
    Campaign(full=True, out=counts).count("kills", 5, 1)
    assert main([str(counts)]) == 1

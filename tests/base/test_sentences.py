"""Each rule is said once: in the code's own words, with the code's own numbers, wherever users read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfa.core import text
from tfa.maps import confidence
from tfa.report import neighbors

ROOT = Path(__file__).parents[2]
OF_CONFIDENCE = (
    text.CONFIDENCE, text.CONFIDENCE_VERIFIED, text.CONFIDENCE_UNVERIFIED, text.CONFIDENCE_SEQUENCE,
    text.LATER_HITS, text.SURE, text.RELY,
)  # fmt: skip
OF_REPORTS = (text.NEAR_DUPLICATE, text.HUB, text.LEAST_RECOGNISED, text.WITHIN_NOISE)


def words(text: str) -> str:
    """Without line ends, and without the frames of a help text."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("docs/cli.md", OF_CONFIDENCE + OF_REPORTS),
        ("README.md", (text.CONFIDENCE,)),
    ],
)
def test_documents_say_it_word_for_word(page, said):
    text = words((ROOT / page).read_text("utf-8"))
    assert [one for one in said if one not in text] == []


def test_numbers_are_those_of_the_code():
    for number in (confidence.SURE_CONFIDENCE, confidence.SURE_LEAD):
        assert f"at least {number:g}" in text.SURE
    assert f"cosine of {neighbors.NEAR_COSINE:g} or more" in text.NEAR_DUPLICATE
    assert (neighbors.HUB_RATIO, neighbors.NEIGHBOR_COUNT, neighbors.OUTLYING) == (
        4,
        5,
        3,
    )  # four, five and three in words


def test_no_example_takes_a_half_for_a_threshold():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src/tfa").rglob("*.py")]
    assert [page.name for page in pages if re.search(r"min.confidence[ =]0\.5\b", page.read_text("utf-8"))] == []

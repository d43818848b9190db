"""Numbers in sentences that users read equal the constants of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tfa.core.text import list_rules
from tfa.maps import confidence
from tfa.report import neighbors

ROOT = Path(__file__).parents[2]


def test_numbers_are_those_of_the_code():
    for number in (confidence.SURE_CONFIDENCE, confidence.SURE_LEAD):
        assert f"at least {number:g}" in list_rules()["sure"]
    style = (ROOT / "src/tfa/service/page/style.css").read_text("utf-8")
    assert f"left: {100 * confidence.SURE_CONFIDENCE:g}%;" in style
    assert f"cosine of {neighbors.NEAR_COSINE:g} or more" in list_rules()["near_duplicate"]
    # Written as words: four, five and three.
    assert (neighbors.HUB_RATIO, neighbors.NEIGHBOR_COUNT, neighbors.OUTLYING) == (4, 5, 3)


def test_no_example_uses_a_confidence_of_one_half_as_threshold():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src/tfa").rglob("*.py")]
    assert [page.name for page in pages if re.search(r"min.confidence[ =]0\.5\b", page.read_text("utf-8"))] == []

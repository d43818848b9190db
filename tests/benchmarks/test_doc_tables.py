"""The performance page has the numbers of the files, and formulas have the constants of the code."""

from __future__ import annotations

from pathlib import Path

from studies.speed.page import performance_page, read_results, summary_table
from tfa.maps import confidence

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def test_the_tables_of_performance_are_those_of_the_files():
    results = read_results([ROOT / "results" / "performance"])
    assert performance_page(results) == (ROOT / "results" / "performance" / "README.md").read_text("utf-8")
    summary = summary_table(results)
    assert summary in page("results/performance.md")
    assert summary.count("\n") > 10


def test_the_confidence_page_has_the_constants_of_the_code():
    text = " ".join(page("explanation/confidence.md").replace("−", "-").split())
    for constants in (confidence.VERIFIED_CONSTANTS, confidence.UNVERIFIED_CONSTANTS):
        formula = f"σ({constants.offset:g} + {constants.per_place:g} place + {constants.per_agreement:g} agreement"
        assert formula in text
        assert f"T = {constants.temperature:g}" in text
    assert f"{confidence.VERIFIED_CONSTANTS.per_lead:g} clip(lead, 0, 2)" in text
    assert f"at least {confidence.SURE_CONFIDENCE:g}" in text
    assert f"at least {confidence.SURE_LEAD:g}" in text
    assert f"confidence is at least {confidence.PROBABLE_CONFIDENCE:g}" in text

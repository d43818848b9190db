"""Each rule is said once: in the code's own words, with the code's own numbers, wherever users read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tfa.base import sentences
from tfa.cli.app import app
from tfa.maps import confidence
from tfa.method.controllers import judged
from tfa.report import neighbours
from tfa.service.models import HitModel, QueryFields

ROOT = Path(__file__).parents[2]
OF_CONFIDENCE = (
    sentences.CONFIDENCE, sentences.CONFIDENCE_VERIFIED, sentences.CONFIDENCE_UNVERIFIED, sentences.CONFIDENCE_SEQUENCE,
    sentences.LATER_HITS, sentences.SURE, sentences.RELY,
)  # fmt: skip
OF_ORDER = (sentences.ORDER_VERIFIED, sentences.ORDER_UNVERIFIED, sentences.ORDER_SEQUENCE)
OF_REPORTS = (sentences.NEAR_DUPLICATE, sentences.HUB, sentences.LEAST_RECOGNISED, sentences.WITHIN_NOISE)


def words(text: str) -> str:
    """Without line ends, and without the frames of a help text."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("docs/confidence.md", OF_CONFIDENCE + OF_ORDER),
        ("docs/cli.md", OF_CONFIDENCE + OF_REPORTS),
        ("docs/glossary.md", (sentences.CONFIDENCE, sentences.SURE, sentences.WITHIN_NOISE)),
        ("docs/judge.md", (sentences.JUDGE,)),
        ("docs/verification.md", (sentences.VERIFICATION,)),
        ("README.md", (sentences.CONFIDENCE,)),
    ],
)
def test_documents_say_it_word_for_word(page, said):
    text = words((ROOT / page).read_text("utf-8"))
    assert [one for one in said if one not in text] == []


def test_help_and_the_service_say_it_too(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    told = words(CliRunner().invoke(app, ["query", "--help"]).stdout)
    fields = QueryFields.model_json_schema()["properties"]
    service = " ".join(fields[name]["description"] for name in ("min_confidence", "sure"))
    assert [one for one in OF_CONFIDENCE if one not in told or one not in service] == []
    assert HitModel.model_json_schema()["properties"]["sure"]["description"] == sentences.SURE


def test_numbers_are_those_of_the_code():
    for number in (confidence.SURE_CONFIDENCE, confidence.SURE_LEAD):
        assert f"at least {number:g}" in sentences.SURE
    assert f"cosine of {neighbours.NEAR_COSINE:g} or more" in sentences.NEAR_DUPLICATE
    for margin in (judged.DATABASE_MARGIN, judged.TARGET_MARGIN):
        assert f"more than {margin:g}" in sentences.JUDGE
    assert (neighbours.HUB_RATIO, neighbours.NEIGHBOR_COUNT, neighbours.OUTLYING) == (
        4,
        5,
        3,
    )  # four, five and three in words


def test_no_example_takes_a_half_for_a_threshold():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "src/tfa").rglob("*.py")]
    assert [page.name for page in pages if re.search(r"min.confidence[ =]0\.5\b", page.read_text("utf-8"))] == []

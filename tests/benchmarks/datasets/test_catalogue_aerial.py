"""Cards of the aerial, indoor and driving datasets: readable, complete, and their options fit their layouts."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tfa_bench.datasets.card import cards
from tfa_bench.datasets.load import load_layout

SEASONS = ("business-campus", "city-loop", "countryside", "office-loop", "old-town", "parking-garage")
ROWS = {
    "baidu-mall": "Baidu-Mall",
    "nardo-air": "",
    "nardo-air-r": "",
    "vpair": "VPAIR-full",
    "vpair-distractors": "",
    "uav-visloc": "UAV-VisLoc",
    "sues-200": "SUES-200",
    "denseuav": "DenseUAV",
    "university-d2s": "University drone→sat.",
    "university-s2d": "University sat.→drone",
    "university-d2s-no-distractors": "",
    "university-s2d-no-distractors": "",
    "urbanscape": "Urbanscape",
    "park": "Park",
    "anyvisloc": "",
    "robotcar": "RobotCar nine conditions",
    **{f"4seasons-{name}": f"4Seasons {name.replace('-', ' ').title()}" for name in SEASONS},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_card_fits_its_layout_and_its_row(name: str) -> None:
    card = cards()[name]
    assert card.paper_row == ROWS[name]
    inspect.signature(load_layout(card.layout).load).bind(Path(), **card.options)


@pytest.mark.parametrize(
    ("name", "database", "queries"),
    [
        ("baidu-mall", 689, 2292),
        ("nardo-air", 102, 71),
        ("vpair", 2706, 2706),
        ("vpair-distractors", 12706, 2706),
        ("denseuav", 18198, 2331),
        ("university-d2s", 951, 37855),
        ("university-s2d", 51355, 701),
    ],
)
def test_published_counts_are_declared(name: str, database: int, queries: int) -> None:
    counts = cards()[name].counts
    assert (counts.database, counts.queries) == (database, queries)


@pytest.mark.parametrize("name", ["urbanscape", "park", *(f"4seasons-{name}" for name in SEASONS)])
def test_inferred_counts_are_reported_but_not_declared(name: str) -> None:
    card = cards()[name]
    assert card.counts.to_dict() == {}
    assert "inferred" in card.note


@pytest.mark.parametrize("name", ["urbanscape", "park", "anyvisloc"])
def test_unpublished_datasets_say_so(name: str) -> None:
    assert not cards()[name].public


def test_the_variant_without_distractors_says_whose_it_is() -> None:
    card = cards()["university-s2d-no-distractors"]
    assert card.options["distractors"] is False
    assert "Sample4Geo" in card.note

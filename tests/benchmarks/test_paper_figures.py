"""The paper's figures as transcribed: every table whole, and equal where tables repeat each other."""

from __future__ import annotations

import pytest

from tfa.errors import BadSpec
from tfa_bench.datasets.card import cards
from tfa_bench.tables.paper_figures import PAPER_TABLES, Figure, paper_table, paper_value, row_named

SHAPES = {  # rows, columns, metrics
    "primary": (20, 7, 1),
    "aerial": (16, 5, 3),
    "native": (5, 14, 1),
    "spectral": (8, 7, 1),
    "ground-backbones": (13, 6, 1),
    "full-query": (20, 2, 1),
    "aerial-access": (16, 2, 3),
}
# Sums of all values, taken from the paper apart from the transcription.
SUMS = {
    "primary": 10776.50, "native": 5931.54, "spectral": 4044.33, "ground-backbones": 5498.39, "full-query": 3164.27,
    "aerial-access": 5891.01,
}  # fmt: skip


def figures(name: str) -> list[Figure]:
    return [one for row in paper_table(name).rows for own in row.values.values() for one in own]


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_row_has_every_column_and_metric(name):
    table = paper_table(name)
    names = [column.name for column in table.columns]
    assert (len(table.rows), len(names), len(table.metrics)) == SHAPES[name]
    for row in table.rows:
        assert list(row.values) == names
        assert {len(own) for own in row.values.values()} == {len(table.metrics)}
    assert table.source.startswith("Li et al., Calibrating Retrieval Geometry")
    assert "(tab:" in table.source


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_value_is_a_percentage_and_every_mark_is_explained(name):
    for one in figures(name):
        assert 0 <= one.value <= 100
        assert one.sd is None or 0 <= one.sd < 10
        assert one.mark == "" or one.mark in paper_table(name).marks


@pytest.mark.parametrize("name", SUMS)
def test_values_sum_to_the_papers(name):
    assert sum(one.value for one in figures(name)) == pytest.approx(SUMS[name], abs=1e-6)


def test_the_aerial_reference_is_the_same_for_both_backbones():
    rows = paper_table("aerial").rows
    for one, other in zip(rows[0::2], rows[1::2], strict=True):
        assert (one.row, one.values["sample4geo"]) == (other.row, other.values["sample4geo"])
    repeated = sum(figure.value for row in rows[1::2] for figure in row.values["sample4geo"])
    assert sum(one.value for one in figures("aerial")) - repeated == pytest.approx(12213.97, abs=1e-6)


def test_recall_grows_with_k():
    for name in ("aerial", "aerial-access"):
        for row in paper_table(name).rows:
            for own in row.values.values():
                assert own[0].value <= own[1].value <= own[2].value


@pytest.mark.parametrize(
    ("column", "value", "sd", "mark"),
    [
        ("salad", 92.09, None, "r"), ("selavpr++-b", 90.77, None, "r"), ("anyloc", 75.57, None, ""),
        ("tfvpr", 73.48, None, ""), ("ria", 69.85, None, "d"), ("tfa", 85.12, None, ""), ("tfa-c64", 83.79, 0.63, ""),
    ],
)  # fmt: skip
def test_the_row_of_sped(column, value, sd, mark):
    assert paper_value("primary", "SPED", column, "R@1") == Figure(value, sd, mark)


def test_a_row_of_two_backbones_gives_the_one_named():
    assert paper_value("aerial", "SUES-200", "tfa", "R@5") == Figure(81.05)
    assert paper_value("aerial", "SUES-200", "tfa", "R@5", backbone="DINOv3-B") == Figure(91.43)
    assert paper_value("aerial", "SUES-200", "sample4geo", "R@10", backbone="DINOv3-B") == Figure(97.14, mark="r")
    assert paper_value("aerial-access", "University D→S", "tfa-c64", backbone="DINOv3-B") == Figure(45.28, 2.59)


def test_native_systems_have_backbones_of_their_own_and_the_decimals_printed():
    assert paper_value("native", "Pitts30k", "anyloc-released") == Figure(87.7, mark="p", digits=1)
    assert paper_value("native", "St-Lucia", "boq") == Figure(100.0, mark="p", digits=0)
    assert paper_value("native", "SVOX-5 macro", "dual-c64", backbone="DINOv2-G L31") == Figure(91.88, 0.34)
    assert paper_value("native", "SPED", "dual-crossfit") == Figure(93.08)
    assert paper_value("native", "SPED", "tfvpr-transductive", backbone="DINOv2-G L31") is None


def test_what_the_paper_does_not_have_is_none():
    assert paper_value("primary", "SPED", "tfa", "R@5") is None
    assert paper_value("primary", "SPED", "no-such-head") is None
    assert paper_value("primary", "Atlantis", "tfa") is None
    with pytest.raises(BadSpec, match="'tertiary' is not a table of the paper; use one of primary"):
        paper_value("tertiary", "SPED", "tfa")


def test_tables_that_repeat_a_figure_agree():
    repeated = 0
    for name in ("spectral", "ground-backbones", "full-query"):
        for row in paper_table(name).rows:
            for column, own in row.values.items():
                other = paper_value("primary", row.row, column, backbone=row.backbone)
                fullq = paper_value("full-query", row.row, column, backbone=row.backbone)
                for same in (other, fullq):
                    if same is not None:
                        assert own[0] == same, (name, row.row, column)
                        repeated += 1
    assert repeated > 100


def test_the_four_map_mean_is_the_mean_of_the_four_maps():
    rows = {row.row: row for row in paper_table("spectral").rows}
    maps = [row for name, row in rows.items() if name.startswith("4Seasons")]
    assert len(maps) == 4
    for column, [mean] in rows["Four-map mean"].values.items():
        # the paper averages unrounded recalls
        assert sum(row.values[column][0].value for row in maps) / 4 == pytest.approx(mean.value, abs=0.011)


def test_a_row_is_found_by_any_name_it_is_printed_under():
    assert row_named("4S Office Loop") == row_named("Office Loop") == "4Seasons Office Loop"
    assert row_named("RobotCar (nine cond.)") == "RobotCar nine conditions"
    assert row_named("Atlantis") == "Atlantis"


def test_the_catalogue_of_datasets_and_the_paper_name_the_same_rows():
    named = {row_named(card.paper_row) for card in cards().values() if card.paper_row}
    known = {row.row for name in PAPER_TABLES for row in paper_table(name).rows}
    assert named <= known
    assert {row.row for row in paper_table("primary").rows} <= named

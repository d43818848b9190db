"""Trained systems in tables: separate, unranked, with the paper's numbers."""

from __future__ import annotations

from tests.benchmarks.synthetic_cells import OWN, PAPERS, cell, elsewhere
from tests.benchmarks.test_tables import row_of, shown
from tfa_bench.tables.table import BEST, Cell, Number, Shown, markdown
from tfa_bench.tables.table_specs import layout


def trained(head: str, recall: float, title: str, **changed: object) -> Cell:
    return cell(head, recall, encoder=f"{head}@322", sees="labels", title=title, **changed)


SALAD = trained("salad", 91.0, "SALAD")


def test_beside_ours_stands_the_papers_figure_on_every_line():
    table = layout("primary", [cell("tfa", 80.0), cell("tfa", 84.5, encoder=PAPERS), SALAD])
    printed = Number(92.09, mark="r", origin="primary")
    for encoder in (OWN, PAPERS):
        found = shown(table, "SPED", encoder)
        assert found["SALAD"] == Shown(Number(91.0), printed)
        assert found["TFA"].number is not None
        assert found["TFA"].number.rank == BEST  # though SALAD is above it
    assert shown(table, "SPED", PAPERS)["SelaVPR++"] == Shown(Number(90.77, mark="r", origin="primary"))
    text = markdown(table)
    assert "91.00 (92.09ʳ)" in text
    assert "supervised references (our runs, with the paper's numbers in parentheses)" in text
    assert "Trained with labels: SALAD." in text


def test_a_dataset_with_trained_records_alone_has_a_line():
    table = layout("primary", [SALAD])
    assert shown(table, "SPED", "their own")["SALAD"].number == Number(91.0)
    assert shown(table, "SPED", "paper (DINOv2-B)")["TFA"].number is not None


def test_recorded_systems_that_the_paper_does_not_print_have_a_column_too():
    table = layout("primary", [cell("tfa", 80.0), trained("megaloc", 90.0, "MegaLoc")], paper=False)
    assert [column.full for column in table.columns][:2] == ["MegaLoc", "AnyLoc"]
    assert shown(table, "SPED")["MegaLoc"] == Shown(Number(90.0))


def test_native_shows_references_first_and_unranked():
    cells = [
        cell("anyloc-released", 80.0),
        SALAD,
        trained("selavpr++-l", 92.0, "SelaVPR++-L"),
        trained("boq", 93.0, "BoQ"),
    ]
    table = layout("native", cells)
    assert [group.title for group in table.groups][:2] == ["Supervised references", "Training-free systems"]
    assert row_of(table, "SALAD", "labels", "salad@322").shown[0] == Shown(
        Number(91.0), Number(92.1, mark="p", digits=1, origin="native")
    )
    assert row_of(table, "SelaVPR++-L", "labels", "selavpr++-l@322").shown[0].beside == Number(
        92.75, mark="r", origin="native"
    )
    stubs = [row.stubs for row in table.rows]
    assert ("SALAD", "labels", "paper (DINOv2-B)") not in stubs  # it stands beside ours
    assert row_of(table, "ANYLOC-RELEASED", "database", OWN).shown[0].number == Number(80.0, rank=BEST)


def test_the_table_of_all_heads_keeps_them_apart():
    table = layout("heads", [cell("anyloc", 80.0), cell("tfa", 85.0), SALAD])
    assert [group.title for group in table.groups] == ["Supervised references", "Peers", "TFA"]
    assert row_of(table, "SALAD", "labels", "salad@322").shown[0].number == Number(91.0)


def test_the_aerial_reference_has_its_three_recalls():
    vpair = elsewhere("vpair", "VPAIR-full", "Aerial / cross-view")
    own = trained("sample4geo", 0, "Sample4Geo", recalls={1: 37.0, 5: 50.0, 10: 56.0}, **vpair)
    table = layout("aerial", [cell("tfa", 40.0, **vpair), own])
    found = shown(table, OWN)
    assert found["Sample4Geo R@1"] == Shown(Number(37.0), Number(37.66, mark="r", origin="aerial"))
    assert found["Sample4Geo R@10"].number == Number(56.0)

"""Tables from hand-made cells: layout, marks and formats."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.synthetic_cells import OWN, PAPERS, cell, elsewhere
from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth, written
from tfa_bench.tables.paper_figures import paper_table
from tfa_bench.tables.table import (
    BEST,
    SECOND,
    NoTable,
    Number,
    Row,
    Shown,
    Table,
    latex,
    markdown,
    rank_numbers,
    read_cells,
)
from tfa_bench.tables.table_specs import LAYOUTS, layout


def row_of(table: Table, *stubs: str) -> Row:
    [found] = [row for row in table.rows if row.stubs == stubs]
    return found


def shown(table: Table, *stubs: str) -> dict[str, Shown]:
    row = row_of(table, *stubs)
    return {column.full: one for column, one in zip(table.columns, row.shown, strict=True)}


def test_ties_share_the_mark_and_the_next_value_is_second():
    numbers = rank_numbers([Number(80.0), None, Number(85.121), Number(85.119), Number(83.0)])
    assert [n and n.rank for n in numbers] == [0, None, BEST, BEST, SECOND]
    assert rank_numbers([None, None]) == [None, None]
    assert [n and n.rank for n in rank_numbers([Number(50.0)])] == [BEST]


@pytest.mark.parametrize(
    ("row", "best", "second"),
    [
        ("CrossSeason", {"TF-VPR", "TFA"}, {"TFA-C64"}),
        ("MSLS-val", {"TFA-C64"}, {"TFA"}),
        ("V4RL shopping", {"AnyLoc"}, {"RIA"}),
    ],
)
def test_rows_of_the_paper_are_marked_as_in_the_paper(row, best, second):
    table = layout("primary", [cell("pooled", 50.0, **elsewhere("x", row)), cell("tfa", 1.0, **elsewhere("x", row))])
    printed = shown(table, row, "paper (DINOv2-B)")
    ranks = {title.split()[0]: one.number.rank for title, one in printed.items() if one.number and title != "TFA"}
    ranks["TFA"] = printed["TFA"].number.rank  # type: ignore[union-attr]
    assert {title for title, rank in ranks.items() if rank == BEST} == best
    assert {title for title, rank in ranks.items() if rank == SECOND} == second


def test_an_encoder_of_ours_stands_above_a_row_of_the_paper():
    table = layout("primary", [cell("anyloc", 70.0), cell("tfa", 80.0)])
    assert [row.stubs for row in table.rows] == [("SPED", OWN), ("SPED", "paper (DINOv2-B)")]
    ours, theirs = shown(table, "SPED", OWN), shown(table, "SPED", "paper (DINOv2-B)")
    assert ours["TFA"] == Shown(Number(80.0, rank=BEST))
    assert ours["ANYLOC"] == Shown(Number(70.0, rank=SECOND))
    assert ours["SALAD"] == ours["TFA-C64"] == Shown()
    assert theirs["TFA"] == Shown(Number(85.12, rank=BEST, origin="primary"))
    assert theirs["SALAD"] == Shown(Number(92.09, mark="r", origin="primary"))  # supervised: never ranked


def test_under_the_papers_encoder_its_figures_stand_beside_ours():
    cells = [cell("tfa", 84.5, encoder=PAPERS), cell("tfa-c64", 83.0, encoder=PAPERS, sds={1: 0.5}, plan="C64")]
    table = layout("primary", cells)
    assert [row.stubs for row in table.rows] == [("SPED",)]  # one encoder: a footnote names it
    found = shown(table, "SPED")
    assert found["TFA"] == Shown(Number(84.5, rank=BEST), Number(85.12, origin="primary"))
    assert found["TFA-C64"].beside == Number(83.79, 0.63, origin="primary")
    text = markdown(table)
    assert "**84.50** (85.12)" in text
    assert "_83.00_±0.50 (83.79±0.63)" in text
    assert "92.09ʳ" in text
    assert "– (75.57)" in text  # AnyLoc: no record, but a figure of the paper


def test_without_the_paper_its_figures_and_references_are_gone():
    table = layout("primary", [cell("tfa", 84.5, encoder=PAPERS), cell("tfa", 80.0)], paper=False)
    assert [column.full for column in table.columns] == ["AnyLoc", "TF-VPR", "RIA", "TFA", "TFA-C64"]
    assert all(one.beside is None for row in table.rows for one in row.shown)
    assert "Li et al." not in markdown(table)


def test_datasets_stand_in_the_papers_order_and_strangers_under_other():
    cells = [
        cell("tfa", 1.0, **elsewhere("backyard")),
        cell("tfa", 2.0),
        cell("tfa", 3.0, **elsewhere("eynsham", "Eynsham", "Urban / ground")),
        cell("tfa", 4.0, **elsewhere("pitts30k", "Pitts30k", "Urban / ground")),
        cell("tfa", 5.0, **elsewhere("vpair", "VPAIR-full", "Aerial / cross-view")),
    ]
    table = layout("primary", cells, paper=False)
    assert [(group.title, [row.stubs[0] for row in group.rows]) for group in table.groups] == [
        ("Urban / ground", ["Pitts30k", "Eynsham"]),
        ("Condition shift", ["SPED"]),
        ("Other", ["backyard"]),
    ]


def test_aerial_has_a_group_for_each_dataset_and_ranks_each_recall_on_its_own():
    vpair = elsewhere("vpair", "VPAIR-full", "Aerial / cross-view")
    one = cell("anyloc", 0, recalls={1: 30.0, 5: 70.0, 10: 80.0}, encoder=PAPERS, **vpair)
    two = cell("tfa", 0, recalls={1: 40.0, 5: 60.0, 10: 80.0}, encoder=PAPERS, **vpair)
    table = layout("aerial", [one, two])
    assert [group.title for group in table.groups] == ["VPAIR-full"]
    assert [row.stubs for row in table.rows] == [(PAPERS,), ("paper (DINOv3-B)",)]
    found = shown(table, PAPERS)
    assert [found[f"TFA R@{k}"].number.rank for k in (1, 5, 10)] == [BEST, SECOND, BEST]  # type: ignore[union-attr]
    assert found["ANYLOC R@10"] == Shown(Number(80.0, rank=BEST), Number(58.62, origin="aerial"))
    assert shown(table, "paper (DINOv3-B)")["TFA R@10"].number == Number(71.24, rank=BEST, origin="aerial")
    assert r"\multicolumn{3}{c}{TFA}" in latex(table)


def test_native_ranks_systems_over_encoders_and_leaves_budgets_unranked():
    cells = [
        cell("anyloc", 99.0, encoder=OWN),  # 64 words of the database: not the paper's system
        cell("anyloc-released", 80.0, encoder=OWN),
        cell("tfvpr-transductive", 70.0, encoder="dinov2-b14@336"),
        cell("ria", 60.0, encoder="dinov2-g14@640x480c/l31-value"),
        cell("dual-c64", 90.0, sds={1: 0.4}, plan="C64"),
        cell("dual-c8", 95.0, plan="C8"),
    ]
    table = layout("native", cells)
    assert table.stubs == ("Head", "Data used", "Encoder")
    numbers = {(row.stubs[0], row.stubs[2]): row.shown[0].number for row in table.rows}
    assert numbers["DUAL-C64", OWN].rank == BEST
    assert numbers["ANYLOC-RELEASED", OWN].rank == SECOND
    assert ("ANYLOC", OWN) not in numbers
    beside = {(row.stubs[0], row.stubs[2]): row.shown[0].beside for row in table.rows}
    assert beside["TFVPR-TRANSDUCTIVE", "dinov2-b14@336"] == Number(77.6, mark="p", digits=1, rank=0, origin="native")
    assert beside["RIA", "dinov2-g14@640x480c/l31-value"] == Number(68.37, mark="r", rank=0, origin="native")
    assert numbers["DUAL-C8", OWN].rank == 0
    assert numbers["BoQ", "paper (native)"] == Number(92.5, mark="p", digits=1, origin="native")
    assert numbers["DUAL-C64", "paper (DINOv2-G L31)"] == Number(91.01, 0.69, rank=BEST, origin="native")
    assert ("TFA-FullQ (Cross-fit)", "paper (DINOv2-G L31)") in numbers
    # every training-free system of the paper has a row, beside ours or alone
    training_free = [column for column in paper_table("native").columns if not column.supervised]
    theirs = sum(bool(row.shown[0].beside) or row.stubs[2].startswith("paper") for row in table.rows)
    assert theirs == len(training_free) + 3


def test_spectral_controls_are_those_of_the_assignment_fullq_chose():
    cells = [cell(f"{a}-original", r) for a, r in (("hard", 60.0), ("soft", 65.0))]
    cells += [cell("tfa-fullq", 70.0, route="soft"), cell("soft-centred", 66.0), cell("hard-partial", 1.0)]
    table = layout("spectral", cells)
    found = shown(table, "SPED", OWN)
    assert found["Original cosine"].number == Number(65.0, rank=SECOND)
    assert found["Partial whitening"].number is None
    assert shown(table, "SPED", "paper (DINOv2-B)")["Full whitening"].number == Number(85.34, rank=1, origin="spectral")
    assert f"Assignment of TFA-FullQ: SPED {OWN} soft." in table.footnotes


def test_both_assignments_are_shown_when_requested():
    table = layout("spectral", [cell("hard-original", 60.0), cell("soft-centred", 66.0)], both=True)
    found = shown(table, "SPED", OWN)
    assert (found["HARD-ORIGINAL"].number, found["SOFT-CENTRED"].number) == (Number(60.0, rank=2), Number(66.0, rank=1))
    assert {column.group for column in table.columns} == {"Hard assignment", "Soft assignment", "Complete heads"}


def test_controls_without_a_fullq_record_wait_for_both():
    table = layout("spectral", [cell("hard-original", 60.0), cell("tfa", 61.0)])
    assert shown(table, "SPED", OWN)["Original cosine"] == Shown()
    assert any("SPED: no record of tfa-fullq for the assignment" in note for note in table.footnotes)


def test_budgets_grow_downwards_and_ours_stand_apart():
    cells = [cell(name, 50.0) for name in ("tfa-c16", "tfa-c8", "dual-c8", "tfa-c64+", "tfa-c64+-ensemble", "vlad")]
    table = layout("budgets", cells, paper=False)
    assert [(group.title, [row.stubs[0] for row in group.rows]) for group in table.groups] == [
        ("Single vocabulary", ["TFA-C8", "TFA-C16"]),
        ("Dual vocabulary", ["DUAL-C8"]),
        ("Ours, beyond the paper", ["TFA-C64+", "TFA-C64+-ENSEMBLE"]),
    ]
    assert all(one.number.rank == 0 for row in table.rows for one in row.shown if one.number)


def test_ablations_are_ranked_within_their_block():
    cells = [cell("tfa", 80.0), cell("tfa-no-cls", 81.0), cell("tfa-fullq", 90.0), cell("tfa-fullq-no-cls", 85.0)]
    table = layout("ablation", [*cells, cell("tfa", 3.0, **elsewhere("unchanged"))], paper=False)
    ranks = {row.stubs[0]: row.shown[0].number.rank for row in table.rows}  # type: ignore[union-attr]
    assert ranks == {"TFA": SECOND, "TFA-NO-CLS": BEST, "TFA-FULLQ": BEST, "TFA-FULLQ-NO-CLS": SECOND}
    assert [column.title for column in table.columns] == ["SPED"]


def test_heads_shows_deep_recalls_of_one_dataset_and_r1_of_several():
    one = [cell("tfa-c16", 60.0), cell("tfa-c8", 50.0), cell("anyloc", 55.0)]
    table = layout("heads", one)
    assert [column.full for column in table.columns] == ["R@1", "R@5", "R@10", "R@20"]
    assert [row.stubs[0] for row in table.rows] == ["ANYLOC", "TFA-C8", "TFA-C16"]
    assert [number.number.value for number in row_of(table, "TFA-C8", "database").shown] == [50, 54, 59, 69]  # type: ignore[union-attr]
    several = layout("heads", [*one, cell("anyloc", 42.0, **elsewhere("backyard"))])
    assert [column.full for column in several.columns] == ["SPED", "backyard"]
    assert row_of(several, "TFA-C8", "database").shown[1] == Shown()


def test_heads_stand_with_their_kind():
    names = ("dual-c64", "tfa-c64+", "tfa-fullq-no-cls", "tfa-no-cls", "tfa-fullq", "tfa", "soft-full", "tfvpr")
    table = layout("heads", [cell(name, 50.0) for name in names])
    assert {group.title: [row.stubs[0].lower() for row in group.rows] for group in table.groups} == {
        "Peers": ["tfvpr"],
        "Spectral controls": ["soft-full"],
        "TFA": ["tfa", "tfa-fullq"],
        "TFA, dual vocabulary": ["dual-c64"],
        "Ours, beyond the paper": ["tfa-c64+"],
        "Ablations": ["tfa-fullq-no-cls", "tfa-no-cls"],
    }


def test_our_heads_beyond_the_paper_stand_apart():
    names = (
        "second-partial",
        "second-order-c64-v",
        "judged",
        "judged-c64-v",
        "judged-follow",
        "judged-support",
        "judged-c64-no-score",
    )
    table = layout("heads", [cell(name, 50.0) for name in (*names, "tfa-online")])
    assert {group.title: [row.stubs[0].lower() for row in group.rows] for group in table.groups} == {
        "Ours, beyond the paper": ["tfa-online"],
        "Default head of tfa build (ours, beyond the paper)": ["second-order-c64-v"],
        "Second order (ours, beyond the paper)": ["second-partial"],
        "Judged (ours, beyond the paper)": ["judged", "judged-c64-v", "judged-follow"],
        "Ablations": ["judged-c64-no-score", "judged-support"],
    }
    blocks = layout("ablation", [cell(name, 50.0) for name in ("judged", "judged-c64", *names)], paper=False).groups
    assert {group.title: len(group.rows) for group in blocks} == {
        "Judged, database only": 2,
        "Judged, 64 target photos": 2,
    }


def test_the_overview_groups_heads_by_what_they_saw_and_has_a_mean():
    cells = [
        cell(name, value) for name, value in (("ria", 60.0), ("second-order", 70.0), ("second-order-online", 80.0))
    ]
    cells += [
        cell("second-order", 40.0, **elsewhere("town")),
        cell("ria", 50.0, **elsewhere("town")),
        cell("tfvpr", 99.0),
    ]
    table = layout("overview", cells)
    assert [column.full for column in table.columns] == ["SPED", "town", "mean"]
    assert [[row.stubs[0] for row in group.rows] for group in table.groups] == [
        ["RIA", "SECOND-ORDER"],
        ["SECOND-ORDER-ONLINE"],
    ]
    assert row_of(table, "SECOND-ORDER", "database").shown[-1] == Shown(Number(55.0, rank=BEST))
    assert row_of(table, "RIA", "database").shown[-1] == Shown(Number(55.0, rank=BEST))
    assert row_of(table, "SECOND-ORDER-ONLINE", "database").shown[1:] == (Shown(), Shown())  # not on every dataset
    assert [column.full for column in layout("overview", cells[:3]).columns] == ["SPED"]


def test_the_product_table_is_in_plain_words_with_one_decimal():
    cells = [
        cell("ria", 60.04),
        cell("second-order", 70.0),
        cell("second-order-v", 75.04, note="ours, beyond the paper"),
    ]
    cells += [cell("ria", 50.0, queries=81, **elsewhere("town")), cell("judged-v", 99.0)]
    cells += [cell("second-order-c64-v", 80.06, plan="C64", sds={1: 1.26}, sees="target")]
    text = markdown(layout("product", cells, paper=False))
    lines = [[field.strip() for field in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == ["Head", "Data used", "SPED", "town", "mean"]
    assert [line for line in lines[2:] if not line[0].startswith("**")] == [
        ["Number of queries", "", "607", "81", "–"],
        ["RIA (our reconstruction)", "database", "60.0", "**50.0**", "**55.0**"],
        ["`tfa build` without reranking", "database", "_70.0_", "–", "–"],
        ["`tfa build` (default)", "database", "**75.0**", "–", "–"],
        ["`tfa build` + `tfa calibrate`", "target", "80.1±1.3", "–", "–"],
    ]
    assert "Calibrated rows set aside 64 queries" in text
    assert "not the published TFA" in text
    assert "Data used: the images a method was fitted on" in text
    assert "ours, beyond the paper" not in text  # the titles name the commands


def test_ranks_do_not_compare_encoders():
    table = layout("heads", [cell("a", 50.0), cell("b", 40.0), cell("a", 90.0, encoder="other@14")])
    assert row_of(table, "A", "database", OWN).shown[0].number.rank == BEST  # type: ignore[union-attr]
    assert row_of(table, "A", "database", "other@14").shown[0].number.rank == BEST  # type: ignore[union-attr]


def test_footnotes_say_what_was_evaluated_and_what_notes_mean():
    cells = [
        cell("ria", 60.0, note="reconstruction: log map", title="RIA", sees="nothing"),
        cell("tfa-c64", 70.0, plan="C64", sds={1: 1.0}, queries=300, sees="target"),
    ]
    notes = "\n".join(layout("primary", cells).footnotes)
    assert f"Encoder of the records: {OWN}." in notes
    assert "SPED: 300 queries here, 607 in its published protocol." in notes
    assert "C64 and similar: this many unlabeled queries calibrate, and the others are evaluated" in notes
    assert "RIAᵈ: reconstruction: log map." in notes
    assert "Data used, without labels: nothing (RIAᵈ), target (TFA-C64)." in notes
    assert "SALAD, SelaVPR++: supervised references" in notes
    assert "ʳ checkpoint inference; ᵈ reconstruction" in notes
    assert "Table 1 (tab:iclr-primary)" in notes


def test_an_unknown_or_empty_table_says_what_to_do():
    with pytest.raises(NoTable, match="did you mean 'budgets'"):
        layout("budget", [cell("tfa", 1.0)])
    for name in LAYOUTS:
        with pytest.raises(NoTable, match=f"no data for table '{name}'"):
            layout(name, [])


def test_cells_come_from_records(tmp_path):
    truth = synthetic_truth([[0]] * 4, name="sped")
    right, wrong = ranking([0], 10), ranking([1], 10)
    whole = synthetic_record(truth, [[[right]], [[right]], [[right]], [[wrong]]], head=named("tfa"))
    drawn = synthetic_record(
        truth, [[[right], [right]], [[right], [wrong]], [[wrong], [wrong]], [[right], [right]]],
        head={**named("tfa-c2"), "note": "ours"}, evaluated=[[0, 1], [2, 3]],
        plan={"kind": "budget", "name": "C2", "n": 2, "splits": 2},
    )  # fmt: skip
    [fold] = whole.folds[0]
    routed = synthetic_record(
        truth, whole.rankings, head=named("tfa-fullq"), folds=(({**fold, "decisions": {"route": "mixture"}},),)
    )
    written(tmp_path, truth, whole, drawn, routed)
    found = {one.head: one for one in read_cells(tmp_path)}
    tfa, budget, fullq = (found.pop(name) for name in ("tfa", "tfa-c2", "tfa-fullq"))
    assert found == {}
    assert tfa.recalls == {1: 75.0, 5: 75.0, 10: 75.0}  # rankings of 10: no recall at 20
    assert (tfa.sds, tfa.queries, tfa.dataset_title, tfa.encoder) == ({}, 4, "Sped", "tiny@28")
    assert (tfa.paper_row, tfa.group, tfa.declared, tfa.route) == ("SPED", "Condition shift", 607, None)
    assert budget.recalls[1] == pytest.approx(75.0)
    assert budget.sds[1] == pytest.approx(35.355, abs=0.001)
    assert (budget.plan, budget.note, fullq.route) == ("C2", "ours", "mixture")
    with pytest.raises(NoTable, match="no record of encoder 'x@1'; it has tiny@28"):
        read_cells(tmp_path, encoder="x@1")


def test_tables_load_no_model():
    heavy = "{'torch', 'matplotlib', 'scipy', 'typer'}"
    code = f"import sys, tfa_bench.tables.table_specs, tfa_bench.tables.table\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

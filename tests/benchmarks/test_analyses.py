"""Analyses of the paper on records and cells made by hand: paired splits, comparisons, decisions, means of maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.synthetic_cells import OWN, PAPERS, cell, elsewhere
from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth, written
from tfa.errors import BadSpec
from tfa_bench.scores import evaluate_like, score, score_folder, select_replica
from tfa_bench.tables.analyses import COMPARISONS, Comparison, compare_cells, read_paired
from tfa_bench.tables.paper_figures import BACKBONES
from tfa_bench.tables.table import Number, Shown, Table, average_cells, read_cells
from tfa_bench.tables.table_specs import layout

RIGHT, WRONG = ranking([0], 10), ranking([1], 10)
TRUTH = synthetic_truth([[0]] * 4, name="sped")


def shown(table: Table, *stubs: str) -> dict[str, Shown]:
    [row] = [row for row in table.rows if row.stubs == stubs]
    return {column.full: one for column, one in zip(table.columns, row.shown, strict=True)}


def answers(right: str, splits: int = 1, replicas: int = 1) -> list:
    """Rankings of a head that answers the queries marked 1 correctly in every split and replica."""
    return [[[RIGHT if one == "1" else WRONG] * replicas] * splits for one in right]


def write_pair(folder: Path) -> None:
    """C2 on the queries 0, 1 and then 2, 3; the reference misses query 3, the plain head 1 and 3."""
    drawn = synthetic_record(TRUTH, answers("1101", 2), head=named("tfa-c2"), evaluated=[[0, 1], [2, 3]])
    full = synthetic_record(TRUTH, answers("1110"), head=named("tfa-fullq"))
    plain = synthetic_record(TRUTH, answers("1010"), head=named("tfa"))
    other = synthetic_record(TRUTH, answers("0000"), head=named("dual-fullq"))
    written(folder, TRUTH, drawn, full, plain, other)


def test_a_reference_is_evaluated_on_the_queries_of_each_split():
    drawn = synthetic_record(TRUTH, answers("1101", 2), evaluated=[[0, 1], [2, 3]])
    full = synthetic_record(TRUTH, answers("1110", replicas=2))
    scored = score(evaluate_like(full, drawn), TRUTH, ks=[1])
    assert scored.splits == ((1.0,), (0.5,))
    assert (scored.seeds, scored.recalls[1].mean) == (drawn.seeds, 0.75)
    assert scored.recalls[1].sd == pytest.approx(np.std([1, 0.5], ddof=1))
    with pytest.raises(BadSpec, match="has 2 splits"):
        evaluate_like(drawn, full)


def test_paired_rows_have_retention_and_recovery_of_the_same_queries(tmp_path):
    write_pair(tmp_path)
    cells = [*read_cells(tmp_path), *read_paired(tmp_path)]
    table = layout("paired", cells)
    found = shown(table, "Sped", "TFA-C2", "TFA-FULLQ")
    half = pytest.approx(np.std([100, 50], ddof=1))
    assert (found["Calibrated"].number.value, found["Calibrated"].number.sd) == (75, half)  # 100 and 50
    assert (found["Reference"].number.value, found["Reference"].number.sd) == (75, half)
    assert (found["Difference"].number.value, found["Difference"].number.sd) == (0, 0)
    assert found["Uncalibrated"].number == Number(50, 0)  # one of two in each split
    assert found["Retention %"].number == Number(100)
    assert found["Recovery %"].number == Number(100, digits=1)
    assert [row.stubs for row in table.rows] == [("Sped", "TFA-C2", "TFA-FULLQ")]
    assert [one.head for one in read_paired(tmp_path, encoder="other@1")] == []
    assert len(list(layout("heads", cells).rows)) == 4  # cells on other queries are in no other table


def paired_cells(head: str, reference: str, plain: str, splits: tuple[tuple[float, ...], ...], **changed) -> list:
    """Cells of one row of the paired table; `splits` are recalls of the three heads in each split."""
    names = (head, reference, plain)
    return [
        cell(name, sum(own) / len(own), splits={1: own}, on="" if name == head else head, **changed)
        for name, own in zip(names, splits, strict=True)
    ]


def test_retention_and_recovery_are_ratios_of_means_and_need_a_gain():
    row = paired_cells("dual-c64", "dual-crossfit", "dual", ((80.0, 84.0), (90.0, 92.0), (60.0, 62.0)))
    found = shown(layout("paired", row), "SPED", "DUAL-C64", "DUAL-CROSSFIT")
    assert found["Difference"].number == Number(-9.0, pytest.approx(2**0.5))  # -10 and -8
    assert found["Retention %"].number == Number(pytest.approx(100 * 82 / 91))
    assert found["Recovery %"].number == Number(pytest.approx(100 * 21 / 30), digits=1)
    worse = paired_cells("dual-c64", "dual-crossfit", "dual", ((80.0,), (60.0,), (61.0,)))
    assert shown(layout("paired", worse), "SPED", "DUAL-C64", "DUAL-CROSSFIT")["Recovery %"] == Shown()


def test_paired_figures_of_the_papers_text_stand_beside_ours():
    row = paired_cells("tfa-c64", "tfa-fullq", "tfa", ((80.0,), (90.0,), (60.0,)), encoder=PAPERS)
    found = shown(layout("paired", row), "SPED", "TFA-C64", "TFA-FULLQ")
    assert found["Calibrated"].beside == Number(83.79, 0.63, origin="text")
    assert found["Reference"].beside == Number(84.64, origin="text")
    assert found["Recovery %"].beside is None  # printed for the dual system only
    without = shown(layout("paired", row, paper=False), "SPED", "TFA-C64", "TFA-FULLQ")
    assert all(one.beside is None for one in without.values())
    [large] = [encoder for encoder, backbone in BACKBONES.items() if backbone == "DINOv2-G L31"]
    row = paired_cells("dual-c64", "dual-crossfit", "dual", ((80.0,), (90.0,), (60.0,)), encoder=large)
    found = shown(layout("paired", row), "SPED", "DUAL-C64", "DUAL-CROSSFIT")
    assert found["Recovery %"].beside == Number(50.3, digits=1, origin="text")


def test_every_dataset_and_encoder_counts_once_in_a_comparison():
    town, sea = elsewhere("town"), elsewhere("sea", group="Aerial / cross-view")
    cells = [
        *(cell("tfa-fullq", recall, **at) for recall, at in ((80.0, {}), (70.001, town), (60.0, sea))),
        *(cell("tfa-fullq-forced-partial", r, **at) for r, at in ((78.5, {}), (69.999, town), (60.25, sea))),
        cell("tfa-fullq", 99.0, encoder=PAPERS),  # without the other head it is no cell
    ]
    rule = next(one for one in COMPARISONS if one.others == ("tfa-fullq-forced-partial",))
    assert sorted(compare_cells(cells, rule, frozenset())) == [-0.25, 0.0, 1.5]
    found = shown(layout("comparisons", cells), "TFA-FULLQ", "TFA-FULLQ-FORCED-PARTIAL", rule.printed)
    values = {name: one.number.value for name, one in found.items()}
    assert [values[name] for name in ("Cells", "Wins", "Ties", "Losses")] == [3, 1, 1, 1]
    assert values["Mean gain"] == pytest.approx(1.25 / 3)
    assert (values["Worst"], values["Best"]) == (-0.25, 1.5)


def test_a_comparison_is_with_the_best_of_several_and_may_be_aerial_only():
    sea = elsewhere("sea", group="Aerial / cross-view")
    cells = [cell(name, recall) for name, recall in (("tfa", 50.0), ("anyloc", 40.0), ("tfvpr", 55.0), ("ria", 1.0))]
    cells += [cell(name, recall, **sea) for name, recall in (("tfa", 50.0), ("anyloc", 40.0), ("tfvpr", 45.0))]
    peers = ("anyloc", "tfvpr")
    assert compare_cells(cells, Comparison("tfa", peers, "", False), frozenset(["sea"])) == [-5.0]
    assert compare_cells(cells, Comparison("tfa", peers, "", True), frozenset(["sea"])) == [5.0]
    assert compare_cells(cells, Comparison("tfa", (*peers, "ria"), ""), frozenset()) == [-5.0]  # ria is not at sea
    assert [row.stubs[0] for row in layout("comparisons", cells, paper=False).rows] == ["TFA (ground)"]


def decided(route: str, carrier: str, c: float, token: bool = False) -> dict:
    used = ("hard", "soft") if route == "mixture" else (route,)
    strengths = {name: {"c": c + 0.1 * (name == "soft" and len(used) > 1), "beta": 0.0} for name in used}
    return {"route": route, "carrier": carrier, "admit_cls": token, "strengths": strengths}


def test_decisions_are_counted_and_strengths_have_a_range():
    splits = (
        decided("hard", "partial", 0.5),
        decided("mixture", "adaptive", 0.2, True),
        decided("soft", "adaptive", 0.25),
    )
    plain = {"assignment": "soft", "carrier": "adaptive", "admit_cls": True, "c": 1.0, "beta": 0.0}
    table = layout("decisions", [cell("tfa-c64", 1.0, decisions=splits), cell("tfa", 1.0, decisions=(plain,))])
    found = {name: one.number.value for name, one in shown(table, "SPED", "TFA-C64").items()}
    expected = {"splits": 3, "hard": 1, "soft": 1, "mixture": 1, "original": 0, "partial": 1, "adaptive": 2, "CLS": 1}
    assert {name: found[name] for name in expected} == expected
    assert (found["c min"], found["c max"]) == (0.2, 0.5)
    assert found["weight % min"] == pytest.approx(100 * np.sin(np.pi * 0.1) ** 2)
    assert found["weight % max"] == pytest.approx(50)
    assert shown(table, "SPED", "TFA")["weight % max"].number.value == pytest.approx(100)


def four_maps(head: str, recalls: tuple[tuple[float, ...], ...], encoder: str = OWN) -> list:
    names = ("City Loop", "Office Loop", "Old Town", "Parking Garage")
    return [
        cell(
            head,
            sum(own) / len(own),
            splits={1: own},
            encoder=encoder,
            **elsewhere(name, f"4Seasons {name}", "Driving"),
        )
        for name, own in zip(names, recalls, strict=True)
    ]


def test_the_four_map_mean_averages_maps_within_a_split():
    cells = [
        *four_maps("tfa-c64", ((80.0, 84.0), (90.0, 90.0), (70.0, 70.0), (100.0, 100.0)), PAPERS),
        *four_maps("fullq-adaptive", ((82.0,), (90.0,), (70.0,), (98.0,)), PAPERS),
        *four_maps("tfa", ((1.0,), (2.0,), (3.0,), (4.0,)), PAPERS)[:3],  # not on every map: no mean
    ]
    table = layout("spectral", cells)
    found = shown(table, "Four-map mean")
    assert found["TFA-C64"].number.value == 85.5
    assert found["TFA-C64"].number.sd == pytest.approx(np.std([85, 86], ddof=1))  # not the mean of the maps' deviations
    assert found["TFA-C64"].beside == Number(85.64, 0.51, origin="spectral")
    assert (found["Adaptive spectrum"].number.value, found["Adaptive spectrum"].number.sd) == (85.0, None)
    assert found["TFA"].number is None
    assert [row.stubs[0] for row in table.rows][-1] == "Four-map mean"


def test_controls_under_fullq_stand_for_a_mixture_and_for_the_adaptive_spectrum():
    cells = [cell("tfa-fullq", 70.0, route="mixture"), cell("hard-original", 1.0), cell("soft-adaptive", 2.0)]
    empty = shown(layout("spectral", cells), "SPED", OWN)
    assert empty["Original cosine"] == empty["Adaptive spectrum"] == Shown()
    names = {"original": 60.0, "partial": 61.0, "full": 62.0, "adaptive": 63.0}
    found = shown(layout("spectral", [*cells, *(cell(f"fullq-{n}", r) for n, r in names.items())]), "SPED", OWN)
    titles = ("Original cosine", "Partial whitening", "Full whitening", "Adaptive spectrum")
    assert [found[title].number.value for title in titles] == [60.0, 61.0, 62.0, 63.0]


def test_the_database_strengths_never_fill_the_adaptive_column():
    cells = [cell("tfa-fullq", 70.0, route="soft"), cell("soft-original", 65.0), cell("soft-adaptive", 2.0)]
    table = layout("spectral", cells)
    found = shown(table, "SPED", OWN)
    assert (found["Original cosine"].number.value, found["Adaptive spectrum"]) == (65.0, Shown())
    assert any("SPED: run the heads fullq-" in note for note in table.footnotes)


def test_scenes_have_a_mean_only_if_all_are_there():
    scenes = [cell("tfa", float(i), **elsewhere(f"anyvisloc-{i:02}")) for i in range(24)]
    groups = {group.title: group.rows[0] for group in layout("aerial", scenes, paper=False).groups}
    assert groups["AnyVisLoc, mean of 24 scenes"].shown[-3].number.value == 11.5
    assert len(groups) == 25
    assert len(layout("aerial", scenes[1:], paper=False).groups) == 23


def test_the_matched_anyloc_has_a_column_where_it_is_recorded():
    columns = [column.full for column in layout("primary", [cell("tfa", 1.0)]).columns]
    assert "AnyLoc, matchedᵈ" not in columns
    table = layout("primary", [cell("tfa", 1.0), cell("anyloc", 2.0), cell("hard-original", 3.0)])
    assert [column.full for column in table.columns][2:5] == ["ANYLOC", "AnyLoc, matchedᵈ", "TF-VPR"]
    assert shown(table, "SPED", OWN)["AnyLoc, matchedᵈ"].number.value == 3.0
    assert any(note.startswith("AnyLoc, matchedᵈ: our reading: head hard-original") for note in table.footnotes)


@pytest.mark.parametrize(
    ("row", "encoder", "value"),
    [("Park", PAPERS, 7.0), ("Park", "dinov3-b16@336", 7.0), ("Urbanscape", PAPERS, 7.0),
     ("Urbanscape", "dinov3-b16@336", 9.0), ("Park", OWN, 9.0), ("VPAIR-full", PAPERS, 9.0)],
)  # fmt: skip
def test_anyloc_is_of_seed_0_where_the_papers_is(row, encoder, value):
    at = elsewhere(row.lower(), row, "Aerial / cross-view")
    cells = [cell(head, 9.0, encoder=encoder, first_replica={1: 7.0}, **at) for head in ("anyloc", "tfa")]
    table = layout("aerial", cells, paper=False)
    found = shown(table, encoder)
    assert (found["ANYLOC R@1"].number.value, found["TFA R@1"].number.value) == (value, 9.0)
    assert any("seed 0" in note for note in table.footnotes) == (value == 7.0)


def test_ground_backbones_full_query_and_aerial_access_stand_beside_the_paper():
    three = "dinov3-b16@336"
    cells = [
        cell(head, 80.0, encoder=encoder) for head in ("tfa-c64", "tfa-fullq", "ria") for encoder in (PAPERS, three)
    ]
    ground = layout("ground-backbones", cells)
    assert shown(ground, "SPED", three)["TFA-FULLQ"].beside == Number(86.55, origin="ground-backbones")
    assert shown(ground, "SPED", PAPERS)["RIA"].beside == Number(69.85, mark="d", origin="ground-backbones")
    full = shown(layout("full-query", cells), "SPED", PAPERS)
    assert [full[name].beside for name in ("TFA-C64", "TFA-FULLQ")] == [
        Number(83.79, 0.63, origin="full-query"),
        Number(85.01, origin="full-query"),
    ]
    park = elsewhere("park", "Park", "Aerial / cross-view")
    access = layout("aerial-access", [*cells, cell("tfa-fullq", 40.0, encoder=three, **park)])
    assert [group.title for group in access.groups] == ["Park"]
    assert shown(access, three)["TFA-FULLQ R@5"].beside == Number(80.57, origin="aerial-access")
    assert shown(access, "paper (DINOv2-B)")["TFA-C64 R@1"].number.value == 36.61


def test_one_seed_is_scored_on_its_own(tmp_path):
    truth = synthetic_truth([[0]] * 2)
    several = synthetic_record(truth, [[[RIGHT, WRONG]], [[RIGHT, RIGHT]]], head=named("anyloc"))
    single = synthetic_record(truth, [[[WRONG]], [[RIGHT]]], head=named("tfvpr"), replicas=("only",))
    written(tmp_path, truth, several, single)
    recalls = {
        replica: [one.recalls[1].mean for one in score_folder(tmp_path, ks=[1], replica=replica)]
        for replica in (None, "0", "1")
    }
    assert recalls == {None: [0.75, 0.5], "0": [1.0, 0.5], "1": [0.5, 0.5]}  # a head without seeds stays as it is
    assert read_cells(tmp_path)[0].first_replica[1] == 100
    with pytest.raises(BadSpec, match=r"no replica '7'; use one of 0, 1"):
        select_replica(several, "7")


def test_means_of_datasets_keep_only_recalls_that_all_have():
    one, other = cell("a", 1.0), cell("a", 3.0, recalls={1: 3.0}, **elsewhere("town"))
    [mean] = average_cells([one, other], lambda cell: cell.dataset, 2, dataset="both")
    assert (mean.dataset, mean.recalls, mean.sds, mean.queries) == ("both", {1: 2.0}, {}, 1214)
    assert average_cells([one], lambda cell: cell.dataset, 2) == []

"""Recall of datasets alone and as one gallery."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from studies.scale.rows import SavedRows, tables
from studies.scale.union import UNION, Datasets, run_union
from tests.benchmarks.studies.test_reduction_study import made_up
from tfa_bench.heads.catalogue import head_card
from tfa_bench.run import current_record, run_heads


def right_town(name: str, seed: int):
    """A town whose second photo of a place is what a query is like."""
    bench = made_up(name, seed)
    positives = tuple(np.array([2 * place + 1]) for place in range(len(bench.queries)))
    return replace(bench, truth=replace(bench.truth, positives=positives))


def test_recall_alone_and_in_the_union(tmp_path):
    benches, saved = [right_town("village", 0), right_town("hamlet", 1)], SavedRows()
    rows = list(run_union(Datasets.of(benches), ["anyloc", "judged"], saved, None))
    assert [(row["gallery"], row["head"]) for row in rows] == [
        (gallery, head) for gallery in (UNION, "village", "hamlet") for head in ("anyloc", "judged")
    ]
    assert set(rows[0]["recall"]) == {"village", "hamlet"}
    assert rows[0]["images"] == 32
    alone = {row["gallery"]: row["recall"] for row in rows if row["head"] == "judged"}
    for name in ("village", "hamlet"):
        assert alone[name][name] == alone[UNION][name] == 1.0  # by chance 0.06, and by the numbers of another town 0
    shown = tables(saved.rows.values())["union"].splitlines()
    assert shown[0] == f"`{benches[0].encoder.id}`:"
    assert [line.split(" | ")[0] for line in shown[2:]] == ["| dataset", "| ---", "| village", "| hamlet", "| mean"]
    assert list(run_union(Datasets.of(benches), ["anyloc", "judged"], saved, None)) == []
    run_heads(benches[0], [head_card("anyloc")], tmp_path, depth=2)
    again = list(run_union(Datasets.of(benches), ["anyloc"], SavedRows(), None, tmp_path))
    assert [(row["gallery"], "seconds" in row) for row in again] == [
        ("village", False),
        (UNION, True),
        ("hamlet", True),
    ]
    assert again[0]["recall"] == rows[2]["recall"]  # that of the record is that of the head
    assert list(run_union(Datasets(benches, list), ["anyloc"], saved, None)) == []  # nothing is encoded
    other = replace(benches[0], images="others")
    assert current_record(benches[0], head_card("anyloc"), tmp_path) is not None
    assert current_record(other, head_card("anyloc"), tmp_path) is None

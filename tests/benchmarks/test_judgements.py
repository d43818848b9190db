"""What the judge decided: a table from scored records."""

from __future__ import annotations

from types import SimpleNamespace

from tfa_bench.tables.page import judgments


def scored(head, decisions, dataset="town"):
    folds = [[{"decisions": one}] for one in decisions]
    return SimpleNamespace(dataset=dataset, dataset_title=dataset.title(), head=head, decisions=folds)


def decided(carrier, *learnt, representation="second_order", **candidates):
    return {
        "representation": representation,
        "carrier": carrier,
        "centring": "centring" in learnt,
        "score_calibrated": "score" in learnt,
        "candidates": {f"second_order/{name}": {"value": v, "error": 0.05} for name, v in candidates.items()},
    }


def rows(*records):
    return [line for line in judgments(records).splitlines() if line.startswith(("| Town", "| Lake"))]


def test_the_choice_its_evidence_and_the_splits():
    database = scored("judged", [decided("tempered", tempered=1.5, partial=1.4, original=1.25)])
    splits = [decided("partial", "centring", "score")] * 2 + [decided("full", "score")]
    assert rows(database, scored("judged-c64", splits)) == [
        "| Town | second_order/tempered | 1.50 ± 0.05 | 1.40 | second_order/partial+centering+score 2, "
        "second_order/full+score 1 |"
    ]


def test_what_is_missing_is_left_blank():
    unjudged = scored("judged", [decided("tempered")], "lake")
    assert rows(unjudged) == ["| Lake | second_order/tempered | – | – | – |"]
    only = scored("judged-c64", [decided("partial")])
    assert rows(only) == ["| Town | – | – | – | second_order/partial 1 |"]
    assert judgments([scored("tfa", [{}])]) == ""

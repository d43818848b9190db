"""Decisions that rest on less than one photo: records rank with their other side, tables show its R@1."""

import dataclasses
import json

import numpy as np
import pytest

from tests.benchmarks.rigged import PLACES, Rigged, only_record, rigged
from tests.benchmarks.synthetic_cells import cell
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.method.decisions import Flip
from tfa.types import HeadSpec
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.controls import fit_by
from tfa_bench.heads.tfa_heads import METHOD_RULES, RetrieverHead, flip_decision
from tfa_bench.protocols import NO_CALIBRATION
from tfa_bench.run import run_heads
from tfa_bench.scores import score
from tfa_bench.tables.table import average_cells, cells, markdown
from tfa_bench.tables.table_specs import layout

FLIP = {"decision": "carrier", "change": 1 / 3, "choice": "partial"}


class Edge(Rigged):
    """Half right; its other side is wrong for the first three queries, too."""

    def other_side(self):
        return FLIP, Worse(self.images)


class Worse(Rigged):
    def scores(self, queries, replica):
        scores = super().scores(queries, replica)
        numbers = [int(path.stem[1:]) for path in queries.paths]
        scores[[number < 3 for number in numbers]] = np.arange(self.images)
        return scores


def test_a_record_keeps_and_scores_the_other_side(bench, tmp_path):
    card = dataclasses.replace(rigged(NO_CALIBRATION), fit=lambda database, shared: Edge(len(database)))
    worse = dataclasses.replace(card, fit=lambda database, shared: Worse(len(database)))
    run_heads(bench, [card], tmp_path / "edge")
    run_heads(bench, [worse], tmp_path / "worse")
    scored, other = (score(*only_record(tmp_path / name)) for name in ("edge", "worse"))
    assert scored.other_side == other.recalls[1]
    assert scored.recalls[1].mean - other.recalls[1].mean == pytest.approx(1.5 / PLACES)  # one of two replicas
    assert other.other_side is None
    assert scored.to_dict()["other_side"]["mean"] == other.recalls[1].mean
    assert scored.decisions[0][0]["decisions"]["other_side"] == FLIP
    [one] = cells([scored])
    assert (one.other_side, one.flips) == (100 * other.recalls[1].mean, "carrier partial")
    assert run_heads(bench, [card], tmp_path / "edge", again=True)[0].outcome == "same"


def test_tables_mark_the_knife_edge_and_show_the_other_side():
    text = markdown(layout("heads", [cell("tfa", 71.8, other_side=60.3, flips="assignment hard"), cell("ria", 60.0)]))
    assert "71.80**ᵏ" in text
    assert "ᵏ A decision rests on less than one photo. R@1 on its other side: SPED TFA 60.30 (assignment hard)." in text
    assert "ᵏ" not in markdown(layout("heads", [cell("tfa", 71.8)]))


def test_every_row_with_a_close_decision_is_marked():
    rows = [
        cell("tfa", 71.8, other_side=60.3, flips="carrier partial; also close: assignment soft"),
        cell("tfa-v", 80.0, title="TFA+V", flips="assignment soft"),
    ]
    text = markdown(layout("heads", rows))
    assert "80.00**ᵏ" in text
    assert (
        "ᵏ A decision rests on less than one photo. R@1 on its other side: SPED TFA 60.30 (carrier partial; also close:"
        " assignment soft). Not ranked on its other side: TFA+V." in text
    )
    assert "R@1 on" not in markdown(layout("heads", rows[1:])).partition("ᵏ A decision")[2]


MARGINS = {
    "assignment": {"agreement": {"change": 0.0, "choice": "soft"}},  # as in older records
    "admit_cls": {"photos": {"change": 1.0, "choice": "used"}},
    "carrier": {"photos": {"change": 1 / 3, "choice": "partial"}},
}


@pytest.mark.parametrize(
    ("kind", "flips"),
    [(Rigged, "assignment soft, carrier partial"), (Edge, "carrier partial; also close: assignment soft")],
)
def test_the_margins_of_a_record_mark_its_row(bench, tmp_path, kind, flips):
    def fit(database, shared):
        made = kind(len(database))
        made.decisions["margins"] = MARGINS
        return made

    run_heads(bench, [dataclasses.replace(rigged(NO_CALIBRATION), fit=fit)], tmp_path)
    [one] = cells([score(*only_record(tmp_path))])
    assert one.flips == flips
    assert (one.other_side is None) == (kind is Rigged)
    assert "ᵏ" in markdown(layout("heads", [one]))


def test_a_mean_has_another_side_if_all_its_datasets_have_one():
    def mean(*others):
        rows = [cell("tfa", 50.0, other_side=one, flips="carrier partial", dataset=f"town {i}") for i, one in others]
        [made] = average_cells(rows, lambda cell: cell.dataset, len(rows), dataset="mean")
        return made.other_side, made.flips

    assert mean(*enumerate((40.0, 50.0))) == (45.0, "the closest decision in every dataset")
    assert mean(*enumerate((40.0, None))) == (None, "")


def test_heads_of_every_kind_keep_margins():
    tokens = world(24, 40)
    database = Photos(Tokens(tokens.patches, tokens.cls, grid=(5, 8)))
    shared = Shared(spec=HeadSpec(words=6))
    for name in ("tfa", "tfa-ensemble", "tfa-v", "tfa-online", "tfa-support-only"):
        decisions = head_card(name).fit(database, shared).decisions
        assert {"assignment", "admit_cls", "carrier"} <= decisions["margins"].keys(), name


def test_a_flipped_decision_is_the_only_one_that_is_forced():
    database = world(24, noise=0.5)
    head = pipeline.fit(database, HeadSpec(words=6))
    for assignment in ("hard", "soft"):
        forced = fit_by(dataclasses.replace(METHOD_RULES, assignment=lambda hard, soft, own=assignment: own), head)
        assert flip_decision(head, "assignment", assignment).decisions == forced.decisions
    assert flip_decision(head, "carrier", "original").decisions == dataclasses.replace(
        head.decisions, carrier="original"
    )
    assert flip_decision(head, "admit_cls", "used").decisions.admit_cls
    target = pipeline.calibrate(head, seen_again(database).select(range(10)))
    flipped = flip_decision(target, "carrier", "original")
    assert (flipped.decisions.carrier, flipped.data_used) == ("original", "target")


@pytest.mark.parametrize("change", [0.4, 1.0])
def test_only_a_decision_closer_than_a_photo_has_another_side(change):
    database = world(24)
    head = pipeline.fit(database, HeadSpec(words=6))
    margins = {"carrier": {"photos": Flip(change, "original")}}
    close = dataclasses.replace(head, evidence=dataclasses.replace(head.evidence, margins=margins))
    found = RetrieverHead(close, two_sided=True).other_side()
    assert RetrieverHead(close).other_side() is None
    if change >= 1:
        assert found is None
        return
    flip, other = found
    assert json.loads(json.dumps(flip)) == {"decision": "carrier", "change": 0.4, "choice": "original"}
    expected = flip_decision(head, "carrier", "original").scores(database)
    np.testing.assert_array_equal(other.scores(Photos(database, ()), "0"), expected)
    assert other.other_side() is None

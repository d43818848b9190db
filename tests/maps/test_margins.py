"""How far decisions were from flipping, by hand-made evidence."""

import math
from types import SimpleNamespace

import pytest

from tests.fakes import FakeEncoder
from tfa.maps import PlaceMap
from tfa.maps.describe import (
    Condition,
    compute_margins,
    format_reason,
    list_decisions,
    note_close_decisions,
    require_all,
    require_any,
)
from tfa.types import HeadSpec


def second_order():
    made = {"representation": "second_order", "carrier": "tempered", "centring": False, "score_calibrated": False}
    evidence = {"strengths": {}, "reasons": {"representation": "because", "carrier": "so"}}
    return {"decisions": made, "evidence": evidence, "data_used": "database", "verification": None}


def test_a_second_order_head_has_no_margin():
    assert compute_margins(second_order()) == {}
    row, carrier, *_ = list_decisions(second_order())
    assert (row.margin, format_reason(row.to_dict()), format_reason(carrier.to_dict())) == (None, "because", "so")


def test_an_older_map_shows_what_its_judge_said():
    head = second_order()
    older = {"photos": 9, "kind": "x", "incumbent": "y", "candidates": {}, "strengths": {}, "reasons": {"judge": "why"}}
    row, carrier, *_ = list_decisions({**head, "evidence": older})
    assert (row.reason, carrier.reason) == ("why", "two thirds plain scores, one third whitened scores")


def paper(chosen, supports, agreement, **more):
    candidates = {
        f"soft/{name}": {"supports": own, "agreement": [agreement[name]] * 3, "support": sum(own) / 3}
        for name, own in supports.items()
    }
    made = {"assignment": "soft", "carrier": chosen, "admit_cls": False, "c": 0.1, "beta": 0.2}
    evidence = {"candidates": candidates, "pseudo_queries": 100, "reasons": {}, **more}
    return {"decisions": made, "evidence": evidence, "data_used": "database", "verification": None}


def test_the_papers_carrier_flips_where_the_nearest_of_its_conditions_does():
    supports = {"original": [60, 62, 64], "partial": [70, 72, 74], "adaptive": [69, 72, 72]}
    same = dict.fromkeys(supports, 0.5)
    told = compute_margins(paper("partial", supports, same))["carrier"]
    # partial reaches 1, 0 and 2 images more than adaptive: 1 ± 1/√3
    assert told["standard_errors"] == pytest.approx(math.sqrt(3))
    assert "soft/adaptive reaches 1.0 ± 0.6 fewer images than soft/partial" in told["text"]
    wider = {**supports, "adaptive": [80, 82, 84]}
    told = compute_margins(paper("adaptive", wider, same))["carrier"]
    assert told["standard_errors"] == 0  # agreement is not lowered, by nothing at all
    assert told["within_noise"]
    apart = compute_margins(paper("adaptive", wider, {**same, "adaptive": 0.9}))["carrier"]
    assert apart["standard_errors"] == pytest.approx(0.4 / math.sqrt((0.25 + 0.09) / 100))


def test_what_an_older_map_does_not_keep_is_not_guessed():
    head = paper(
        "partial",
        {name: [1, 1, 1] for name in ("original", "partial", "adaptive")},
        dict.fromkeys(("original", "partial", "adaptive"), 0.5),
    )
    for one in head["evidence"]["candidates"].values():
        del one["supports"]
    assert compute_margins(head) == {}


def test_conditions_combine_as_rules_do():
    weak, strong = Condition(1.0, 1.0, "weak"), Condition(3.0, 1.0, "strong")
    assert require_all(weak, strong) is weak
    assert require_any(weak, strong) is strong
    assert require_all(~weak, strong).strength == -1
    assert require_any(~weak, ~strong).what == "weak"
    assert Condition(0.1, 0.0, "").strength == math.inf
    assert Condition(0.0, 0.0, "").strength == 0


def test_every_decision_that_rests_on_less_than_one_photo_is_noted():
    margins = {
        "assignment": {
            "photos": {"change": 2.0, "choice": "hard"},
            "photos of agreement": {"change": 0.0, "choice": "hard"},
        },
        "carrier": {"photos": {"change": 1 / 3, "choice": "partial"}},
        "admit_cls": {"photos of both": {"change": 1.0, "choice": "used"}},
    }
    noted = note_close_decisions(SimpleNamespace(evidence={"margins": margins}))
    assert noted == [
        f"the {name} rests on less than one photo: it would be {choice} if support or agreement changed by {photos} "
        "photos"
        for name, choice, photos in (("assignment", "hard", "0.00"), ("carrier", "partial", "0.33"))
    ]
    assert note_close_decisions(SimpleNamespace(evidence={"margins": {"carrier": {}}})) == []
    assert note_close_decisions(SimpleNamespace(evidence={})) == []  # older maps


def test_the_info_of_a_paper_map_has_the_note(town):
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=HeadSpec(words=4))
    database = built.state.database
    assert built.info().evidence["margins"] == database.evidence["margins"]
    expected = note_close_decisions(database)
    assert [note for note in built.info().notes if "less than one photo" in note] == expected

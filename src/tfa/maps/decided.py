"""The decisions of a head in rows: what was decided, how, why, and how far that was from flipping.

The command line, the report, the service and its page show these rows and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfa.maps.margins import compute_margins
from tfa.method.judged import CARRIER_WORDS
from tfa.types import Decision, Margin


def list_decisions(head: Mapping[str, Any]) -> list[Decision]:
    """List the name, choice, reason and margin of each decision of a head, from its facts.

    The margin is null where nothing could flip or no standard error is known (`tfa.maps.margins`).
    """
    made, reasons = head["decisions"], head["evidence"]["reasons"]
    margins = compute_margins(head)
    if is_judged(made):
        rows = [("judge", *row) for row in _judged(made, reasons)[:1]]
        rows += [("", *row) for row in _judged(made, reasons)[1:]]
    else:
        rows = _calibrated(made, reasons) if "route" in made else _of_database(made, reasons)
    facts = head.get("verification")
    if facts:
        rows.append(("verification", "verification", "used" if facts["admitted"] else "not used", facts["reason"]))
    return [
        Decision(name=name, choice=choice, reason=reason, margin=None if key not in margins else Margin(**margins[key]))
        for key, name, choice, reason in rows
    ]


def format_reason(row: Mapping[str, Any]) -> str:
    """Format the reason of a row with how far the decision was from flipping."""
    margin = row["margin"]
    return "; ".join(filter(None, [row["reason"], None if margin is None else margin["in_words"]]))


def is_judged(decisions: Mapping[str, Any]) -> bool:
    """Are these decisions of a head that is not the paper's?"""
    return "representation" in decisions


def name_representation(made: Mapping[str, Any]) -> str:
    """Name the representation that photos are compared by."""
    name = made["representation"].replace("_", "-")
    return name if name == "second-order" else f"{name} residuals"


def _judged(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [
        ("representation", name_representation(made), reasons["judge"]),
        ("carrier", made["carrier"], CARRIER_WORDS[made["carrier"]]),
        ("centring", "on the photos" if made["centring"] else "on the map", "where queries are taken from"),
        ("scores", "calibrated" if made["score_calibrated"] else "as they are", ""),
    ]


def _of_database(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    token = "used" if made["admit_cls"] else "left out"
    return [
        ("assignment", "assignment", made["assignment"], reasons.get("assignment", "")),
        ("carrier", "carrier", made["carrier"], reasons.get("carrier", "")),
        ("admit_cls", "global token", token, reasons.get("admit_cls", "")),
        ("strengths", "strengths", f"c {made['c']:.3f}, β {made['beta']:.3f}", reasons.get("strengths", "")),
    ]


def _calibrated(made: Mapping[str, Any], reasons: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    mixed = f", soft {made['soft_weight']:.2f}" if made["route"] == "mixture" else ""
    strengths = "; ".join(f"{name} c {s['c']:.3f}, β {s['beta']:.3f}" for name, s in made["strengths"].items())
    token = f"used, weight {1 - made['local_weight']:.2f}" if made["admit_cls"] else "left out"
    scores = "calibrated" if made["score_calibrated"] else "as they are"
    return [
        ("route", "assignment", made["route"] + mixed, reasons.get("route", "")),
        ("carrier", "carrier", made["carrier"], reasons.get("carrier", "")),
        ("admit_cls", "global token", token, reasons.get("admit_cls", "")),
        ("strengths", "strengths", strengths, reasons.get("strengths", "")),
        ("", "scores", scores, reasons.get("score", "")),
    ]

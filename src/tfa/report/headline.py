"""A report in one line: "200 photos, 3 near-duplicate groups, expected recall 91 %, calibrate for night"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfa.report.advice import Advice


def write_headline(
    facts: Mapping[str, Any], duplicates: Sequence[Any], recall: Sequence[Mapping[str, Any]], advice: Sequence[Advice]
) -> str:
    """Photos, near duplicates, how many photos will be recognised, and what to do first.

    The recall is that of photos that were asked, else of the calibration that answers.
    """
    groups = len(duplicates)
    return ", ".join(
        [
            _counted(facts["images"], "photo"),
            _counted(groups, "near-duplicate group") if groups else "no near duplicates",
            _recall(facts["answers"]["calibration"], recall),
            *dict.fromkeys(one.short for one in advice if one.short),
        ]
    )


def _recall(answering: str | None, recall: Sequence[Mapping[str, Any]]) -> str:
    asked = [one for one in recall if one["calibration"] is None]
    own = [one for one in recall if answering is not None and one["calibration"] == answering]
    for one in [*asked, *own]:
        return f"expected recall {100 * one['share']:.0f} %"
    return "expected recall not known (give photos)"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

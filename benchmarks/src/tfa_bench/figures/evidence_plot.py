"""Support against agreement: what the database-only controller saw of its candidates, and which it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa_bench.figures.plots import BELOW, COLORS, INK, dress, new_figure, save
from tfa_bench.record_files import BadRecord
from tfa_bench.records import Record

_CARRIER_MARKS = {"original": "o", "partial": "s", "adaptive": "^", "adaptive+cls": "D"}
_ASSIGNMENT_COLORS = {"hard": COLORS[0], "soft": COLORS[1]}
_OTHER_MARK, _OTHER_COLOR = "X", COLORS[7]


@dataclass(frozen=True)
class Evidence:
    """One point a candidate: (support, mean agreement over pairs of constructions)."""

    points: Mapping[str, tuple[float, float]]
    chosen: str  # "hard/adaptive"
    with_global: str | None  # the candidate with the global token, where it was admitted

    def words(self) -> str:
        listed = ", ".join(f"{name} ({u:.1f}, {a:.3f})" for name, (u, a) in self.points.items())
        return f"support and agreement: {listed}; chosen {self.chosen}"


def evidence_of(record: Record) -> Evidence | None:
    """What the first fold of the first split decided by; None where it was not recorded."""
    decisions = record.folds[0][0]["decisions"]
    candidates = decisions.get("candidates")
    if not candidates:
        return None
    try:
        points = {
            name: (float(evidence["support"]), _mean(evidence["agreement"])) for name, evidence in candidates.items()
        }
        chosen = f"{decisions['assignment']}/{decisions['carrier']}"
        joined = f"{decisions['assignment']}/adaptive+cls"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__} {error}"
        raise BadRecord(f"the evidence of head {record.name!r} is damaged: {what}; run it again") from None
    return Evidence(points, chosen, joined if decisions.get("admit_cls") and joined in points else None)


def _mean(agreement: Any) -> float:
    """Return the mean of pairs by name, or of a list."""
    return float(np.mean(list(agreement.values() if isinstance(agreement, Mapping) else agreement)))


def draw_evidence(evidence: Evidence, path: Path) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    for name, (support, agreement) in evidence.points.items():
        assignment, _, carrier = name.partition("/")
        axes.scatter(
            [support], [agreement], s=70, marker=_CARRIER_MARKS.get(carrier, _OTHER_MARK), alpha=0.85,
            color=_ASSIGNMENT_COLORS.get(assignment, _OTHER_COLOR), label=name, linewidths=0, zorder=3,
        )  # fmt: skip
    rings = [(evidence.chosen, "-", "chosen"), (evidence.with_global, "--", "global token admitted")]
    for ringed, line, label in rings:
        if ringed is not None and ringed in evidence.points:
            support, agreement = evidence.points[ringed]
            axes.scatter(
                [support], [agreement], s=260, marker="o", facecolors="none", edgecolors=INK, linestyles=line,
                linewidths=1.4, label=label, zorder=4,
            )  # fmt: skip
    dress(axes, x="distinct images answered (support)", y="mean agreement of constructions")
    axes.margins(0.12)  # rings must not be cut
    figure.legend(labelspacing=0.9, **BELOW)
    save(figure, path)

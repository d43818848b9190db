"""Curves: recall against the number of calibration queries, and precision against recall by confidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfa_bench.figures.plotting import BELOW, COLOURS, FAINT, LINES, MARKS, dress, new_figure, save
from tfa_bench.figures.record_groups import Study
from tfa_bench.metrics.estimates import Scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAMILIES = ("tfa", "dual")
ALL_OF_THEM = {"full": "FullQ", "cross-fit": "cross-fit"}  # plans without a size, set apart


@dataclass(frozen=True)
class Point:
    """R@1 in percent: its mean over splits, and their standard deviation."""

    head: str
    mean: float
    spread: float

    @classmethod
    def of(cls, scored: Scored) -> Point:
        return cls(scored.head, 100 * scored.recalls[1].mean, 100 * scored.recalls[1].sd)


@dataclass(frozen=True)
class CalibrationCurve:
    family: str
    budgets: Mapping[int, Point]  # by the number of calibration queries, ascending
    apart: Mapping[str, tuple[Point, ...]]  # "FullQ" and "cross-fit"
    uncalibrated: Point | None

    def words(self) -> str:
        parts = [f"{n} queries {p.mean:.1f} ± {p.spread:.1f}" for n, p in self.budgets.items()]
        parts += [f"{p.head} {p.mean:.1f}" for points in self.apart.values() for p in points]
        if self.uncalibrated is not None:
            parts.append(f"uncalibrated {self.uncalibrated.mean:.1f}")
        return f"{self.family}: {', '.join(parts)}"


def calibration_curves(study: Study) -> list[CalibrationCurve]:
    """One curve for each family that has a budget `tfa-c16`, `tfa-c64`, …; others have nothing to draw."""
    points = {head: Point.of(numbers) for head, numbers in study.scored.items()}
    curves = []
    for family in FAMILIES:
        budgets = {int(n[1]): points[h] for h in study.records if (n := re.fullmatch(rf"{family}-c([1-9]\d*)", h))}
        if not budgets:
            continue
        apart: dict[str, tuple[Point, ...]] = {}
        for head, record in study.records.items():
            kind = ALL_OF_THEM.get(record.plan["kind"])
            # Not ablations or heads of our own that stand on all queries too: they are no point of this curve.
            if kind is not None and re.fullmatch(rf"{family}-(fullq|crossfit(-contiguous)?)", head):
                apart[kind] = (*apart.get(kind, ()), points[head])
        plain = points.get(family)
        curves.append(CalibrationCurve(family, dict(sorted(budgets.items())), apart, plain))
    return curves


def draw_calibration(curves: Sequence[CalibrationCurve], path: Path) -> None:
    figure = new_figure()
    axes = figure.add_subplot()
    sizes = sorted({n for curve in curves for n in curve.budgets})
    at = {n: float(np.log2(n)) for n in sizes}  # budgets double: equal steps
    names = [name for name in ALL_OF_THEM.values() if any(name in curve.apart for curve in curves)]
    beside = {name: at[sizes[-1]] + 1.0 + 0.9 * k for k, name in enumerate(names)}
    drawn = [artist for number, curve in enumerate(curves) for artist in _draw_family(axes, curve, number, at, beside)]
    if names:
        axes.axvline(at[sizes[-1]] + 0.5, color=FAINT, linewidth=0.8, linestyle=":")
    dress(axes, x="calibration queries N", y="R@1, percent")
    axes.set_xticks([*at.values(), *beside.values()], [*map(str, sizes), *names])
    axes.set_xlim(at[sizes[0]] - 0.5, max([*at.values(), *beside.values()]) + 0.5)
    figure.legend(handles=drawn, **{**BELOW, "ncols": 2})  # by family; matplotlib would sort them by kind
    save(figure, path)


def _draw_family(
    axes: Axes, curve: CalibrationCurve, number: int, at: Mapping[int, float], beside: Mapping[str, float]
) -> list[Any]:
    """Draws what belongs to one family and returns it for the legend."""
    colour, mark = COLOURS[number], MARKS[number]
    shift = 0.06 * number  # families side by side, so that one's bars do not hide the other's
    points = list(curve.budgets.values())
    bars = axes.errorbar(
        [at[n] + shift for n in curve.budgets], [p.mean for p in points], yerr=[p.spread for p in points],
        color=colour, marker=mark, markersize=6, linewidth=1.6, capsize=3, label=f"{curve.family}, mean ± SD",
    )  # fmt: skip
    drawn: list[Any] = [bars]
    for name, several in curve.apart.items():
        for k, point in enumerate(several):
            x = beside[name] + shift + 0.16 * k
            drawn += axes.plot(
                [x], [point.mean], color=colour, marker=mark, markersize=8, markerfacecolor="white", linestyle="none",
                label=point.head,
            )  # fmt: skip
    if curve.uncalibrated is not None:
        label = f"{curve.family}, uncalibrated"
        level = axes.axhline(curve.uncalibrated.mean, color=colour, linestyle="--", linewidth=1.2, label=label)
        drawn.append(level)
    return drawn


def draw_precision_recall(scored: Mapping[str, Scored], path: Path) -> None:
    """Precision against recall as the least accepted confidence falls, of each head's first split and replica."""
    figure = new_figure()
    axes = figure.add_subplot()
    for number, (head, numbers) in enumerate(scored.items()):
        curve = numbers.acceptance.curve
        axes.plot(
            [100 * recall for recall in curve["recall"]], [100 * precision for precision in curve["precision"]],
            linewidth=1.6, color=COLOURS[number % len(COLOURS)], linestyle=LINES[number % len(LINES)],
            label=f"{head} ({100 * numbers.acceptance.area.mean:.1f})",
        )  # fmt: skip
    dress(axes, x="recall, percent of all queries", y="precision, percent of accepted answers")
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 102)
    figure.legend(title="head (area)", title_fontsize=9, **BELOW)
    save(figure, path)

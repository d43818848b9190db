"""Plots as inline SVG: colours come from the page, so that they follow its dark mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

_WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 46
TICKS = 5
LABEL_WIDE, LABEL_HIGH = 110, 13


@dataclass(frozen=True)
class Axis:
    """From numbers to pixels, straight or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    @classmethod
    def around(cls, values: Sequence[float], start: float, stop: float, *, logarithmic: bool = False) -> Axis:
        low, high = min(values), max(values)
        if logarithmic:
            return cls(low, high if high > low else 10 * low, start, stop, True)
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
        return cls(low - margin, high + margin, start, stop)

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers] or [self.low, self.high]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step *= next(times for times in (1, 2, 5, 10) if (self.high - self.low) / (times * step) <= TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scatter(
    points: Sequence[tuple[float, float, str, str]], x_name: str, y_name: str, alt: str, *, labels: bool = False
) -> Markup:
    """Points as (x, y, label, class); a label is written beside its point or shown when pointed at."""
    across, down = _axes([p[0] for p in points], [p[1] for p in points])
    drawn: list[str] = []
    written: list[tuple[float, float]] = []
    for x, y, label, kind in points:
        spot = f'cx="{across(x):.1f}" cy="{down(y):.1f}"'
        hint = f"<title>{escape(label)}</title>" if label else ""
        drawn.append(f'<circle class="{kind}" {spot} r="{6 if labels else 2.5}">{hint}</circle>')
        if labels:
            right = across(x) < _WIDTH * 0.7
            height = _free_height(across(x), down(y) + 4, written)
            at = f'x="{across(x) + (10 if right else -10):.1f}" y="{height:.1f}"'
            drawn.append(f'<text class="label" {at} text-anchor="{"start" if right else "end"}">{escape(label)}</text>')
    return _framed(drawn, across, down, x_name, y_name, alt)


def _free_height(x: float, y: float, written: list[tuple[float, float]]) -> float:
    """Where a label can stand without hiding those already written: as high as its point, or a line below."""
    while any(abs(x - left) < LABEL_WIDE and abs(y - high) < LABEL_HIGH for left, high in written):
        y += LABEL_HIGH
    written.append((x, y))
    return y


def curves(lines: Sequence[tuple[str, Sequence[float], str]], x_name: str, y_name: str, alt: str) -> Markup:
    """Lines as (name, values over 1, 2, …, class), on logarithmic axes."""
    values = [value for _, line, _ in lines for value in line if value > 0]
    longest = max(len(line) for _, line, _ in lines)
    across, down = _axes([1.0, float(max(longest, 2))], values, logarithmic=True)
    drawn = []
    for number, (name, line, kind) in enumerate(lines):
        spots = [(i, value) for i, value in enumerate(line, 1) if value > 0]
        path = " ".join(f"{across(i):.1f},{down(value):.1f}" for i, value in spots)
        drawn.append(f'<polyline class="{kind}" points="{path}"/>')
        at = f'x="{_WIDTH - RIGHT - 8}" y="{TOP + 18 + 20 * number}"'
        drawn.append(f'<text class="label {kind}" {at} text-anchor="end">{escape(name)}</text>')
    return _framed(drawn, across, down, x_name, y_name, alt)


def bars(counts: Sequence[int], x_name: str, y_name: str, alt: str) -> Markup:
    """How many (a bar) have 0, 1, 2, … of something."""
    across = Axis(-0.5, max(len(counts), 2) - 0.5, LEFT, _WIDTH - RIGHT)
    down = Axis(0, max([*counts, 1]) * 1.05, HEIGHT - BOTTOM, TOP)
    wide = max((across(1) - across(0)) * 0.85, 0.8)
    drawn = [
        f'<rect class="bar" x="{across(i) - wide / 2:.1f}" y="{down(n):.1f}" width="{wide:.1f}" '
        f'height="{down(0) - down(n):.1f}"><title>{i}: {n}</title></rect>'
        for i, n in enumerate(counts)
        if n
    ]
    return _framed(drawn, across, down, x_name, y_name, alt)


def _axes(xs: Sequence[float], ys: Sequence[float], *, logarithmic: bool = False) -> tuple[Axis, Axis]:
    return (
        Axis.around(xs, LEFT, _WIDTH - RIGHT, logarithmic=logarithmic),
        Axis.around(ys, HEIGHT - BOTTOM, TOP, logarithmic=logarithmic),
    )


def _framed(drawn: Sequence[str], across: Axis, down: Axis, x_name: str, y_name: str, alt: str) -> Markup:
    lines = [f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{_WIDTH - RIGHT}"/>']
    for value in across.ticks():
        lines.append(_text(across(value), HEIGHT - BOTTOM + 18, f"{value:.6g}", "middle"))
    for value in down.ticks():
        lines.append(f'<path class="grid" d="M{LEFT} {down(value):.1f}H{_WIDTH - RIGHT}"/>')
        lines.append(_text(LEFT - 6, down(value) + 4, f"{value:.6g}", "end"))
    lines.append(_text((LEFT + _WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    lines.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(y_name)}</text>')
    body = "\n".join([*lines, *drawn])
    return Markup(f'<svg viewBox="0 0 {_WIDTH} {HEIGHT}" role="img" aria-label="{escape(alt)}">\n{body}\n</svg>')


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

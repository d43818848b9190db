"""Figures of matplotlib in the look of this house. No global setting of matplotlib is touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfa.core.files import write_atomically
from tfa.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, LINE, PAPER = "#1c2126", "#5a636c", "#dfe3e7", "#ffffff"
# Distinct to most colour-blind eyes; lines also differ in their dashes or marks.
COLOURS = ("#0f6ab4", "#d1642b", "#2e9e5b", "#8a4fbf", "#b8860b", "#c2306e", "#3b8ea5", "#6b7280")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
# Legends stand below the axes: never on the data, and a narrow picture is readable on a phone.
BELOW: dict[str, Any] = {"fontsize": 9, "frameon": False, "loc": "outside lower center", "ncols": 3}
WIDTH, HEIGHT = 5.8, 4.8  # inches
RESOLUTION = 150  # dots an inch


def new_figure(width: float = WIDTH, height: float = HEIGHT) -> Figure:
    """An empty figure, in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("figures need matplotlib; install with pip install 'tfa-vpr[bench]'") from None
    figure = Figure(figsize=(width, height), dpi=RESOLUTION, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, *, x: str, y: str, title: str = "", grid: bool = True) -> None:
    """Labels, a faint grid and no box."""
    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    if title:
        axes.set_title(title, color=INK, fontsize=11, loc="left", parse_math=False)
    axes.tick_params(colors=FAINT, labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    if grid:
        axes.grid(True, color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """A PNG, whole or absent; without the drawing library's version, so that equal figures are equal files."""
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", metadata={"Software": None}))

"""Tables and numbers of `tfa bench scale` in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DASH = "–"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Three digits, more where they are whole."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"

"""Lines of the results that do not make their own: one function a kind of result, without an import of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfa_bench.speed.result_line import HasLines, Line, compared


def own_lines(result: HasLines) -> Sequence[Line]:
    return result.lines()


def fit_lines(result: Any) -> list[Line]:
    """The fit beside the sum of its parts, then the parts."""
    whole = compared(f"fit of {result.images:,} images", result.seconds, result.floor)
    return [whole, *(Line(f"of which {name}", seconds) for name, seconds in result.parts.items())]


def calibrate_lines(result: Any) -> list[Line]:
    return [
        compared(f"calibration on {result.target:,} images", result.target_seconds, result.fit_seconds),
        compared(f"calibration on {result.full:,} images", result.full_seconds, result.fit_seconds),
    ]


def verify_lines(result: Any) -> list[Line]:
    batch = f"a query of a batch of {result.queries}, {result.threads} threads"
    return [
        compared("one query", result.seconds, result.products_seconds),
        compared(batch, result.batch_seconds, result.batch_products_seconds),
    ]

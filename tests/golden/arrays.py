"""Descriptors, scores and decisions of a small fixed world, for the golden arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.worlds import seen_again, world
from tfa.method.head import ENSEMBLE
from tfa.pipeline import calibrate, fit
from tfa.types import HeadSpec


def computed() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and decisions, computed now."""
    database = world(24, seed=3)
    queries, target = seen_again(database, 11).select(np.arange(8)), seen_again(database, 12, 0.4)
    head = fit(database, HeadSpec(words=6))
    calibrated = calibrate(head, target.select(np.arange(16)), score=True)
    arrays = {f"descriptors.{a}": head.branches[a, 0].described.descriptors for a in ("hard", "soft")}
    for name, made in (("database", head), ("calibrated", calibrated)):
        arrays |= {f"scores.{name}.{r}": made.scores(queries, r) for r in (0, 1, 2, ENSEMBLE)}
    return arrays, {"database": head.decisions.to_dict(), "calibrated": calibrated.decisions.to_dict()}

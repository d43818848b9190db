"""Which gallery rows of a map answer."""

from __future__ import annotations

import numpy as np

from tfa.maps.query import AskableMap


def answering_rows(place_map: AskableMap) -> np.ndarray:
    """Gallery rows of `place_map.images`, in their order: those that were not removed."""
    state = place_map.state
    rows = [row for row, record in enumerate(state.images) if record.id not in state.removed]
    return np.array(rows, dtype=np.int64)

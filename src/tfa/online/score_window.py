"""What map images usually score with the last photos of a camera (ours, beyond the paper).

    score = S − σ (b_d − mean b),   x = S/σ,
    b_d = log mean exp of x(·, d) over the kept rows, without the ⌈5 %⌉ largest

The bias of `method.score_calibration`, kept fresh: rows of the last photos instead of a calibration set, σ the median
spread of these rows. The mean is given back, so that scores keep their scale. Columns are known by the ids of images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfa.errors import BadSpec
from tfa.method.score_calibration import usual_scores

WINDOW_ROWS = 256  # rows that are kept: of the last so many photos
MIN_ROWS = 32  # rows from which a bias is learnt: with fewer, photos of a drive in a row share their places
WIDE_MAP = (
    5_000  # images from which the bias is learnt anew with every eighth photo only: it costs a pass over all rows
)
WIDE_MAP_INTERVAL = 8


class ScoreWindow:
    """Score rows of the last photos, and the bias of each image that follows."""

    def __init__(self, size: int = WINDOW_ROWS) -> None:
        if size < MIN_ROWS:
            raise BadSpec(f"size={size} is out of range: at least {MIN_ROWS} rows are kept")
        self.size = int(size)
        self.clear()

    def clear(self) -> None:
        """Forget every row, not the images."""
        self.seen = 0
        # size m, of which the first `len(self)` count, the oldest overwritten first; nan where an image was not in the
        # map yet. Whole from the start, since growing it would copy it for every photo.
        self._ids = getattr(self, "_ids", np.zeros(0, np.int64))
        self._table = np.empty((self.size, len(self._ids)), np.float32)
        self._bias: np.ndarray | None = None
        self._learnt_at = -1

    def __len__(self) -> int:
        return min(self.seen, self.size)

    @property
    def rows(self) -> np.ndarray:
        """`r m`: the kept rows, in no order that matters."""
        return self._table[: len(self)]

    def add(self, row: np.ndarray) -> None:
        """Keep the scores `m` of a photo, as they are without this bias; one that is not finite teaches nothing."""
        if len(row) != len(self._ids):
            raise BadSpec(f"{len(row)} scores for {len(self._ids)} images; say which images there are with set_images")
        if np.isfinite(row).all():
            self._table[self.seen % self.size] = row
            self.seen += 1

    def set_images(self, ids: Sequence[int] | np.ndarray) -> None:
        """The map's images are these, in the order of the columns; of new ones nothing is known from earlier photos."""
        ids = np.asarray(ids, np.int64)
        if np.array_equal(ids, self._ids):
            return
        _, before, now = np.intersect1d(self._ids, ids, assume_unique=True, return_indices=True)
        table = np.full((self.size, len(ids)), np.nan, np.float32)
        table[: len(self), now] = self.rows[:, before]
        self._ids, self._table, self._bias = ids, table, None

    def bias(self) -> np.ndarray | None:
        """What is to be added to the score of each image `m`; None before there are enough rows."""
        if len(self) < MIN_ROWS:
            return None
        every = WIDE_MAP_INTERVAL if len(self._ids) > WIDE_MAP else 1
        if self._bias is None or self.seen - self._learnt_at >= every:
            self._bias, self._learnt_at = self._learnt(), self.seen
        return self._bias

    def _learnt(self) -> np.ndarray:
        known = np.isfinite(self.rows)
        seen = self.rows[known.any(axis=1)]  # a row none of whose images is left says nothing
        sigma = float(np.median(np.nanstd(seen, axis=1))) if len(seen) else 0.0
        sigma = sigma or 1.0  # all scores equal: nothing to scale
        usual = np.full(self.rows.shape[1], np.nan)
        whole = known.all(axis=0)
        if whole.any():
            usual[whole] = usual_scores(self.rows[:, whole] / sigma)
        for column in np.flatnonzero(~whole & (known.sum(axis=0) >= MIN_ROWS)):
            usual[column] = usual_scores(self.rows[known[:, column], column][:, None] / sigma)[0]
        learnt = np.isfinite(usual)
        mean = float(usual[learnt].mean()) if learnt.any() else 0.0
        # An image that too few of the rows have scored gets the mean bias, 0.
        return np.where(learnt, sigma * (mean - usual), 0.0)

    # --- keep ------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, np.ndarray]:
        return {"ids": self._ids, "rows": self.rows.copy()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], seen: int, size: int = WINDOW_ROWS) -> ScoreWindow:
        """The inverse; `seen` photos filled it."""
        window = cls(size)
        ids, rows = np.array(tensors["ids"]), np.array(tensors["rows"], np.float32)
        if rows.shape != (min(seen, window.size), len(ids)):
            raise ValueError(f"rows of shape {rows.shape} do not fit {len(ids)} images and {seen} photos")
        if len(np.unique(ids)) != len(ids):
            raise ValueError("an image has several columns")
        window.set_images(ids)
        window._table[: len(rows)] = rows
        window.seen = seen
        return window

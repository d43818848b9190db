"""Self-calibration (ours, beyond the paper): robust score calibration kept fresh from the queries of a map.

    b_d = σ · log mean exp of x(·, d) over kept queries, without the ⌈5 %⌉ largest,  x = S/σ,  score = S − b_d + mean b

The same bias as in `score_calibration`, from a bounded sample of score rows. σ is the median spread of the kept rows
(there it is that of the pseudo queries). Every query seen so far is as likely to be kept as any other: with `n` seen,
the next replaces a kept one with probability size / (n + 1). The mean is given back, so that scores keep their scale.

No label is used and no photo is kept. Off by default where a map is served: a head that changes with its queries is
not the frozen head that is evaluated.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.config import CalibrationSpec
from tfa.base.files import BadFile, map_tensors, write_tensors
from tfa.errors import BadSpec
from tfa.method.score_calibration import usual_scores

FEWEST = CalibrationSpec.score_from  # rows below which nothing is learnt
KIND = "tfa self-calibration 1"


class SelfCalibration:
    """A reservoir of score rows, and the bias of each image that follows. Columns are known by the ids of images."""

    def __init__(self, size: int = 256, seed: int = 0) -> None:
        if size < FEWEST:
            raise BadSpec(f"size={size} is out of range: a self-calibration keeps at least {FEWEST} rows")
        self.size, self.seed = int(size), int(seed)
        self.reset()

    def reset(self) -> None:
        """Forget every query."""
        self.seen = 0
        self._ids = np.zeros(0, np.int64)
        # size m, of which `kept` rows count; nan where the image was not in the map yet. Whole from the start, since
        # growing it would copy it for every query; rows not yet written take no memory.
        self._table = np.empty((self.size, 0), np.float32)
        self.kept = 0
        self._bias: np.ndarray | None = None

    @property
    def _rows(self) -> np.ndarray:
        """`r m`: the kept rows."""
        return self._table[: self.kept]

    def observe(self, rows: np.ndarray, ids: Sequence[int] | np.ndarray | None = None) -> None:
        """Take note of the scores `q m` of queries, as they are without this calibration.

        `ids` name the columns (0, 1, … if not given). Images that are gone are forgotten; of a new one nothing is known
        from earlier queries.
        """
        rows = np.atleast_2d(np.asarray(rows, np.float32))
        columns = np.arange(rows.shape[1]) if ids is None else np.asarray(ids, np.int64)
        if len(columns) != rows.shape[1]:
            raise BadSpec(f"{len(columns)} ids for scores of {rows.shape[1]} images; give one for each column")
        self.set_images(columns)
        for row in rows[np.isfinite(rows).all(axis=1)]:
            self._keep(row)

    def set_images(self, ids: Sequence[int] | np.ndarray) -> None:
        """The map's images changed: columns follow, in the order of `ids`."""
        ids = np.asarray(ids, np.int64)
        if np.array_equal(ids, self._ids):
            return
        _, before, now = np.intersect1d(self._ids, ids, assume_unique=True, return_indices=True)
        table = np.empty((self.size, len(ids)), np.float32)
        table[: self.kept] = np.nan
        table[: self.kept, now] = self._rows[:, before]
        self._ids, self._table, self._bias = ids, table, None

    def _keep(self, row: np.ndarray) -> None:
        """One step of reservoir sampling, the same for the same seed and number of the query."""
        self.seen += 1
        if self.kept < self.size:
            place, self.kept = self.kept, self.kept + 1
        else:
            place = int(np.random.default_rng([self.seed, self.seen]).integers(self.seen))
        if place < self.size:
            self._table[place], self._bias = row, None

    def bias(self) -> np.ndarray | None:
        """What is to be added to the score of each image `m`; None before there are enough queries.

        An image that too few of the kept queries have scored gets the mean bias, 0.
        """
        if self.kept < FEWEST:
            return None
        if self._bias is None:
            self._bias = self._learnt()
        return self._bias.copy()

    def _learnt(self) -> np.ndarray:
        known = np.isfinite(self._rows)
        spread = np.nanstd(self._rows, axis=1) if known.any() else np.zeros(1)
        sigma = float(np.median(spread)) or 1.0  # all scores equal: nothing to scale
        usual = np.full(self._rows.shape[1], np.nan)
        whole = known.all(axis=0)
        if whole.any():
            usual[whole] = usual_scores(self._rows[:, whole] / sigma)
        for column in np.flatnonzero(~whole & (known.sum(axis=0) >= FEWEST)):
            usual[column] = usual_scores(self._rows[known[:, column], column][:, None] / sigma)[0]
        learnt = np.isfinite(usual)
        mean = float(usual[learnt].mean()) if learnt.any() else 0.0
        return np.where(learnt, sigma * (mean - usual), 0.0)

    # --- describe and keep -------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What it has seen and learnt, without the rows."""
        bias = self.bias()
        return {
            "size": self.size,
            "seed": self.seed,
            "seen": self.seen,
            "kept": self.kept,
            "images": len(self._ids),
            "ready": bias is not None,
            "needed": FEWEST,
            "bias_spread": None if bias is None or not len(bias) else float(bias.std()),
        }

    def snapshot(self) -> SelfCalibration:
        """A copy that later queries do not change."""
        taken = copy.copy(self)
        taken._table = self._rows.copy()
        return taken

    def save(self, path: Path) -> None:
        """Write it whole, as safetensors."""
        facts = {"size": self.size, "seed": self.seed, "seen": self.seen}
        tensors: dict[str, np.ndarray] = {"ids": self._ids, "rows": self._rows}
        write_tensors(Path(path), tensors, {"kind": KIND, "facts": json.dumps(facts)})

    @classmethod
    def load(cls, path: Path) -> SelfCalibration:
        tensors, metadata = map_tensors(Path(path))
        if metadata.get("kind") != KIND or not {"ids", "rows"} <= set(tensors):
            raise BadFile(f"{path} is not a self-calibration of this release; remove it to start again")
        facts = json.loads(metadata["facts"])
        made = cls(facts["size"], facts["seed"])
        ids, rows = np.array(tensors["ids"]), tensors["rows"]
        if rows.shape != (min(facts["seen"], made.size), len(ids)):
            raise BadFile(f"{path} holds rows of shape {rows.shape}, which do not fit its {len(ids)} images")
        made.set_images(ids)
        made.seen, made.kept = facts["seen"], len(rows)
        made._table[: made.kept] = rows
        return made

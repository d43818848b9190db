"""Adapt the scores of a camera stream to its earlier photos, without labels.

Under another season, light or camera, most of a photo's offset from the *database* mean is a shift that all photos of
the stream share. The shift is one vector, which a few photos estimate:

    center   c = (m + 2 c_0) / (n + 2),   z' = z − c        c_0: 0 (the database mean), or the mean of a calibration
    count    m ← d m + z,  n ← d n + 1,   d = 1 − 1/32      so that old conditions are forgotten
    bias     from 32 counted photos on, subtract each image's mean score on the last 256 of them (`ScoreWindow`)

A camera that stands still must not adapt to one place. A photo counts only if it differs from the last counted one:
‖y − y_last‖² ≥ 0.2 s², y = λ^(−1/4) z, with s² the decaying mean of ‖λ^(−1/4) z'‖² over counted photos.

`ScoreWindow` is the bias of `scorer.calibrate_scorer` over recent photos instead of a calibration set:

    score = S − σ (b_d − mean b),   x = S/σ,   σ: median spread of the rows
    b_d = log mean exp of x(·, d) over the rows, without the ⌈5 %⌉ largest

Adding mean b keeps the scale of scores. Columns are identified by image ids.

`CellMeans` are the running means of the stream's patches in each grid cell, for reranking (`verification.patches`):

    shift    g = Σ mean p / (Σ 1 + 2)                          decay 1 − 1/32 a photo; p relative to the map's mean
    cell     μ_cell = (Σ p + 8 (map's μ_cell + g)) / (Σ 1 + 8)  decay 1 − 1/256 a photo

Adaptation is causal: a photo never changes its own answer, and the first photo is scored without adaptation. The state
of a camera is a few vectors and rows of scores; photos are not stored. `AdaptedScorer` applies it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.arrays import l2_normalize
from tfa.core.files import BadFile, map_tensors, parse_json, write_tensors
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.scorer import QuerySide, ResidualSide, Scorer, SideView, usual_scores
from tfa.search.gallery import QueryVectors
from tfa.verification.patches import CompactTokens

WINDOW_ROWS = 256  # photos in the window
MIN_ROWS = 32  # photos before a bias is estimated: fewer consecutive photos show too few places
WIDE_MAP = 5_000  # images above which the bias is updated less often, because an update reads all rows
WIDE_MAP_INTERVAL = 8  # photos between updates in a wide map


class ScoreWindow:
    """Score rows of the last photos, and the resulting bias of each image."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self.seen = 0
        # Ring buffer (WINDOW_ROWS, m) whose first `len(self)` rows are filled; nan where an image was not in the map.
        # Allocated at once, because growing it would copy it for every photo.
        self._table = np.empty((WINDOW_ROWS, len(self._ids)), np.float32)
        self._bias: np.ndarray | None = None
        self._estimated_at = -1

    def __len__(self) -> int:
        return min(self.seen, WINDOW_ROWS)

    @property
    def rows(self) -> np.ndarray:
        """Filled rows (r, m), in arbitrary order."""
        return self._table[: len(self)]

    def add(self, row: np.ndarray) -> None:
        """Add the scores (m,) of a photo, without this bias; a row that is not finite is ignored."""
        if len(row) != len(self._ids):
            raise BadSpec(f"got {len(row)} scores for {len(self._ids)} images; call set_images first")
        if np.isfinite(row).all():
            self._table[self.seen % WINDOW_ROWS] = row
            self.seen += 1

    def set_images(self, ids: Sequence[int] | np.ndarray) -> None:
        """Set the image ids of the columns; new images have no scores from earlier photos."""
        ids = np.asarray(ids, np.int64)
        if np.array_equal(ids, self._ids):
            return
        _, before, now = np.intersect1d(self._ids, ids, assume_unique=True, return_indices=True)
        table = np.empty((WINDOW_ROWS, len(ids)), np.float32)
        table[: len(self)] = np.nan  # later rows take no memory until they are written
        table[: len(self), now] = self.rows[:, before]
        self._ids, self._table, self._bias = ids, table, None

    def bias(self) -> np.ndarray | None:
        """Return the bias (m,) to add to the scores; None before there are enough rows."""
        if len(self) < MIN_ROWS:
            return None
        every = WIDE_MAP_INTERVAL if len(self._ids) > WIDE_MAP else 1
        if self._bias is None or self.seen - self._estimated_at >= every:
            self._bias, self._estimated_at = self._estimate_bias(), self.seen
        return self._bias

    def _estimate_bias(self) -> np.ndarray:
        known = np.isfinite(self.rows)
        seen = self.rows[known.any(axis=1)]  # skip rows whose images were all removed
        sigma = float(np.median(np.nanstd(seen, axis=1))) if len(seen) else 0.0
        sigma = sigma or 1.0  # all scores are equal
        usual = np.full(self.rows.shape[1], np.nan)
        whole = known.all(axis=0)
        if whole.any():
            usual[whole] = usual_scores(self.rows[:, whole] / sigma)
        for column in np.flatnonzero(~whole & (known.sum(axis=0) >= MIN_ROWS)):
            usual[column] = usual_scores(self.rows[known[:, column], column][:, None] / sigma)[0]
        estimated = np.isfinite(usual)
        mean = float(usual[estimated].mean()) if estimated.any() else 0.0
        # An image with too few scores gets the mean bias, 0.
        return np.where(estimated, sigma * (mean - usual), 0.0)

    # --- files -----------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, np.ndarray]:
        return {"ids": self._ids, "rows": self.rows.copy()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], seen: int) -> ScoreWindow:
        """Restore a window from `tensors()`, which `seen` photos filled."""
        window = cls()
        ids, rows = np.array(tensors["ids"]), np.array(tensors["rows"], np.float32)
        if rows.shape != (min(seen, WINDOW_ROWS), len(ids)):
            raise ValueError(f"rows have shape {rows.shape}, which does not fit {len(ids)} images and {seen} photos")
        if len(np.unique(ids)) != len(ids):
            raise ValueError("an image has several columns")
        window.set_images(ids)
        window._table[: len(rows)] = rows
        window.seen = seen
        return window


_CELL_COUNTS = 8.0  # weight of the map's cell means, in photos
_CELL_DECAY = 1 - 1 / 256  # factor on the weight of earlier photos in cell means, per photo
_PSEUDO_COUNTS = 2.0  # weight of c_0, in photos
_DECAY = 1 - 1 / 32  # factor on the weight of earlier photos, per photo
_DIFFERENT = 0.2  # squared distance, in s², below which a photo shows the same as the last counted one
_KIND = "tfa online adaptation 2"
_INTEGERS, _FLOATS = ("seen", "counted"), ("_count", "_square", "_weight")  # values in the file besides arrays


class CellMeans:
    """Running means of the projected patches of a stream, in each cell."""

    def __init__(self, cells: np.ndarray | None = None, shift: np.ndarray | None = None, counts: Any = (0, 0)) -> None:
        """Start without photos, or with the sums (n, r) and (r,) and the counts of `tensors`."""
        self._cells, self._shift = cells, shift
        self._cell_count, self._shift_count = map(float, counts)

    def center(self, patches: np.ndarray, cells: np.ndarray) -> np.ndarray:
        """Return unit patches (n, r) of the next photo from its projected ones; `cells` (n, r) are the map's."""
        if self._cells is None or self._shift is None or self._cells.shape != cells.shape:
            return l2_normalize(patches - cells)
        shift = self._shift / (self._shift_count + _PSEUDO_COUNTS)
        return l2_normalize(
            patches - (self._cells + _CELL_COUNTS * (cells + shift)) / (self._cell_count + _CELL_COUNTS)
        )

    def observe(self, patches: np.ndarray) -> None:
        """Count a photo's projected patches (n, r)."""
        if self._cells is None or self._shift is None or self._cells.shape != patches.shape:  # another map
            self._cells, self._shift = np.zeros_like(patches), np.zeros_like(patches[0])
            self._cell_count = self._shift_count = 0.0
        self._cells, self._cell_count = _CELL_DECAY * self._cells + patches, _CELL_DECAY * self._cell_count + 1
        self._shift = _DECAY * self._shift + patches.mean(axis=0)
        self._shift_count = _DECAY * self._shift_count + 1

    def tensors(self) -> dict[str, np.ndarray]:
        if self._cells is None or self._shift is None:
            return {}
        counts = np.array([self._cell_count, self._shift_count])
        return {"cells": self._cells, "cell_shift": self._shift, "cell_counts": counts}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> CellMeans:
        """Restore cell means from `tensors()`, or start without photos."""
        if "cells" not in tensors:
            return cls()
        cells, shift = (np.array(tensors[name], np.float32) for name in ("cells", "cell_shift"))
        if cells.shape[1:] != shift.shape or not (np.isfinite(cells).all() and np.isfinite(shift).all()):
            raise ValueError(f"cell means have shape {cells.shape} and {shift.shape}, or values that are not finite")
        return cls(cells, shift, tensors["cell_counts"])


class Adaptation:
    """State of one camera, for a head whose queries have coordinates (r,) over all sides."""

    def __init__(self, start: np.ndarray | None = None) -> None:
        self.start = start  # c_0, (r,); None is the database mean
        self.window = ScoreWindow()
        self.seen = 0  # photos, counted or not
        self.counted = 0  # photos that changed the state
        self._sum: np.ndarray | None = None  # m
        self._count = 0.0  # n
        self._last: np.ndarray | None = None  # y of the last counted photo
        self._square, self._weight = 0.0, 0.0  # s² = square / weight
        self.cells = CellMeans()

    @property
    def center(self) -> np.ndarray | None:
        """Mean c, (r,), to subtract from the next photo's coordinates; None is the database mean."""
        if self._sum is None:
            return self.start
        start = 0.0 if self.start is None else self.start
        return (self._sum + _PSEUDO_COUNTS * start) / (self._count + _PSEUDO_COUNTS)

    @property
    def variance(self) -> float:
        """s²; 0 before a photo counted."""
        return self._square / self._weight if self._weight else 0.0

    def observe(
        self, coordinates: np.ndarray, scale: np.ndarray, row: np.ndarray, patches: np.ndarray | None = None
    ) -> bool:
        """Update with a photo's coordinates (r,) and centered scores (m,) without the bias; return whether it counted.

        `scale` (r,) is λ^(−1/4), the metric in which coordinates are compared. `patches` are projected.
        """
        self.seen += 1
        z = np.asarray(coordinates, np.float64)
        if not (np.isfinite(z).all() and np.isfinite(row).all()):
            return False
        y, center = scale * z, self.center
        away = y if center is None else y - scale * center
        if self._last is not None:
            moved = y - self._last
            if float(moved @ moved) < _DIFFERENT * self.variance:
                return False
        self._last = y
        self._square, self._weight = _DECAY * self._square + float(away @ away), _DECAY * self._weight + 1
        self._sum, self._count = (z if self._sum is None else _DECAY * self._sum + z), _DECAY * self._count + 1
        self.window.add(row)
        if patches is not None:
            self.cells.observe(patches)
        self.counted += 1
        return True

    # --- files -------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return counts and sizes, without the arrays."""
        bias = self.window.bias()
        return {
            "seen": self.seen,
            "counted": self.counted,
            "shift": None if self._sum is None else float(np.linalg.norm(self._sum / self._count)),
            "bias_spread": None if bias is None or not len(bias) else float(bias.std()),
        }

    def save(self, path: Path, about: dict[str, Any] | None = None) -> None:
        """Write the state to a safetensors file, with `about` as JSON metadata."""
        write_tensors(Path(path), *self.contents(about))

    def contents(self, about: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return arrays and metadata for the file, as copies that later photos do not change."""
        facts = {key: getattr(self, key) for key in (*_INTEGERS, *_FLOATS)}
        tensors = {**self.window.tensors(), **self.cells.tensors()}
        for name, array in (("start", self.start), ("sum", self._sum), ("last", self._last)):
            if array is not None:
                tensors[name] = np.asarray(array, np.float64)
        facts |= {"rows_seen": self.window.seen, "about": about or {}}
        return tensors, {"kind": _KIND, "facts": json.dumps(facts)}

    @classmethod
    def load(cls, path: Path) -> tuple[Adaptation, dict[str, Any]]:
        """Read a file and return the adaptation and its `about`."""
        tensors, metadata = map_tensors(Path(path))
        try:
            if metadata.get("kind") != _KIND:
                raise ValueError(f"its kind is {metadata.get('kind')!r}")
            facts = parse_json(metadata["facts"])
            loaded = cls(np.array(tensors["start"]) if "start" in tensors else None)
            loaded.window = ScoreWindow.from_tensors(tensors, int(facts["rows_seen"]))
            for key in (*_INTEGERS, *_FLOATS):
                setattr(loaded, key, (int if key in _INTEGERS else float)(facts[key]))
            loaded._sum = np.array(tensors["sum"]) if "sum" in tensors else None
            loaded._last = np.array(tensors["last"]) if "last" in tensors else None
            loaded.cells = CellMeans.from_tensors(tensors)
            with np.errstate(all="ignore"):
                if not all(one is None or math.isfinite(one) for one in loaded.to_dict().values()):
                    raise ValueError("its values are not finite")
            return loaded, dict(facts["about"])
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise BadFile(f"{path} is not an online adaptation of this release ({error}); remove it") from None


@dataclass(frozen=True)
class DescribedPhoto:
    """One photo as the sides of a scorer describe it."""

    views: tuple[SideView, ...]
    cls: np.ndarray | None  # (1, d)
    patches: np.ndarray | None = None  # (n, r): projected, if the map has cell means for them
    cells: np.ndarray | None = None  # (n, r): the map's cell means

    @classmethod
    def of(cls, scorer: Scorer, tokens: Tokens, compact: CompactTokens | None = None) -> DescribedPhoto:
        """Describe one photo; `compact` are the map's compact tokens, if answers are reranked."""
        if len(tokens) != 1:
            raise BadSpec(f"a frame is one photo, got tokens of {len(tokens)}; pass one photo at a time")
        described = cls(tuple(scorer.describe(tokens)), tokens.cls)
        patches = None if compact is None else compact.project(tokens)
        if compact is None or patches is None:
            return described
        return replace(described, patches=patches[0], cells=compact.compaction.cells)


class AdaptedScorer:
    """A scorer that adapts to the photos of one camera.

    Args:
        scorer: Scorer of the head; a calibration's shift is the starting point.
        ids: Image ids of the scored columns.
        adaptation: State to continue.
        columns: Columns of the scorer to use [default: all].
        adapts: If False, scores are not adapted, and photos only update `moved`.
    """

    def __init__(
        self,
        scorer: Scorer,
        ids: Sequence[int] | np.ndarray | None = None,
        adaptation: Adaptation | None = None,
        *,
        columns: np.ndarray | None = None,
        adapts: bool = True,
    ) -> None:
        self.adapts = adapts
        self.adaptation = adaptation or Adaptation(_start(scorer.sides))
        self.moved = math.inf  # ‖y − y_before‖² / s² of the last photo
        self.vectors: QueryVectors | None = None  # query vectors of the last photo
        self._before: np.ndarray | None = None
        self.set_images(scorer, np.arange(len(scorer.bias)) if ids is None else ids, columns)

    def set_images(self, scorer: Scorer, ids: Sequence[int] | np.ndarray, columns: np.ndarray | None = None) -> None:
        """Use the images of an edited map, whose sides are unchanged."""
        self.scorer, self.rows = scorer, scorer.rows
        self._columns = np.arange(len(scorer.bias)) if columns is None else columns
        first = self._columns if scorer.duplicates is None else scorer.duplicates[self._columns]
        self._scorer_bias = scorer.bias[first]
        self.adaptation.window.set_images(ids)

    @property
    def counted(self) -> int:
        """Number of photos that the next answer is adapted to."""
        return self.adaptation.counted if self.adapts else 0

    def center_patches(self, photo: DescribedPhoto) -> np.ndarray | None:
        """Return unit patches (n, r) of the next photo, centered on the cell means so far; None for the map's means."""
        if not self.adapts or photo.patches is None or photo.cells is None:
            return None
        return self.adaptation.cells.center(photo.patches, photo.cells)

    def step(self, photo: DescribedPhoto) -> np.ndarray:
        """Return scores (m,) of the next photo, then update the adaptation with it."""
        adaptation, scorer = self.adaptation, self.scorer
        coordinates, scales = _coordinates(scorer.sides, photo.views)
        shifts: Sequence[np.ndarray | None] = [side.shift for side in scorer.sides]
        if self.adapts and adaptation.center is not None:
            ends = np.cumsum([len(one) for one in coordinates])
            shifts = np.split(adaptation.center, ends[:-1])
        self.vectors = vectors = scorer.vectors_of(photo.views, photo.cls, shifts)
        row = self.rows.scores(vectors)[0, self._columns]
        plain = row - self._scorer_bias.astype(row.dtype)
        bias = adaptation.window.bias() if self.adapts else None
        z, scale = np.concatenate(coordinates), np.concatenate(scales)
        y, variance = scale * z, adaptation.variance
        apart = math.inf if self._before is None else float(((y - self._before) ** 2).sum())
        self.moved, self._before = (apart / variance if variance else math.inf), y
        adaptation.observe(z, scale, plain, photo.patches)
        return row if bias is None else plain + bias.astype(row.dtype)


def digest_head(scorer: Scorer) -> str:
    """Return a digest of the query sides, which map edits do not change."""
    digest = hashlib.sha256()
    for side in scorer.sides:
        parts = [side.centers] if isinstance(side, ResidualSide) else [side.patch_directions, side.mean]
        if _spectral(side):
            parts.append(side.eigenvalues)
        for part in parts:
            digest.update(np.ascontiguousarray(part, np.float64).tobytes())
    return digest.hexdigest()


def _spectral(side: QuerySide) -> bool:
    return not isinstance(side, ResidualSide) or side.geometry is not None


def _coordinates(sides: Sequence[QuerySide], views: Sequence[SideView]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the values to center and their scales, per side: coordinates and λ^(−1/4), or the descriptor and 1."""
    values, scales = [], []
    for side, view in zip(sides, views, strict=True):
        if view.coordinates is None:
            values.append(np.asarray(view.descriptors[0], np.float64))
            scales.append(np.ones(len(values[-1])))
        else:
            values.append(np.asarray(view.coordinates[0], np.float64))
            scales.append(side.eigenvalues**-0.25)
    return values, scales


def _start(sides: Sequence[QuerySide]) -> np.ndarray | None:
    """Return c_0: the calibration's shifts of all sides; None without a calibration."""
    if all(side.shift is None for side in sides):
        return None
    widths = [len(side.eigenvalues) if _spectral(side) else side.width for side in sides]
    shifts = [np.zeros(width) if side.shift is None else side.shift for side, width in zip(sides, widths, strict=True)]
    return np.concatenate(shifts).astype(np.float64)

"""Adaptation to a camera: a window of its recent scores shifts later scores, without labels.

What map images usually score with the last photos of a camera (ours, beyond the paper).

    score = S − σ (b_d − mean b),   x = S/σ,
    b_d = log mean exp of x(·, d) over the kept rows, without the ⌈5 %⌉ largest

The bias of `method.score_calibration`, kept fresh: rows of the last photos instead of a calibration set, σ the median
spread of these rows. The mean is given back, so that scores keep their scale. Columns are known by the ids of images.

Online adaptation (ours, beyond the paper): a stream of photos adapts the head that answers it.

Under another season, light or camera a photo, seen from the mean of the *database*, is mostly the shift that all photos
of the stream share. The shift is one vector, and a handful of photos estimate it:

    centre   c = (m + 2 c_0) / (n + 2),   z' = z − c        c_0: 0, the database's mean, or that of a calibration
    count    m ← d m + z,  n ← d n + 1,   d = 1 − 1/32      so that a camera that changed is forgotten
    bias     from 32 counted photos on, what each image usually scores with the last 256 of them (`score_window`)

A camera that stands still must not adapt itself to its own place: a photo counts only if it differs from the last one
that did, ‖y − y_last‖² ≥ 0.2 s², y = λ^(−1/4) z, s² the decaying mean of ‖λ^(−1/4) z'‖² over counted photos.

Causal: a photo never adapts its own answer, and the first is answered as the head alone would. No label is used, no
photo is kept. The state, a few vectors and rows of scores, is that of one camera. `adapted_scorer` applies it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import BadFile, map_tensors, parse_json, write_tensors
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.scorer import QuerySide, ResidualSide, Scorer, SideView, usual_scores
from tfa.search.gallery import QueryVectors

# --- score window ---------------------------------------------------------------------------------

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


# --- adaptation -----------------------------------------------------------------------------------

_PSEUDO_COUNTS = 2.0  # photos at c_0 that the mean begins with
_DECAY = 1 - 1 / 32  # of what a photo counts, with every photo after it
_DIFFERENT = 0.2  # of s²: photos nearer to the last counted one show what it showed
_KIND = "tfa online adaptation 2"
_INTEGERS, _FLOATS = ("seen", "counted"), ("_count", "_square", "_weight")  # what a file holds beside arrays


class Adaptation:
    """What the photos of one camera teach a head whose queries have coordinates `r`, of all its sides together."""

    def __init__(self, start: np.ndarray | None = None) -> None:
        self.start = start  # c_0, `r`; None is the database's mean
        self.window = ScoreWindow()
        self.reset()

    def reset(self) -> None:
        """Forget every photo."""
        self.seen = 0  # photos, counted or not
        self.counted = 0  # photos that taught something
        self._sum: np.ndarray | None = None  # m
        self._count = 0.0  # n
        self._last: np.ndarray | None = None  # y of the last counted photo
        self._square, self._weight = 0.0, 0.0  # s² = square / weight
        self.window.clear()

    @property
    def centre(self) -> np.ndarray | None:
        """c, `r`: what the coordinates of the next photo are taken from; None is the database's mean."""
        if self._sum is None:
            return self.start
        start = 0.0 if self.start is None else self.start
        return (self._sum + _PSEUDO_COUNTS * start) / (self._count + _PSEUDO_COUNTS)

    def bias(self) -> np.ndarray | None:
        """What is added to each image's score with the next photo, `m`; None before enough photos were seen."""
        return self.window.bias()

    @property
    def variance(self) -> float:
        """s²; 0 before a photo counted."""
        return self._square / self._weight if self._weight else 0.0

    def observe(self, coordinates: np.ndarray, scale: np.ndarray, row: np.ndarray) -> bool:
        """Learn from a photo: its coordinates `r`, and its scores `m` as centred, without the bias. Did it count?

        `scale` `r` is λ^(−1/4), by which coordinates are compared.
        """
        self.seen += 1
        z = np.asarray(coordinates, np.float64)
        if not (np.isfinite(z).all() and np.isfinite(row).all()):
            return False
        y, centre = scale * z, self.centre
        away = y if centre is None else y - scale * centre
        if self._last is not None:
            moved = y - self._last
            if float(moved @ moved) < _DIFFERENT * self.variance:
                return False
        self._last = y
        self._square, self._weight = _DECAY * self._square + float(away @ away), _DECAY * self._weight + 1
        self._sum, self._count = (z if self._sum is None else _DECAY * self._sum + z), _DECAY * self._count + 1
        self.window.add(row)
        self.counted += 1
        return True

    # --- describe and keep -------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What it has seen, without what it learnt."""
        bias = self.bias()
        return {
            "seen": self.seen,
            "counted": self.counted,
            "shift": None if self._sum is None else float(np.linalg.norm(self._sum / self._count)),
            "bias_spread": None if bias is None or not len(bias) else float(bias.std()),
        }

    def save(self, path: Path, about: dict[str, Any] | None = None) -> None:
        """Write it whole, as safetensors; `about` is kept beside it, in JSON."""
        write_tensors(Path(path), *self.contents(about))

    def contents(self, about: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Arrays and metadata of its file, which later photos do not change."""
        facts = {key: getattr(self, key) for key in (*_INTEGERS, *_FLOATS)}
        tensors = self.window.tensors()
        for name, array in (("start", self.start), ("sum", self._sum), ("last", self._last)):
            if array is not None:
                tensors[name] = np.asarray(array, np.float64)
        facts |= {"rows_seen": self.window.seen, "about": about or {}}
        return tensors, {"kind": _KIND, "facts": json.dumps(facts)}

    @classmethod
    def load(cls, path: Path) -> tuple[Adaptation, dict[str, Any]]:
        """The inverse: the adaptation, and what was kept beside it."""
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
            return loaded, dict(facts["about"])
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadFile(f"{path} is not an online adaptation of this release ({error}); remove it") from None


# --- adapted scorer -------------------------------------------------------------------------------


@dataclass(frozen=True)
class DescribedPhoto:
    """One photo as the sides of a scorer describe it."""

    views: tuple[SideView, ...]
    cls: np.ndarray | None  # 1 d

    @classmethod
    def of(cls, scorer: Scorer, tokens: Tokens) -> DescribedPhoto:
        if len(tokens) != 1:
            raise BadSpec(f"a frame is one photo, these are tokens of {len(tokens)}; give one after the other")
        return cls(tuple(scorer.describe(tokens)), tokens.cls)


def describe_photos(scorer: Scorer, tokens: Tokens) -> Iterator[DescribedPhoto]:
    """Describe photos in the order of `tokens`, each alone, so that its bits do not depend on the others."""
    for row in range(len(tokens)):
        yield DescribedPhoto.of(scorer, tokens.select([row]))


class AdaptedScorer:
    """Scores of a camera's photos against images with `ids`, columns `columns` of the scorer (all if not given).

    A shift or bias of the scorer's own, of a calibration, holds until photos teach more. With `adapts` False it stays
    as it is, and photos are looked at only to say how far apart they are.
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
        self.vectors: QueryVectors | None = None  # of the last photo, as it was compared
        self._before: np.ndarray | None = None
        self.set_images(scorer, np.arange(len(scorer.bias)) if ids is None else ids, columns)

    def set_images(self, scorer: Scorer, ids: Sequence[int] | np.ndarray, columns: np.ndarray | None = None) -> None:
        """The map's images changed, the sides that describe photos did not."""
        self.scorer, self.rows = scorer, scorer.rows
        self._columns = np.arange(len(scorer.bias)) if columns is None else columns
        first = self._columns if scorer.duplicates is None else scorer.duplicates[self._columns]
        self._scorer_bias = scorer.bias[first]
        self.adaptation.window.set_images(ids)

    def reset(self) -> None:
        """Forget every photo."""
        self.adaptation.reset()
        self._before, self.moved = None, math.inf

    @property
    def counted(self) -> int:
        """Photos that adapt the next answer."""
        return self.adaptation.counted if self.adapts else 0

    def step(self, photo: DescribedPhoto) -> np.ndarray:
        """Score the next photo against images `m`, then update the adaptation with it."""
        adaptation, scorer = self.adaptation, self.scorer
        coordinates, scales = _coordinates(scorer.sides, photo.views)
        shifts: Sequence[np.ndarray | None] = [side.shift for side in scorer.sides]
        if self.adapts and adaptation.centre is not None:
            ends = np.cumsum([len(one) for one in coordinates])
            shifts = np.split(adaptation.centre, ends[:-1])
        self.vectors = vectors = scorer.vectors_of(photo.views, photo.cls, shifts)
        row = self.rows.scores(vectors)[0, self._columns]
        plain = row - self._scorer_bias.astype(row.dtype)
        bias = adaptation.bias() if self.adapts else None
        z, scale = np.concatenate(coordinates), np.concatenate(scales)
        self._look(scale * z)
        adaptation.observe(z, scale, plain)
        return row if bias is None else plain + bias.astype(row.dtype)

    def _look(self, y: np.ndarray) -> None:
        apart = math.inf if self._before is None else float(((y - self._before) ** 2).sum())
        variance = self.adaptation.variance
        self.moved, self._before = (apart / variance if variance else math.inf), y


def digest_head(scorer: Scorer) -> str:
    """Compute the digest of the sides that describe photos; edits of the map do not change it."""
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
    """What a photo is centred and compared by, side by side: coordinates and λ^(−1/4), or the descriptor and 1."""
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
    """c_0: the shifts of a calibration, side by side; None if there are none."""
    if all(side.shift is None for side in sides):
        return None
    widths = [len(side.eigenvalues) if _spectral(side) else side.width for side in sides]
    shifts = [np.zeros(width) if side.shift is None else side.shift for side, width in zip(sides, widths, strict=True)]
    return np.concatenate(shifts).astype(np.float64)

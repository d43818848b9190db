"""A scorer and what the photos of one camera taught it (ours, beyond the paper): their scores, one after the other.

Any head can be adapted. Where a side compares coordinates, they are centred on those of the stream; what compares
descriptors or global tokens as they are has no mean to be taken from, and only the bias of scores adapts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfa.base.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.query_sides import QuerySide, ResidualSide, SideView
from tfa.method.scorer import Scorer
from tfa.online.adaptation import Adaptation
from tfa.search.exact import QueryVectors


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

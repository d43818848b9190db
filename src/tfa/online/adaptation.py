"""Online adaptation (ours, beyond the paper): a stream of photos adapts the head that answers it.

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

import json
from pathlib import Path
from typing import Any

import numpy as np

from tfa.base.files import BadFile, map_tensors, write_tensors
from tfa.base.reading import parse_json
from tfa.online.score_window import ScoreWindow

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

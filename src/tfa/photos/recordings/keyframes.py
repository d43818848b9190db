"""Which frames of a recording are kept: one in N, one a time, one a way, or those that show something new (ours)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tfa.errors import BadImage, BadSpec
from tfa.photos.recordings.recording import RecordedFrame
from tfa.photos.track import metres_between

DEFAULT_INTERVAL = "1s"
NOVELTY = 0.2  # of `new`
_SMALL = (32, 24)  # pixels that novelty looks at
_INTERVAL_PATTERN = re.compile(r"(?:(?P<number>\d+(?:\.\d+)?)(?P<unit>m|s)?|new(?::(?P<novelty>\d+(?:\.\d+)?))?)")
_ALLOWED_INTERVALS = (
    "give 10 (every tenth frame), 0.5s (seconds), 2m (metres), or new (what looks unlike the last one kept)"
)


@dataclass(frozen=True)
class KeyframeInterval:
    """How often a frame is kept."""

    unit: str  # frames, seconds, metres or novelty
    amount: float

    @classmethod
    def parse(cls, text: str | int) -> KeyframeInterval:
        given = _INTERVAL_PATTERN.fullmatch(str(text).strip())
        if given is None:
            raise BadSpec(f"every={str(text)[:80]!r} is not allowed; {_ALLOWED_INTERVALS}")
        if given["number"] is None:
            amount = NOVELTY if given["novelty"] is None else float(given["novelty"])
            if not 0 < amount < 2:
                raise BadSpec(f"every={text!r} is not allowed: novelty is between 0 and 2, and {NOVELTY} if not given")
            return cls("novelty", amount)
        unit, amount = {"m": "metres", "s": "seconds", None: "frames"}[given["unit"]], float(given["number"])
        if not amount > 0 or (unit == "frames" and amount != int(amount)):
            raise BadSpec(f"every={text!r} is not allowed; {_ALLOWED_INTERVALS}")
        return cls(unit, amount)

    def __str__(self) -> str:
        if self.unit == "novelty":
            return "new" if self.amount == NOVELTY else f"new:{self.amount:g}"
        return f"{self.amount:g}" + {"frames": "", "seconds": "s", "metres": "m"}[self.unit]

    @property
    def in_words(self) -> str:
        return {
            "frames": "every frame" if self.amount == 1 else f"one in {self.amount:g}",
            "seconds": f"one every {self.amount:g} s",
            "metres": f"one every {self.amount:g} m",
            "novelty": "those that look new",
        }[self.unit]


class Keyframes:
    """Chooses frames one after the other; the first is always kept.

    By metres a frame without a position is not kept. By time the frame nearest to the time that is due
    is taken, so that a camera of one frame a second loses none to its jitter.
    """

    def __init__(self, every: KeyframeInterval) -> None:
        self.every = every
        self.seen = 0
        self.unplaced = 0  # frames that distances could say nothing of
        self._last: RecordedFrame | None = None
        self._before: int | None = None
        self._shown: np.ndarray | None = None

    def keeps(self, frame: RecordedFrame) -> bool:
        try:
            kept = getattr(self, f"_by_{self.every.unit}")(frame)
        finally:  # also one that cannot be decoded was seen
            self.seen += 1
            self._before = frame.time_ns
        if kept:
            self._last = frame
        return bool(kept)

    def _by_frames(self, frame: RecordedFrame) -> bool:
        return self.seen % int(self.every.amount) == 0

    def _by_seconds(self, frame: RecordedFrame) -> bool:
        if self._last is None or self._before is None:
            return True
        wanted = self.every.amount * 1e9
        passed, step = frame.time_ns - self._last.time_ns, frame.time_ns - self._before
        # A clock that was set back starts anew.
        return passed < 0 or passed + max(step, 0) / 2 > wanted

    def _by_metres(self, frame: RecordedFrame) -> bool:
        if frame.position is None:
            self.unplaced += 1
            return False
        last = None if self._last is None else self._last.position
        return last is None or metres_between(last, frame.position) >= self.every.amount

    def _by_novelty(self, frame: RecordedFrame) -> bool:
        try:
            shown = shrink_frame(frame.picture().image(_SMALL))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
            raise BadImage(f"the frame at {frame.time_ns / 1e9:.3f} cannot be decoded: {error}") from None
        new = self._shown is None or measure_novelty(self._shown, shown) > self.every.amount
        if new:
            self._shown = shown
        return new

    def of(self, frames: Iterator[RecordedFrame]) -> Iterator[RecordedFrame]:
        return (frame for frame in frames if self.keeps(frame))


def shrink_frame(image: Image.Image) -> np.ndarray:
    """A picture by 32 × 24 grey values of mean 0 and length 1; all zeros where it shows one grey."""
    grey = image.convert("L") if image.mode != "I;16" else Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    values = np.asarray(grey.resize(_SMALL, Image.Resampling.BOX), np.float64)
    values = values - values.mean()
    length = math.sqrt(float((values**2).sum()))
    return values / length if length > 1e-9 else np.zeros_like(values)


def measure_novelty(one: np.ndarray, other: np.ndarray) -> float:
    """1 − correlation of two pictures: 0 for the same, whatever the exposure; 1 for unrelated ones."""
    if not one.any() and not other.any():
        return 0.0
    return 1.0 - float((one * other).sum())

"""Decide loop closures in one stream of frames, from the scores of each frame against all earlier ones.

    column   S_tj ← S_tj − b_j      b_j: mean score of column j over earlier frames, with 10 counts at the overall mean
    row      z_tj = (S_tj − mean_t) / √((m s_t² + 30 s²) / (m + 30))   over the m candidates of frame t;
                                                                      s: median spread of earlier rows
    line     B_L(t, j) = max over slopes a of  1/L Σ_{k<L} z_{t−k, j − round(a k)},   L = 10 and 20
    margin   g = best line − best line after the best one is masked
    law      P(margin > g) = (1 + g / (β κ))^(−κ) without a loop,   κ = 8 + 3 rows / L
    loop     if  n / (w L) · P(margin > g) ≤ allowed false loops,   n: length of the drive,  w = 0.4 and 0.6

The best lines of a frame are order statistics M₁ ≥ M₂ ≥ … of weakly dependent sums. Their spacings k (M_k − M_{k+1})
have one exponential law with scale β, the mean spacing of the drive's rows. Margins above 2 β, which may be undecided
loops, do not count; this does not bias the other spacings, since they are independent. κ adds the uncertainty of β:
a row has three spacings. Frames in a row share their line, so n frames are n / L independent trials. The two lengths
share the allowed false loops by w. If the length of the drive is unknown, n is max(t, 128), and a drive of n frames
expects at most allowed (1 + ln(n / 128)) false loops.

Where a loop ends, older frames of the line still match. So the last three frames must match, too: on average half as
well as the whole line, and the last one 0.3 times as well, within 3 columns of the line.

Where a drive enters surroundings unlike all before, frames just beyond the gap are the only similar ones. So a match
within 46 frames of the gap must also exceed the frames of the gap's older half, which are nearer.

A frame that continues the loop of the frames before it is one of few hypotheses, not one of all, and needs only
g ≥ 1.5 β. Places that earlier loops joined count as one place: the second best line lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SHARES = {10: 0.4, 20: 0.6}  # of the allowed false loops, per number of frames in a line
LENGTHS = tuple(SHARES)
SLOPES = (-2.0, -1.5, -1.0, -0.5, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0)  # relative speeds; backward drives are negative
BESIDE = 6  # frames around a line that show the same place
MIN_CANDIDATES = 20  # candidates below which a row has no usable spread
_MIN_ROWS = 10  # rows below which no loop is decided
_LONGEST = max(LENGTHS)
_OFFSETS = np.rint(np.outer(SLOPES, np.arange(_LONGEST))).astype(np.int64)  # (slopes, frames)
_PAD = int(np.abs(_OFFSETS).max())
_SPREAD_COUNTS = 30  # weight of the usual spread, in candidates
_COLUMN_COUNTS = 10  # weight of the mean of all columns, in frames
_PEAKS = 4  # order statistics per row
_SPACINGS = _PEAKS - 1  # between them, the margin among them
_GATE = 2.0  # margin in β above which a row may be a loop
_GATED_MEAN = 1 - _GATE * np.exp(-_GATE) / (1 - np.exp(-_GATE))  # mean of an exponential below the gate, in β
_CERTAINTY = 8.0  # κ of a law without rows
_CONTINUED = 1.5  # margin in β that continues a loop
_NEAR = 2 * _LONGEST + BESIDE  # frames beyond the gap within which a match must exceed the gap itself
_HOLD = 3  # frames that a loop survives without evidence
_LAST, _LAST_REACH = 3, 3  # latest frames that must match themselves, and how many columns from the line
_LAST_SHARE, _NEWEST_SHARE = 0.5, 0.3  # share of the line's value that the last frames and the newest one need
SHORTEST_DRIVE = 128  # frames; a drive of unknown length is at least this long


@dataclass(frozen=True)
class LoopLine:
    """A decided loop: the last frame shows the same place as column `match`."""

    match: int
    chain: tuple[tuple[int, int], ...]  # (frames back, column), the last frame first
    # Expected number of false loops of the drive with this margin or more; among the continuations, if it is one.
    false_loops: float
    is_continued: bool


class MarginLaw:
    """The distribution of margins without a loop, per line length."""

    def __init__(self) -> None:
        self.table = np.zeros((len(LENGTHS), 4))  # per length: sum and number of spacings, sum of margins, rows

    def scale(self, length: int) -> float | None:
        """Return β; None before there are enough rows."""
        spacings, count, margins, rows = self.table[LENGTHS.index(length)]
        if rows < _MIN_ROWS:
            return None
        return max(float((spacings + margins / _GATED_MEAN) / (count + rows)), 1e-6)  # 1e-6: all scores are equal

    def expect_false(self, length: int, margin: float, frames: int | None) -> float:
        """Return the expected number of margins this large in `frames` without loops; None: among continuations."""
        scale, rows = self.scale(length), self.table[LENGTHS.index(length), 3]
        if scale is None:
            return np.inf
        certainty = _CERTAINTY + _SPACINGS * rows / length
        trials = 1.0 if frames is None else frames / (SHARES[length] * length)
        return float(trials * (1 + max(margin, 0.0) / (scale * certainty)) ** -certainty)

    def observe(self, length: int, peaks: Sequence[float]) -> None:
        """Count the best lines of a row in which no loop was decided, best first."""
        margin, scale = peaks[0] - peaks[1], self.scale(length)
        if len(peaks) < 3:
            return
        spacings = [k * (peaks[k - 1] - peaks[k]) for k in range(2, len(peaks))]
        usual = scale is None or margin <= _GATE * scale
        self.table[LENGTHS.index(length)] += (sum(spacings), len(spacings), margin * usual, usual)


class LoopLinks:
    """Columns that decided loops joined, as pairs."""

    def __init__(self) -> None:
        self.pairs = np.zeros((0, 2), np.int64)

    def add(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Add pairs of columns."""
        self.pairs = np.unique(np.concatenate([self.pairs, pairs]), axis=0)

    def mates(self, low: int, high: int, columns: int) -> np.ndarray:
        """Return which columns (m,) show a place of the columns low … high by earlier loops, those left out."""
        own = np.zeros(columns, bool)
        own[max(low, 0) : high + 1] = True
        place, before, pairs = own, 0, self.pairs[(self.pairs < columns).all(axis=1)]
        while place.sum() > before:
            joined, before = np.zeros(columns), place.sum()
            joined[pairs[place[pairs[:, 0]], 1]] = joined[pairs[place[pairs[:, 1]], 0]] = 1
            place = place | (np.convolve(joined, np.ones(2 * BESIDE + 1))[BESIDE:-BESIDE] > 0)
        return place & ~own


class LoopDetector:
    """Rows of the last frames, and the decision for each. Detectors of one stream share law and links."""

    def __init__(self, law: MarginLaw | None = None, links: LoopLinks | None = None) -> None:
        self.law, self.links = law or MarginLaw(), links or LoopLinks()
        self.spreads: list[float] = []
        self._columns = np.zeros((2, 0))  # sum and number of scores of each column
        self.restart()

    def restart(self) -> None:
        """Start another drive; the law and the links remain."""
        self._rows: list[np.ndarray] = []  # newest first
        self._nearer: list[float] = []  # highest standardized score within the gap's older half, newest first
        self._last: tuple[int, int] | None = None  # frames since the last loop, its column

    def step(
        self, scores: np.ndarray, candidates: np.ndarray, frames: int, allowed: float, gap: int = 0
    ) -> LoopLine | None:
        """Decide the next frame.

        Args:
            scores: Scores (m,) against earlier frames in order.
            candidates: Which of them may match, (m,), bool.
            frames: Length of the drive, in frames.
            allowed: Expected number of false loops that the whole drive may have.
            gap: Number of latest frames that the gap excludes.
        """
        row, nearer = self._standardize(scores, candidates, gap)
        self._rows, self._nearer = [row, *self._rows[: _LONGEST - 1]], [nearer, *self._nearer[: _LONGEST - 1]]
        self._last = None if self._last is None or self._last[0] >= _HOLD else (self._last[0] + 1, self._last[1])
        if candidates.sum() < MIN_CANDIDATES:
            return None
        rows = np.zeros((_LONGEST, len(scores) + 2 * _PAD), np.float32)
        for back, earlier in enumerate(self._rows):
            rows[back, _PAD : _PAD + len(earlier)] = earlier
        first = scan_lines(rows, LENGTHS)
        best: LoopLine | None = None
        for length in LENGTHS:
            values, slopes = first[length]
            values = np.where(candidates, values, -np.inf)
            match = int(values.argmax())
            path = match - _OFFSETS[slopes[match]]
            peaks = [float(values[match]), *self._others(rows, path, length, candidates)]
            if len(peaks) < 2:
                continue
            margin = peaks[0] - peaks[1]
            if len(scores) - match < gap + _NEAR:
                margin = min(margin, peaks[0] - float(np.mean(self._nearer[:length])))
            line = self._decide(length, margin, match, path, rows, frames, allowed)
            if line is None:
                self.law.observe(length, peaks)
            elif not _is_current(rows, path, peaks[0]):
                continue
            elif best is None or line.false_loops < best.false_loops:
                best = line
        if best is not None:
            self._last = (0, best.match)
        return best

    def _standardize(self, scores: np.ndarray, candidates: np.ndarray, gap: int) -> tuple[np.ndarray, float]:
        """Return the row (m,), 0 for frames that are not candidates, and the best score of the gap's older half."""
        if candidates.sum() < MIN_CANDIDATES:
            return np.zeros(len(scores), np.float32), 0.0
        self._columns = np.pad(self._columns, ((0, 0), (0, len(scores) - self._columns.shape[1])))
        sums, counts = self._columns
        mean = sums.sum() / max(counts.sum(), 1)
        row = scores - (sums + _COLUMN_COUNTS * mean) / (counts + _COLUMN_COUNTS)
        self._columns += (np.where(candidates, scores, 0.0), candidates)
        chosen = row[candidates]
        usual = float(np.median(self.spreads)) if self.spreads else float(chosen.std())
        self.spreads.append(float(chosen.std()))
        variance = (len(chosen) * chosen.var() + _SPREAD_COUNTS * usual**2) / (len(chosen) + _SPREAD_COUNTS)
        row = (row - chosen.mean()) / max(np.sqrt(variance), 1e-6)  # 1e-6: all scores are equal
        nearer = float(row[len(row) - gap : len(row) - gap // 2].max()) if gap > 1 else 0.0
        return np.where(candidates, row, 0.0).astype(np.float32), nearer

    def _others(self, rows: np.ndarray, path: np.ndarray, length: int, candidates: np.ndarray) -> list[float]:
        """Return the best lines elsewhere, best first."""
        masked, allowed = rows.copy(), candidates.copy()
        for back, column in enumerate(path[:length].tolist()):
            low = _PAD + column - BESIDE
            masked[back, max(low, 0) : max(low + 2 * BESIDE + 1, 0)] = 0
        mates = self.links.mates(int(path[:length].min()) - BESIDE, int(path[:length].max()) + BESIDE, len(candidates))
        masked[:, _PAD : _PAD + len(mates)][:, mates] = 0
        allowed[mates] = False
        allowed[max(path[0] - BESIDE, 0) : path[0] + BESIDE + 1] = False
        values, _ = scan_lines(masked, (length,))[length]
        values = np.where(allowed, values, -np.inf)
        peaks: list[float] = []
        while len(peaks) < _PEAKS - 1 and np.isfinite(top := values[at := int(values.argmax())]):
            peaks.append(float(top))
            values[max(at - BESIDE, 0) : at + BESIDE + 1] = -np.inf
        return peaks

    def _decide(
        self, length: int, margin: float, match: int, path: np.ndarray, rows: np.ndarray, frames: int, allowed: float
    ) -> LoopLine | None:
        scale, expected = self.law.scale(length), self.law.expect_false(length, margin, frames)
        continued = False
        if scale is not None and self._last is not None and expected > allowed:
            since, column = self._last
            # One more than the fastest relative speed allows.
            continued = abs(match - column) <= max(SLOPES) * since + 1 and margin >= _CONTINUED * scale
        if continued:
            return LoopLine(match, ((0, match),), self.law.expect_false(length, margin, None), continued)
        return None if expected > allowed else LoopLine(match, self._support(rows, path, length), expected, continued)

    def _support(self, rows: np.ndarray, path: np.ndarray, length: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of the line that carry it: the loop may have started within the line."""
        usable = (path >= 0) & (path < rows.shape[1] - 2 * _PAD) & (np.arange(_LONGEST) < min(length, len(self._rows)))
        count = int(np.argmin([*usable, False]))
        values = rows[np.arange(count), path[:count] + _PAD]
        last = int(np.cumsum(values - 0.75 * values.mean()).argmax())
        return tuple((back, int(path[back])) for back in range(last + 1))

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the state without the shared law and links."""
        rows = np.zeros((len(self._rows), max(map(len, self._rows), default=0)), np.float32)
        for back, row in enumerate(self._rows):
            rows[back, : len(row)] = row
        lists = {"spreads": self.spreads, "nearer": self._nearer, "last": self._last or (-1, -1)}
        return {"rows": rows, "columns": self._columns, **{name: np.array(one) for name, one in lists.items()}}

    def load_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Restore the state from `tensors()`."""
        self._rows, self._columns = [np.array(row) for row in tensors["rows"]], np.array(tensors["columns"])
        self.spreads, self._nearer = tensors["spreads"].tolist(), tensors["nearer"].tolist()
        since, column = tensors["last"].tolist()
        self._last = None if since < 0 else (since, column)


def _is_current(rows: np.ndarray, path: np.ndarray, value: float) -> bool:
    """Return whether the last frames of a line match, too; otherwise the loop has ended."""
    near = [rows[back, _PAD + path[back] - _LAST_REACH :][: 2 * _LAST_REACH + 1].max() for back in range(_LAST)]
    return bool(np.mean(near) >= _LAST_SHARE * value and near[0] >= _NEWEST_SHARE * value)


def scan_lines(rows: np.ndarray, lengths: Sequence[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return the best line that ends in each column and the index of its slope, per length, from padded rows."""
    columns = rows.shape[1] - 2 * _PAD
    best = {length: (np.full(columns, -np.inf, np.float32), np.zeros(columns, np.int64)) for length in lengths}
    for slope, offsets in enumerate(_OFFSETS.tolist()):
        total = np.zeros(columns, np.float32)
        for back in range(max(lengths)):
            start = _PAD - offsets[back]
            total += rows[back, start : start + columns]
            if back + 1 in best:
                values, slopes = best[back + 1]
                mean = total / (back + 1)
                better = mean > values
                values[better], slopes[better] = mean[better], slope
    return best

"""Streams of a drive's photos to study a tracker with: a gap in the drive, a jump, a way outside the map.

Streams are numbers of photos: those of the drive, then those of somewhere else. Numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfa.online.sequence_filter import Belief

STREAMS = 6  # of each kind
LEG = 30  # frames before and after what happens
AWAY = 25  # frames outside the map
SETTLED = 3  # frames outside, after which the camera should know
FARTHEST_GAP = 50  # frames


@dataclass(frozen=True)
class Stream:
    """Photos in an order. Something happens before the frame `event`: from there on the camera has to be found."""

    photos: np.ndarray  # t
    event: int
    outside: np.ndarray  # t: bool, frames of somewhere else


@dataclass(frozen=True)
class EventStudy:
    """How streams of one kind were followed; shares from 0 to 1."""

    right: float  # R@1 of frames in the map
    lost: float  # of them: being lost is likelier than the best place
    found_after: float  # frames until two in a row are right and not lost, in the mean; those not found count in full
    found_last: int  # the most
    outside_lost: float | None  # of frames outside, after the first three: known to be lost


def events(frames: int, foreign: int, seed: int = 1) -> dict[str, list[Stream]]:
    """Streams of a drive of so many frames, and of so many photos of somewhere else, by what happens."""
    rng = np.random.default_rng(seed)
    leg = min(LEG, max(frames // 4, 2))
    made: dict[str, list[Stream]] = {"gap": [], "jump": []}
    for _ in range(STREAMS):
        gap = int(rng.integers(min(20, leg), min(FARTHEST_GAP, max(frames // 4, leg)) + 1))
        start = int(rng.integers(max(frames - 2 * leg - gap, 0) + 1))
        made["gap"].append(_joined(np.arange(start, start + leg), np.arange(start + leg + gap, start + 2 * leg + gap)))
        first, second = rng.integers(frames - leg + 1, size=2)
        made["jump"].append(_joined(np.arange(first, first + leg), np.arange(second, second + leg)))
        if foreign:
            away = frames + (int(rng.integers(foreign)) + np.arange(min(AWAY, foreign))) % foreign
            start = int(rng.integers(max(frames - 2 * leg, 0) + 1))
            back = np.arange(start + leg, start + 2 * leg)
            made.setdefault("outside", []).append(_joined(np.r_[np.arange(start, start + leg), away], back, frames))
    return {kind: [_within(stream, frames) for stream in streams] for kind, streams in made.items()}


def _joined(before: np.ndarray, after: np.ndarray, frames: int | None = None) -> Stream:
    photos = np.r_[before, after]
    return Stream(photos, len(before), photos >= frames if frames is not None else np.zeros(len(photos), bool))


def _within(stream: Stream, frames: int) -> Stream:
    """Without frames beyond the end of a short drive."""
    kept = (stream.photos < frames) | stream.outside
    return Stream(stream.photos[kept], int(kept[: stream.event].sum()), stream.outside[kept])


def measured(
    streams: Sequence[Stream], beliefs: Sequence[Sequence[Belief]], positives: Sequence[np.ndarray]
) -> EventStudy:
    """What was believed after each frame of each stream, against what is right."""
    right: list[bool] = []
    lost: list[bool] = []
    outside: list[bool] = []
    found: list[int] = []
    for stream, believed in zip(streams, beliefs, strict=True):
        gone = np.array([belief.is_lost for belief in believed])
        sure = np.zeros(len(believed), bool)
        for frame in np.flatnonzero(~stream.outside).tolist():
            own = positives[stream.photos[frame]]
            lost.append(bool(gone[frame]))
            if len(own):
                right.append(believed[frame].best in own)
                sure[frame] = right[-1] and not gone[frame]
        after = sure[stream.event :]
        twice = np.flatnonzero(after[:-1] & after[1:])
        found.append(int(twice[0]) if len(twice) else len(after))
        outside += gone[np.flatnonzero(stream.outside)[SETTLED:]].tolist()
    away = float(np.mean(outside)) if outside else None
    return EventStudy(float(np.mean(right or [False])), float(np.mean(lost)), float(np.mean(found)), max(found), away)

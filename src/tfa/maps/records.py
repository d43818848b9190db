"""What a map holds of an image, and what it answers."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tfa.core.config import ONLY_SURE, MinConfidence
from tfa.photos.positions import Position

NO_HITS = "nothing was found"
TOO_DOUBTFUL = "the answer is too doubtful to be given"


@dataclass(frozen=True)
class ImageRecord:
    """One image of the map. `id` is given once and never to another image."""

    id: int
    path: str
    digest: str  # sha256 of the file
    fitted: bool  # was it in the database the head was fitted on?
    position: Position | None = None
    session: str | None = None  # what it was taken on: a day, a drive, the map it came from

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "position": None if self.position is None else self.position.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ImageRecord:
        """The inverse; KeyError, TypeError or ValueError where the values are not those of a record.

        A session need not be there.
        """
        kinds = {"id": int, "path": str, "digest": str, "fitted": bool}
        wrong = [name for name, kind in kinds.items() if type(values[name]) is not kind]
        if wrong:
            raise ValueError(f"the {wrong[0]} of an image is {reprlib.repr(values[wrong[0]])}")
        position = None if values["position"] is None else Position.from_dict(values["position"])
        return cls(**{**values, "position": position})


@dataclass(frozen=True)
class Hit:
    """A place of the map that a photo may show."""

    id: int
    image: str
    score: float
    confidence: float  # see `tfa.maps.confidence`
    position: Position | None = None
    inliers: int | None = None  # patches that match in one arrangement; None if it was not verified
    sure: bool = False  # can it be relied on? see `tfa.core.text.SURE`

    def to_dict(self) -> dict[str, Any]:
        position = None if self.position is None else self.position.to_dict()
        return {**vars(self), "position": position}


@dataclass(frozen=True)
class Place:
    """Where a photo was taken, by all images that were verified together (`tfa.maps.fused_place`)."""

    position: Position
    radius: float  # metres
    share: float  # of what speaks for the verified images, that speaks for those around here
    images: int  # that it was made of

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "position": self.position.to_dict()}

    def __str__(self) -> str:
        return f"{self.position} ± {self.radius:,.0f} m"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Place:
        return cls(**{**values, "position": Position.from_dict(values["position"])})


@dataclass(frozen=True)
class Fused:
    """A place, or why there is none."""

    place: Place | None
    reason: str | None = None


class Hits(list[Hit]):
    """The hits of one photo, best first, and where all that was verified together says it was taken.

    `place` is None where it says nothing; `place_missing` then says why.
    """

    def __init__(self, hits: Iterable[Hit] = (), fused: Fused | None = None) -> None:
        super().__init__(hits)
        self.fused = fused or Fused(None, NO_HITS)

    @property
    def place(self) -> Place | None:
        return self.fused.place

    @property
    def place_missing(self) -> str | None:
        return self.fused.reason


@dataclass(frozen=True)
class Answer:
    """The hits of one query photo; none when it is too doubtful or the photo cannot be read."""

    query: str
    hits: list[Hit]
    confidence: float  # of the best hit, also when it was not confident enough to be given
    error: str | None = None
    sure: bool = field(default=False, kw_only=True)  # of the best hit, too
    reranked: bool = field(default=False, kw_only=True)
    place: Place | None = field(default=None, kw_only=True)  # None where the hits are none or do not agree
    place_missing: str | None = field(default=None, kw_only=True)  # why there is no place
    time_ns: int | None = field(default=None, kw_only=True)  # when a frame of a recording was taken, since 1970
    frame: str | None = field(default=None, kw_only=True)  # where it is from, if its file is not kept

    @property
    def name(self) -> str:
        """What the photo is called in print; `query` is where it is read."""
        return self.frame or str(self.query)

    @property
    def as_hits(self) -> Hits:
        """The hits with the place."""
        return Hits(self.hits, Fused(self.place, self.place_missing))

    def withhold_below(self, min_confidence: MinConfidence) -> Self:
        """Drop the hits if the answer is less confident than that, or not sure when "sure" is required."""
        enough = self.sure if min_confidence == ONLY_SURE else self.confidence >= float(min_confidence)
        return self if enough else replace(self, hits=[], place=None, place_missing=self.place_missing or TOO_DOUBTFUL)


def describe_best_hit(hits: Sequence[Hit]) -> dict[str, bool]:
    """Return the flags of an answer's best hit."""
    return {"sure": bool(hits) and hits[0].sure, "reranked": bool(hits) and hits[0].inliers is not None}


def describe_hits(hits: Hits) -> dict[str, Any]:
    """Return the flags of an answer's best hit and the place of all hits."""
    return {**describe_best_hit(hits), "place": hits.place, "place_missing": hits.place_missing}


@dataclass(frozen=True)
class ExpectedRecall:
    """How many photos like those that were answered will be recognised (`tfa.maps.expected_recall`), in shares."""

    share: float
    low: float
    high: float
    sure: float  # of the answers, that were called sure
    photos: int

    def to_dict(self) -> dict[str, float]:
        return dict(vars(self))


@dataclass(frozen=True)
class FrameAnswer(Answer):
    """The answer to one photo of a stream, in the light of the photos before it."""

    # Probability that the frame shows no place of the map; a hit's confidence is then that of its place, filtered.
    # None where photos are no frames of a drive.
    lost: float | None = None
    adaptation_photos: int = 0  # earlier photos of this camera that shifted the scores


@dataclass(frozen=True)
class EditReport:
    """What an edit did."""

    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CalibrationReport:
    """What a calibration saw, what it decided and why."""

    name: str
    used: int  # photos it was made of
    offered: int  # photos to choose from
    skipped: list[tuple[str, str]]
    notes: list[str]
    decisions: dict[str, Any]
    reasons: dict[str, str]
    expected_recall: ExpectedRecall | None = None  # of photos like these, with the calibration

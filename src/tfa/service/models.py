"""Bodies of requests and answers, as OpenAPI documents them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tfa.core.text import CONFIDENCE, CONFIDENCE_RULE, LATER_HITS, ORDER_VERIFIED, SURE, SURE_RULE

MOST_HITS = 1000
CAMERA_NAME = re.compile("[A-Za-z0-9._-]{1,64}")
NAME_RULE = "letters, digits, - _ and . are allowed, at most 64"


class RequestModel(BaseModel):
    """A request: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class QueryFields(RequestModel):
    k: int = Field(5, ge=1, le=MOST_HITS, description="Hits wanted.", examples=[5])
    calibration: str | None = Field(
        None, description='Query with this calibration; "none" goes without, absent is the active one.'
    )
    min_confidence: float = Field(
        0.0, ge=0, le=1, description=f"No hits are given if the best is less confident than this. {CONFIDENCE_RULE}"
    )
    sure: bool = Field(False, description=f"No hits are given unless the answer is sure. {SURE_RULE}")
    rerank: bool | None = Field(
        None, description="Rerank the best images by their patches; absent: as the map decided."
    )
    candidates: Annotated[int, Field(ge=1, le=MOST_HITS)] | Literal["auto"] | None = Field(
        None,
        description="Best images that are verified; auto: as many as pay, 10 to 100. Absent: as the map was built.",
        examples=["auto", 20],
    )
    camera: str | None = Field(
        None,
        description="The name of a camera: its photos, in the order they come, adapt the answers to those after them. "
        f"{NAME_RULE}. Absent: the map alone answers.",
        examples=["cam0"],
        json_schema_extra={"pattern": f"^{CAMERA_NAME.pattern}$"},
    )
    sequence: bool = Field(
        False, description="The camera's photos are frames of a drive, which is followed; needs a camera."
    )

    sessions: list[str] = Field(
        default_factory=list, description="Only images that were added, or merged, as one of these sessions may answer."
    )
    region: list[float] | None = Field(
        None,
        min_length=4,
        max_length=4,
        description="Only images within this box may answer: west, south, east, north, in degrees, or in metres where "
        "positions are x and y.",
        examples=[[13.3, 52.4, 13.5, 52.6]],
    )

    @field_validator("sessions", "region", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Split the comma-separated values of a form."""
        return value.split(",") if isinstance(value, str) else value

    @field_validator("camera")
    @classmethod
    def _named(cls, camera: str | None) -> str | None:
        if camera is not None and not CAMERA_NAME.fullmatch(camera):
            raise ValueError(f"{camera[:80]!r} is not a camera name; {NAME_RULE}")
        return camera

    @model_validator(mode="after")
    def _of_a_camera(self) -> Self:
        if self.sequence and self.camera is None:
            raise ValueError("a sequence is of one camera; name it, such as camera=cam0")
        return self


class ExplainFields(RequestModel):
    id: int = Field(description="The map's image to compare with.", examples=[3])
    calibration: str | None = Field(None, description="As for a query.")


class AddFields(RequestModel):
    positions: Any = Field(
        None,
        description="Where the photos were taken: a list in their order, or an object by file name, of "
        '{"lat", "lon"}, {"x", "y"} or null. Without it: from file names and EXIF.',
        examples=[[{"lat": 52.5163, "lon": 13.3777}, None]],
    )
    session: str | None = Field(
        None, min_length=1, max_length=200, description="What the photos belong to, to choose by; absent: nothing."
    )


class CalibrationFields(RequestModel):
    name: str = Field("target", description="Letters, digits, - and _.", examples=["night"])
    score: bool | None = Field(None, description="Also calibrate scores; absent: from 8 photos on (paper: 16).")


class ActiveRequest(RequestModel):
    name: str | None = Field(description="A calibration of the map, or null for none.", examples=["night"])


class Problem(BaseModel):
    error: str = Field(description="What was given, what is allowed, what to do.")


class Health(BaseModel):
    status: str = Field(description='"ok"; of readyz "ready", "loading" or "failed".')


class MapEntry(BaseModel):
    name: str
    images: int
    encoder: str
    path_name: str = Field(description="Name of the map's folder.", examples=["town.tfa"])


class ExpectedRecallModel(BaseModel):
    """How many photos like those that were asked will be recognised, in shares."""

    share: float
    low: float
    high: float
    sure: float = Field(description="Of the answers, that were called sure.")
    photos: int


class RecentQueriesModel(BaseModel):
    photos: int = Field(description="Queries of the active calibration that this speaks of, 256 at most.")
    expected_recall: ExpectedRecallModel | None = Field(description="null before the first query.")
    in_words: str | None
    notice: str | None = Field(description="Says so if the photos are unlike those the map is made for, with advice.")


class MapInfo(BaseModel):
    """`PlaceMap.info()` without paths of the server and without the list of photos."""

    model_config = ConfigDict(extra="allow")
    name: str
    revision: int
    images: int
    encoder: dict[str, Any]
    decisions: dict[str, Any]
    reasons: dict[str, Any]
    evidence: dict[str, Any]
    calibrations: list[str] = Field(description="Their names, the newest last.")
    calibration_details: list[dict[str, Any]] = Field(description="Decisions and reasons of each.")
    active_calibration: str | None
    positions: bool = Field(description="Does any image have a position?")
    editable: bool = Field(description="Does the service take edits?")
    recent: RecentQueriesModel = Field(description="What the last queries say together.")
    rules: dict[str, str] = Field(description="What confidence, sure and other words mean, a statement each.")


class ShownImage(BaseModel):
    id: int
    image: str = Field(description="File name.")
    position: dict[str, float] | None
    image_url: str = Field(description="Address of the photo, relative to the service.")


class HitModel(ShownImage):
    score: float
    confidence: float = Field(description=CONFIDENCE)
    sure: bool = Field(description=SURE)
    inliers: int | None = Field(description="Patches that match in one spatial arrangement; null: not verified.")


class PlaceModel(BaseModel):
    """Where the photo was taken, by all images that were verified together."""

    position: dict[str, float]
    radius: float = Field(description="Metres.")
    share: float = Field(description="Of what speaks for the verified images, that speaks for those around here.")
    images: int = Field(description="That the position was made of.")


class QueryAnswer(BaseModel):
    hits: list[HitModel] = Field(description=f"{ORDER_VERIFIED} {LATER_HITS}")
    confidence: float = Field(description="Of the best hit, also if it was too doubtful to be given.")
    sure: bool = Field(description="Of the best hit, too.")
    reranked: bool = Field(description="Was the best hit compared by its patches?")
    place: PlaceModel | None = Field(description="null where no hits are given, or the verified images disagree.")
    place_missing: str | None = Field(description="Why there is no place.")
    calibration: str | None = Field(description="The calibration that answered.")
    camera: str | None = Field(description="The camera that was named.")
    adaptation_photos: int = Field(
        description="Earlier photos of the camera that adapted this answer; 0 without a camera."
    )
    lost: float | None = Field(description="Probability that a frame shows no place of the map; null: no sequence.")
    seconds: float = Field(description="From the decoded photo to its hits, waiting included.")


class BatchAnswer(BaseModel):
    answers: list[QueryAnswer | Problem] = Field(description="In the order of the photos.")


class ImageEntry(ShownImage):
    digest: str = Field(description="sha256 of the file.")
    fitted: bool = Field(description="Was it in the database the head was fitted on?")
    session: str | None = Field(description="What it was taken on, if that has a name.")
    last_confirmed: str | None = Field(description="When a sure answer last named it; null: none has.")


class ImageList(BaseModel):
    total: int = Field(description="Images that pass the filter.")
    images: list[ImageEntry]


class PositionList(BaseModel):
    kind: str | None = Field(description='"xy" in metres, "latlon" in degrees, or null without positions.')
    points: list[Annotated[list[int | float], Field(min_length=3, max_length=3)]] = Field(
        description='[id, x, y]; of "latlon" x is lon and y is lat.'
    )


class SkippedPhoto(BaseModel):
    image: str
    reason: str


class Added(BaseModel):
    added: list[int]
    skipped: list[SkippedPhoto]
    notes: list[str]
    revision: int = Field(description="Of the map, on disk and visible to the next query.")


class Removed(BaseModel):
    removed: list[int]
    notes: list[str]
    revision: int


class JobStarted(BaseModel):
    job: str = Field(description="/v1/jobs/{id} says how far it has come.")


class Active(BaseModel):
    active: str | None


class Dropped(BaseModel):
    dropped: str = Field(description="The calibration that the map no longer has.")
    revision: int


class CameraEntry(BaseModel):
    name: str
    owner: str | None = Field(description="Name of the API key whose queries it is of; null without API keys.")
    seen: int = Field(description="Photos so far.")
    counted: int = Field(description="Photos used for adaptation; near-repeats are ignored.")
    calibration: str | None = Field(description="The head that answers; another one starts the camera anew.")
    last_used: str = Field(description="Time of the last photo, UTC.", examples=["2025-06-01T12:00:00+00:00"])


class CameraDetails(CameraEntry):
    sequence: bool = Field(description="Is a drive followed?")
    lost: float | None = Field(description="Of the last frame of the drive.")
    shift: float | None = Field(description="Length of what photos are centred by; null before the first.")
    bias_spread: float | None = Field(description="Of what is added to scores; null below 32 photos that taught.")
    notice: str | None = Field(description="Says so if its last photos are unlike those the map is made for.")


class CameraList(BaseModel):
    most: int = Field(description="Cameras that are remembered; a new one takes the place of the least recently used.")
    cameras: list[CameraEntry] = Field(description="The most recently used first.")


class Reset(BaseModel):
    reset: list[str] = Field(description="Cameras that were reset.")

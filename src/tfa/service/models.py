"""Bodies of requests and answers, as OpenAPI documents them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_HITS = 1000


class Given(BaseModel):
    """A request: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class QueryFields(Given):
    k: int = Field(5, ge=1, le=MOST_HITS, description="Hits wanted.", examples=[5])
    calibration: str | None = Field(
        None, description='Query with this calibration; "none" goes without, absent is the active one.'
    )
    min_confidence: float = Field(
        0.0, ge=0, le=1, description="No hits are given if the best is less confident than this."
    )
    verify: bool | None = Field(
        None, description="Verify the best images by their patches; absent: as the map decided."
    )
    candidates: Annotated[int, Field(ge=1, le=MOST_HITS)] | Literal["auto"] | None = Field(
        None,
        description="Best images that are verified; auto: as many as pay, 10 to 100. Absent: as the map was built.",
        examples=["auto", 20],
    )


class WhyFields(Given):
    id: int = Field(description="The map's image to compare with.", examples=[3])
    calibration: str | None = Field(None, description="As for a query.")


class AddFields(Given):
    positions: Any = Field(
        None,
        description="Where the photos were taken: a list in their order, or an object by file name, of "
        '{"lat", "lon"}, {"x", "y"} or null. Without it: from file names and EXIF.',
        examples=[[{"lat": 52.5163, "lon": 13.3777}, None]],
    )


class CalibrationFields(Given):
    name: str = Field("target", description="Letters, digits, - and _.", examples=["night"])
    score: bool | None = Field(None, description="Also calibrate scores; absent: from 16 photos on.")


class ActiveRequest(Given):
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


class ShownImage(BaseModel):
    id: int
    image: str = Field(description="File name.")
    position: dict[str, float] | None
    image_url: str = Field(description="Address of the photo, relative to the service.")


class HitModel(ShownImage):
    score: float
    confidence: float = Field(description="Between 0 and 1.")
    sure: bool = Field(description="Verified and confident enough to rely on.")
    matches: int | None = Field(description="Patches that match in one spatial arrangement; null: not verified.")


class QueryAnswer(BaseModel):
    hits: list[HitModel]
    confidence: float = Field(description="Of the best hit, also if it was too low to be given.")
    calibration: str | None = Field(description="The calibration that answered.")
    seconds: float = Field(description="From the decoded photo to its hits, waiting included.")


class BatchAnswer(BaseModel):
    answers: list[QueryAnswer | Problem] = Field(description="In the order of the photos.")


class ImageEntry(ShownImage):
    digest: str = Field(description="sha256 of the file.")
    fitted: bool = Field(description="Was it in the database the head was fitted on?")


class ImageList(BaseModel):
    total: int = Field(description="Images that pass the filter.")
    images: list[ImageEntry]


class Positions(BaseModel):
    kind: str | None = Field(description='"xy" in metres, "latlon" in degrees, or null without positions.')
    points: list[tuple[int, float, float]] = Field(description='[id, x, y]; of "latlon" x is lon and y is lat.')


class Skipped(BaseModel):
    image: str
    reason: str


class Added(BaseModel):
    added: list[int]
    skipped: list[Skipped]
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


class SelfCalibrationState(BaseModel):
    """More fields say what was learnt."""

    model_config = ConfigDict(extra="allow")
    enabled: bool
    kept: int = Field(description="Queries whose scores are kept.")
    seen: int = Field(description="Queries seen so far.")

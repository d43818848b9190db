"""Bodies of requests and answers, as OpenAPI documents them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MOST_HITS = 1000


class Given(BaseModel):
    """A request: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class QueryFields(Given):
    k: Annotated[int, Field(ge=1, le=MOST_HITS, description="Hits wanted.", examples=[5])] = 5
    calibration: Annotated[
        str | None, Field(description='Query with this calibration; "none" goes without, absent is the active one.')
    ] = None
    min_confidence: Annotated[
        float, Field(ge=0, le=1, description="No hits are given if the best is less confident than this.")
    ] = 0.0
    verify: Annotated[
        bool | None, Field(description="Verify the best images by their patches; absent: as the map decided.")
    ] = None
    candidates: Annotated[
        int | None, Field(ge=1, le=MOST_HITS, description="Best images that are verified; absent: 20.", examples=[20])
    ] = None


class WhyFields(Given):
    id: Annotated[int, Field(description="The map's image to compare with.", examples=[3])]
    calibration: Annotated[str | None, Field(description="As for a query.")] = None


class AddFields(Given):
    positions: Annotated[
        Any,
        Field(
            description="Where the photos were taken: a list in their order, or an object by file name, of "
            '{"lat", "lon"}, {"x", "y"} or null. Without it: from file names and EXIF.',
            examples=[[{"lat": 52.5163, "lon": 13.3777}, None]],
        ),
    ] = None


class CalibrationFields(Given):
    name: Annotated[str, Field(description="Letters, digits, - and _.", examples=["night"])] = "target"
    score: Annotated[bool | None, Field(description="Also calibrate scores; absent: from 16 photos on.")] = None


class ActiveRequest(Given):
    name: Annotated[str | None, Field(description="A calibration of the map, or null for none.", examples=["night"])]


class Problem(BaseModel):
    error: Annotated[str, Field(description="What was given, what is allowed, what to do.")]


class Health(BaseModel):
    status: Annotated[str, Field(description='"ok"; of readyz "ready", "loading" or "failed".')]


class MapEntry(BaseModel):
    name: str
    images: int
    encoder: str
    path_name: Annotated[str, Field(description="Name of the map's folder.", examples=["town.tfa"])]


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
    calibrations: Annotated[list[str], Field(description="Their names, the newest last.")]
    calibration_details: Annotated[list[dict[str, Any]], Field(description="Decisions and reasons of each.")]
    active_calibration: str | None
    positions: Annotated[bool, Field(description="Does any image have a position?")]
    editable: Annotated[bool, Field(description="Does the service take edits?")]


class ShownImage(BaseModel):
    id: int
    image: Annotated[str, Field(description="File name.")]
    position: dict[str, float] | None
    image_url: Annotated[str, Field(description="Address of the photo, relative to the service.")]


class HitModel(ShownImage):
    score: float
    confidence: Annotated[float, Field(description="Between 0 and 1.")]
    sure: Annotated[bool, Field(description="Verified and confident enough to rely on.")]
    matches: Annotated[
        int | None, Field(description="Patches that match in one spatial arrangement; null: not verified.")
    ]


class QueryAnswer(BaseModel):
    hits: list[HitModel]
    confidence: Annotated[float, Field(description="Of the best hit, also if it was too low to be given.")]
    calibration: Annotated[str | None, Field(description="The calibration that answered.")]
    seconds: Annotated[float, Field(description="From the decoded photo to its hits, waiting included.")]


class BatchAnswer(BaseModel):
    answers: Annotated[list[QueryAnswer | Problem], Field(description="In the order of the photos.")]


class ImageEntry(ShownImage):
    digest: Annotated[str, Field(description="sha256 of the file.")]
    fitted: Annotated[bool, Field(description="Was it in the database the head was fitted on?")]


class ImageList(BaseModel):
    total: Annotated[int, Field(description="Images that pass the filter.")]
    images: list[ImageEntry]


class Positions(BaseModel):
    kind: Annotated[str | None, Field(description='"xy" in metres, "latlon" in degrees, or null without positions.')]
    points: Annotated[
        list[tuple[int, float, float]], Field(description='[id, x, y]; of "latlon" x is lon and y is lat.')
    ]


class Skipped(BaseModel):
    image: str
    reason: str


class Added(BaseModel):
    added: list[int]
    skipped: list[Skipped]
    notes: list[str]
    revision: Annotated[int, Field(description="Of the map, on disk and visible to the next query.")]


class Removed(BaseModel):
    removed: list[int]
    notes: list[str]
    revision: int


class JobStarted(BaseModel):
    job: Annotated[str, Field(description="/v1/jobs/{id} says how far it has come.")]


class Active(BaseModel):
    active: str | None


class Dropped(BaseModel):
    dropped: Annotated[str, Field(description="The calibration that the map no longer has.")]
    revision: int


class SelfCalibrationState(BaseModel):
    """More fields say what was learnt."""

    model_config = ConfigDict(extra="allow")
    enabled: bool
    kept: Annotated[int, Field(description="Queries whose scores are kept.")]
    seen: Annotated[int, Field(description="Queries seen so far.")]

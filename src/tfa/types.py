"""Every value that a user gives or gets, defined once.

Command-line options, HTTP forms and OpenAPI, the client, JSON Schemas, CSV columns, ROS messages and the page's form
are derived from these classes. To add a field, add it here and compute it where the value is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, overload

from tfa.core.plain import Options, Value, opt, req
from tfa.errors import BadPositions
from tfa.method.carriers import CARRIER_WORDS

AUTO: Literal["auto"] = "auto"
HeadKind = Literal["second-order", "paper"]
HEAD_KINDS: tuple[str, ...] = get_args(HeadKind)
if TYPE_CHECKING:
    CarrierName = str
else:
    CarrierName = Literal[tuple(CARRIER_WORDS)]
StorageType = Literal["float16", "float32", "int7"]
STORAGES: tuple[str, ...] = get_args(StorageType)
Candidates = int | Literal["auto"]
CAMERA_PATTERN = "[A-Za-z0-9._-]{1,64}"
NO_HITS = "nothing was found"
WITHHELD = "the answer is below the requested confidence"

# --- positions -----------------------------------------------------------------------------------------------------

# Squares of distances in a plane of this size are still finite.
POSITION_LIMITS = {
    "lat": (90.0, "degrees"), "lon": (180.0, "degrees"), "x": (1e12, "metres"), "y": (1e12, "metres"),
    "alt": (1e6, "metres"), "heading": (360.0, "degrees"),
}  # fmt: skip
POSITION_KINDS = (("lat", "lon"), ("x", "y"))
POSITION_EXTRAS = ("alt", "heading")
_SHOWN = 200  # characters of a bad position that an error repeats


class Position(Value):
    """A point on the globe (lat, lon) or in a metric plane (x, y). Altitude and heading do not count for distances."""

    OMITTED: ClassVar = frozenset({"lat", "lon", "x", "y", "alt", "heading"})

    lat: float | None = opt(None, "Latitude in degrees.")
    lon: float | None = opt(None, "Longitude in degrees.")
    x: float | None = opt(None, "East in meters.")
    y: float | None = opt(None, "North in meters.")
    alt: float | None = opt(None, "Meters above sea level.")
    heading: float | None = opt(None, "Viewing direction in degrees clockwise from north.")

    def __post_init__(self) -> None:
        values = {name: value for name, value in vars(self).items() if value is not None}
        if tuple(name for name in values if name not in POSITION_EXTRAS) not in POSITION_KINDS:
            raise BadPositions(f"a position has lat and lon, or x and y; got: {', '.join(values) or 'nothing'}")
        for name, value in values.items():
            if not math.isfinite(value):
                raise BadPositions(f"{name} is {value}, must be a finite number")
            limit, unit = POSITION_LIMITS[name]
            if abs(value) > limit:
                raise BadPositions(f"{name} is {value:g}, must be between -{limit:g} and {limit:g} {unit}")

    @property
    def is_global(self) -> bool:
        """True for a point on the globe."""
        return self.lat is not None

    @property
    def pair(self) -> tuple[float, float]:
        """Latitude and longitude, or x and y."""
        first, second = (self.lat, self.lon) if self.lat is not None else (self.x, self.y)
        assert first is not None
        assert second is not None
        return first, second

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read a position from JSON; raises BadPositions."""
        for name, value in values.items():
            if name not in POSITION_LIMITS or isinstance(value, bool) or not isinstance(value, int | float):
                text = repr(dict(values))
                shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
                raise BadPositions(
                    f"{shown} is not a position; it must hold numbers lat and lon, or x and y, and may hold "
                    "alt and heading"
                )
        try:
            return cls(**{name: float(value) for name, value in values.items()})
        except OverflowError:
            raise BadPositions("a position holds a number that is too large; give meters, or degrees") from None

    def __str__(self) -> str:
        if self.lat is not None and self.lon is not None:
            return f"{abs(self.lat):.5f}° {'NS'[self.lat < 0]}, {abs(self.lon):.5f}° {'EW'[self.lon < 0]}"
        return f"x {self.x:.1f} m, y {self.y:.1f} m"


# --- what a user gives ---------------------------------------------------------------------------------------------


class QueryOptions(Options):
    """How photos are recognized."""

    k: int = opt(5, "Hits per photo.", ge=1, le=1000)
    min_confidence: float = opt(0.0, "Return no hits below this confidence.", ge=0, le=1)
    sure: bool = opt(False, "Return only reliable answers.")
    calibration: str | None = opt(None, "Calibration to use; 'none' for none. [default: the active one]")
    rerank: bool | None = opt(None, "Rerank the top candidates by their patches. [default: the map's decision]")
    candidates: int | Literal["auto"] | None = opt(
        None, "How many top-ranked images to rerank, or auto. [default: the map's setting]", ge=1, le=1000
    )
    sessions: tuple[str, ...] = opt((), "Only images of these sessions may answer.")
    region: tuple[float, float, float, float] | None = opt(
        None, "Only images in this box may answer: west, south, east, north."
    )
    camera: str | None = opt(None, "Camera name; its photos adapt later answers.", pattern=f"^{CAMERA_PATTERN}$")
    sequence: bool = opt(False, "The camera's photos are frames of one drive.")


class CalibrateOptions(Options):
    """How a map is calibrated for a camera."""

    FEWEST: ClassVar = 2  # photos below which a calibration is refused
    FEW: ClassVar = 8  # photos below which a calibration decides little, and says so
    SCORE_FROM: ClassVar = 16  # photos from which the paper's head calibrates scores by default

    name: str = opt("target", "Name of the calibration.", pattern="^[A-Za-z0-9_-]+$")
    budget: int = opt(64, "Use at most this many photos, sampled with a fixed seed.", ge=2)
    score: bool | None = opt(None, "Calibrate scores, too. [default: yes with enough photos]")


class HeadSpec(Options):
    """What a head is fitted with."""

    words: int = opt(64, "Visual words of each vocabulary.", ge=1)
    temperature: float = opt(0.01, "Softmax temperature of the soft assignment.", ge=1e-6)
    max_patches: int = opt(300_000, "Database patches the vocabularies are fitted on.", ge=1)
    max_rank: int = opt(4096, "Maximum number of principal directions.", ge=1)
    max_pca: int = opt(10_000, "Largest database whose PCA uses every image.", ge=2)
    pca_sample: int = opt(5000, "Images the PCA is fitted on above max_pca.", ge=2)
    max_pseudo: int = opt(5000, "Maximum number of database images used as pseudo queries.", ge=2)

    @classmethod
    def paper(cls) -> HeadSpec:
        """The paper's setting: it samples the PCA for Pitts250k (83,952 images) only."""
        return cls(max_pca=30_000)


class RerankSpec(Options):
    """How answers are reranked by their patches."""

    candidates: int | Literal["auto"] = opt(AUTO, "How many top-ranked images to rerank, or auto (10–100).", ge=1)
    patches: Literal["full", "small"] = opt("full", "Patch storage: full (67,712 bytes an image) or small (15,870).")
    dimensions: int = opt(128, "Maximum dimensions of a stored patch.", ge=1)
    max_patches: int = opt(100_000, "Database patches the compaction is fitted on.", ge=1)
    max_pseudo: int = opt(256, "Pseudo queries that decide whether answers are reranked.", ge=1)


class BuildOptions(Options):
    """Which head a map has, and what it stores."""

    head: HeadKind = opt("second-order", "Kind of head: second-order, or paper.")
    carrier: CarrierName = opt("tempered", "Carrier of a second-order head.")
    storage: StorageType = opt("int7", "Storage of the rows; int7 is smallest and fastest.")
    ensemble: bool = opt(False, "Store all three constructions: three times the size, steadier answers.")
    rerank: bool | RerankSpec = opt(True, "Store patch descriptors for reranking.")
    dims: int | None = opt(None, "Search dimensions; the best 100 are rescored with all. [default: all]", ge=2)

    @property
    def reranking(self) -> RerankSpec | None:
        """How answers are reranked; None if no patches are stored."""
        return self.rerank if isinstance(self.rerank, RerankSpec) else RerankSpec() if self.rerank else None


class EncoderOptions(Options):
    """How photos are read and encoded. Answers do not depend on it, except for `fast`."""

    weights: str | Path | None = opt(None, "Weights file to use instead of the encoder's own.")
    device: str = opt("cpu", "Device of the encoder and of fitting.")
    threads: int | None = opt(None, "CPU threads of the encoder. [default: all cores]", ge=1)
    fast: bool = opt(False, "Encode in 8-bit integers, on the CPU.")
    batch_size: int = opt(8, "Photos encoded together.", ge=1)
    skip_bad: bool = opt(False, "Skip and list unreadable photos instead of stopping.")
    cache: Any = opt(None, "Token cache. [default: the user's]")


# --- what a user gets ----------------------------------------------------------------------------------------------


class ImageRecord(Value):
    """One map image. An id is never used for another image."""

    OMITTED: ClassVar = frozenset({"image_url", "last_confirmed"})

    id: int = req("Id of the image.", ge=0)
    path: str = req("File of the image; its name only in a service.")
    digest: str = req("sha256 of the file.")
    fitted: bool = req("Whether the head was fitted on this image.")
    position: Position | None = opt(None, "Where it was taken.")
    session: str | None = opt(None, "Drive that the image belongs to.")
    image_url: str | None = opt(None, "Address of the photo in a service.")
    last_confirmed: str | None = opt(None, "Time at which a sure answer last named it, in a service.")


class Hit(Value):
    """A map image that answers a query."""

    OMITTED: ClassVar = frozenset({"image_url"})

    id: int = req("Id of the map image.")
    image: str = req("File of the map image; its name only in a service.")
    score: float = req("Score of the head; comparable within one answer only.")
    confidence: float = req("Probability that this is the place, from 0 to 1.")
    position: Position | None = opt(None, "Where the map image was taken.")
    inliers: int | None = opt(None, "Patches that match in one spatial arrangement; null without reranking.")
    sure: bool = opt(False, "Whether the hit can be relied on.")
    image_url: str | None = opt(None, "Address of the map image in a service.")


class Place(Value):
    """Position estimate of a photo from all its reranked images together."""

    position: Position = req("Estimated position.")
    radius: float = req("Radius in meters.")
    share: float = req("Share of the patch evidence that supports this position, from 0 to 1.")
    images: int = req("Images the estimate is made of.")

    def __str__(self) -> str:
        return f"{self.position} ± {self.radius:,.0f} m"


class Answer(Value):
    """The hits of one photo, best first, with a position estimate and a confidence. Iterates over its hits."""

    OMITTED: ClassVar = frozenset(
        {"error", "calibration", "camera", "adaptation_photos", "lost", "seconds", "time_ns", "frame"}
    )

    query: str = opt("", "The photo.")
    hits: list[Hit] = opt([], "Best first; empty if the answer is withheld or the photo cannot be read.")
    confidence: float = opt(0.0, "Confidence of the best hit, also if it is withheld.")
    sure: bool = opt(False, "Whether the best hit can be relied on.")
    reranked: bool = opt(False, "Whether the best hit was reranked by its patches.")
    place: Place | None = opt(None, "Position estimate; null without hits, or if they disagree.")
    place_missing: str | None = opt(None, "Why there is no position estimate.")
    error: str | None = opt(None, "Why the photo cannot be read.")
    calibration: str | None = opt(None, "Calibration that answered.")
    camera: str | None = opt(None, "Camera that was named.")
    adaptation_photos: int | None = opt(None, "Earlier photos of this camera that adapted the scores.")
    lost: float | None = opt(None, "Probability that a frame of a drive shows no place of the map.")
    seconds: float | None = opt(None, "Seconds from the decoded photo to its hits, waiting included.")
    time_ns: int | None = opt(None, "Time of a recorded frame in nanoseconds since 1970.")
    frame: str | None = opt(None, "Source of a frame whose file is not kept.")

    @property
    def name(self) -> str:
        """Name of the photo for display."""
        return self.frame or self.query

    def withhold(self, options: QueryOptions) -> Self:
        """Drop the hits if the options ask for more confidence."""
        if self.sure if options.sure else self.confidence >= options.min_confidence:
            return self
        return replace(self, hits=[], place=None, place_missing=self.place_missing or WITHHELD)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __bool__(self) -> bool:
        return bool(self.hits)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Hit]: ...
    def __getitem__(self, index: int | slice) -> Hit | list[Hit]:
        return self.hits[index]


class ExpectedRecall(Value):
    """Expected recall on photos like those that were answered, in shares."""

    share: float = req("Expected recall.", ge=0, le=1)
    low: float = req("Lower end of the 90 % interval.", ge=0, le=1)
    high: float = req("Upper end of the 90 % interval.", ge=0, le=1)
    sure: float = req("Share of answers that are sure.", ge=0, le=1)
    photos: int = req("Photos it was computed from.", ge=0)

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return (
            f"of photos like these about {100 * self.share:.0f} % are recognized, {low:.0f}–{high:.0f}; "
            f"{100 * self.sure:.0f} % surely"
        )


class Answers(Value):
    """Answers to several photos, in their order. Iterates over the answers."""

    answers: list[Answer] = opt([], "One for each photo.")
    expected_recall: ExpectedRecall | None = opt(None, "Expected recall on photos like these.")
    notice: str | None = opt(None, "Says so if the photos do not look like those the map was made for.")

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> list[Answer]: ...
    def __getitem__(self, index: int | slice) -> Answer | list[Answer]:
        return self.answers[index]


class EditReport(Value):
    """What an edit did."""

    OMITTED: ClassVar = frozenset({"revision"})

    added: list[int] = opt([], "Ids of images that were added.")
    removed: list[int] = opt([], "Ids of images that were removed.")
    skipped: list[tuple[str, str]] = opt([], "Photos that were left out, with the reason.")
    notes: list[str] = opt([], "Notes for the user.")
    revision: int | None = opt(None, "Revision of the map after it, in a service.")


class CalibrationReport(Value):
    """What a calibration used and decided."""

    OMITTED: ClassVar = frozenset({"differences", "revision"})

    name: str = req("Name of the calibration.")
    used: int = req("Photos it was made of.")
    photos: int = req("Photos that were offered.")
    skipped: list[tuple[str, str]] = opt([], "Photos that were left out, with the reason.")
    notes: list[str] = opt([], "Notes for the user.")
    decisions: dict[str, Any] = opt({}, "What was decided.")
    reasons: dict[str, str] = opt({}, "Why.")
    expected_recall: ExpectedRecall | None = opt(None, "Expected recall on photos like these.")
    differences: list[str] | None = opt(None, "Differences from the head without calibration, in a service.")
    revision: int | None = opt(None, "Revision of the map after it, in a service.")


class EncoderInfo(Value):
    """The encoder of a map."""

    id: str = req("Name of the encoder.")
    fingerprint: str = req("Fingerprint of weights and preprocessing.")
    channels: int = req("Channels of a patch.")
    global_channels: int | None = req("Channels of the global token; null without one.")
    grid: list[int] = req("Rows and columns of patches.")
    weights: str | None = req("Weights file; null for the encoder's own source.")


class Margin(Value):
    """How far a decision was from flipping."""

    standard_errors: float | None = req("Distance in standard errors; null if nothing measured says otherwise.")
    within_noise: bool = req("Whether the distance is within one standard error.")
    text: str = req("The same in a sentence.")


class Decision(Value):
    """One decision of a head."""

    name: str = req("What was decided.")
    choice: str = req("How.")
    reason: str = req("Why.")
    margin: Margin | None = req("How close it was; null if that cannot be said.")


class AnswerSource(Value):
    """The head that answers if a query names no calibration."""

    calibration: str | None = req("Active calibration.")
    reranked: bool = req("Whether answers are reranked.")
    text: str = req("The same in a sentence.")


class CalibrationInfo(Value):
    """One calibration of a map."""

    name: str = req("Name of the calibration.")
    active: bool = req("Whether it answers if a query names none.")
    calibration: dict[str, Any] | None = req("Photos it was made of.")
    decided: list[Decision] = req("Decisions for display.")
    decisions: dict[str, Any] = req("What was decided.")
    reasons: dict[str, str] = req("Why.")
    evidence: dict[str, Any] = req("Numbers behind the decisions.")
    data_used: str = req("Data it was fitted on.")
    verification: dict[str, Any] | None = req("Whether answers are reranked, and why.")
    differences: list[str] = req("Differences from the head without calibration.")


class MapInfo(Value):
    """What a map holds, what was decided and why."""

    OMITTED: ClassVar = frozenset(
        {"sample", "dims", "version", "created", "store", "previous", "editable", "recent", "rules"}
    )

    name: str | None = req("Name of the map; null if it is not saved.")
    path: str | None = req("Folder or URL; the name only in a service.")
    format_version: int = req("Version of the format.")
    revision: int = req("Number of edits so far.")
    photo_root: str | None = req("Folder of the photos.")
    encoder: EncoderInfo = req("Encoder of the map.")
    images: int = req("Images that answer.")
    fitted_images: int = req("Images the head was fitted on.")
    removed_images: int = req("Removed images whose descriptors are still stored.")
    unseen_share: float = req("Share of the images that the head was not fitted on.")
    positions: int = req("Images with a position.")
    spec: dict[str, Any] = req("Settings the head was fitted with.")
    head: str = req("Kind of head.")
    answers: AnswerSource = req("What answers by default.")
    decided: list[Decision] = req("Decisions for display.")
    decisions: dict[str, Any] = req("What was decided.")
    reasons: dict[str, str] = req("Why.")
    evidence: dict[str, Any] = req("Numbers behind the decisions.")
    data_used: str = req("Data the head was fitted on.")
    replica: int | str = req("Vocabulary that answers, or ensemble.")
    storage: str = req("Storage of the rows.")
    reduction: dict[str, Any] | None = req("Reduced search dimensions; null if all are searched.")
    verification: dict[str, Any] | None = req("Stored patches and whether answers are reranked.")
    bytes: int | None = req("Size on disk.")
    calibrations: list[CalibrationInfo] = req("Calibrations, newest last.")
    photos: list[ImageRecord] = req("Images that answer; empty for a store and in a service.")
    notes: list[str] = opt([], "Notes for the user.")
    sample: int | None = opt(None, "Images of a store's sample that the head was fitted on.")
    dims: int | None = opt(None, "Search dimensions of a store.")
    version: int | None = opt(None, "Version of a map in a store.")
    created: str | None = opt(None, "Time at which that version was made.")
    store: dict[str, Any] | None = opt(None, "The store's own description.")
    previous: dict[str, Any] | None = opt(None, "Version that a rollback restores.")
    editable: bool | None = opt(None, "Whether the service accepts edits.")
    recent: dict[str, Any] | None = opt(None, "Expected recall of the service's last queries.")
    rules: dict[str, str] | None = opt(None, "Meaning of confidence and sure.")


# --- what commands print -------------------------------------------------------------------------------------------


class SkippedFile(Value):
    """A photo that was left out."""

    file: str = req("The photo.")
    reason: str = req("Why it was left out.")


class EditResult(Value):
    """What `tfa add` and `tfa remove` did."""

    added: list[int] = req("Ids of images that were added.")
    removed: list[int] = req("Ids of images that were removed.")
    skipped: list[SkippedFile] = req("Photos that were left out.")
    notes: list[str] = req("Notes for the user.")
    images: int = req("Images of the map now.", ge=0)


class BuildResult(MapInfo):
    """A map in a folder that was built."""

    skipped: list[SkippedFile] = req("Photos that were left out.")


class BuildPass(Value, kw_only=False):
    """One pass of a build over the photos."""

    name: str = req("Name of the pass.")
    shards: int = req("Shards it was divided into.", ge=0)
    before: int = req("Shards that an earlier run had finished.", ge=0)
    images: int = req("Images of all shards.", ge=0)
    seconds: float = req("Seconds it took.", ge=0)


class StoreBuildResult(Value):
    """A map in a store that was built."""

    url: str = req("URL of the map, without a password.")
    images: int = req("Images of the map.", ge=0)
    revision: int = req("Number of edits so far.", ge=0)
    notes: list[str] = req("Notes for the user.")
    passes: list[BuildPass] = req("Passes over the photos, in the order they ran.")
    skipped: list[SkippedFile] = req("Photos that were left out.")


class CalibrationResult(CalibrationInfo):
    """A calibration that was made."""

    skipped: list[SkippedFile] = req("Photos that were left out.")
    notes: list[str] = req("Notes for the user.")


class ActiveCalibration(Value):
    """The calibrations of a map after `tfa calibrate --activate` or `--drop`."""

    active: str = req("Calibration that answers if a query names none; none for the head without calibration.")
    calibrations: list[str] = req("Calibrations of the map.")


class FramesResult(Value):
    """Frames of recordings that became photos."""

    out: str = req("Folder of the photos.")
    frames: int = req("Frames that were written.", ge=0)
    seen: int = req("Frames of the recordings.", ge=0)
    positions: str | None = req("Positions of the frames as CSV; null if none has a position.")
    skipped: list[SkippedFile] = req("Frames that cannot be read, as RECORDING@SECONDS.")
    notes: list[str] = req("Notes for the user.")


class TileSize(Value):
    """Size of a tile in pixels of the orthophoto."""

    across: int = req("Pixels from west to east.", ge=1)
    down: int = req("Pixels from north to south.", ge=1)


class TilesResult(Value):
    """Tiles of an orthophoto."""

    out: str = req("Folder of the tiles and of positions.csv.")
    tiles: int = req("Tiles that were written.", ge=0)
    left_out: int = req("Tiles that show too little.", ge=0)
    pixels: TileSize = req("Size of a tile.")


class RollbackResult(Value):
    """The version of a map in a store that answers again."""

    version: int = req("Version that answers now.", ge=0)
    active: str = req("Calibration that answers if a query names none.")
    images: int = req("Images of the map.", ge=0)
    notes: list[str] = req("Notes for the user.")


class SnapshotResult(Value):
    """The copy of a map in a store."""

    url: str = req("URL of the copy, without a password.")
    version: int = req("Version of the copy.", ge=1)
    images: int = req("Images of the copy.", ge=0)


class SharedPlace(Value):
    """A photo that shows a place of an earlier map."""

    image: str = req("Photo of this map.")
    shows: str = req("Photo of an earlier map that shows its place.")
    inliers: int = req("Patches that match in one spatial arrangement.", ge=0)


class MergedPart(Value):
    """One of the maps that were merged."""

    name: str = req("Name of the map.")
    path: str | None = req("Folder of the map.")
    sessions: list[str] = req("Sessions that its photos belong to.")
    photos: int = req("Photos in the new map.", ge=0)
    repeated: int = req("Photos that an earlier map has too, byte for byte.", ge=0)
    compared: int | None = req("Photos looked for in earlier maps; null if those store no patches.")
    shared: list[SharedPlace] = req("Photos that show a place of an earlier map.")

    def __str__(self) -> str:
        if self.compared is None:
            return f"{self.name}: not known whether it overlaps; the maps before it keep no patches to verify with"
        return f"{self.name}: {len(self.shared):,} of {self.compared:,} photos show places of the maps before it"


class MergeResult(Value):
    """A map that was made of several."""

    path: str | None = req("Folder of the new map.")
    images: int = req("Images of the new map.", ge=2)
    maps: list[MergedPart] = req("Maps that were merged, in their order.")
    notes: list[str] = req("Notes for the user.")


class PrunedImage(Value):
    """An image that a map can do without."""

    id: int = req("Id of the image.", ge=0)
    path: str = req("File of the image.")
    why: Literal["near duplicate", "never confirmed"] = req("Why it can be removed.")
    duplicate_of: int | None = req("Id of the near duplicate that remains; null for other reasons.")


class RecallLoss(Value):
    """Expected recall before images are removed and after."""

    photos_like: str = req("Photos whose recall it is.")
    before: ExpectedRecall | None = req("With all images; null for the removed images.")
    after: ExpectedRecall = req("Without the removed images.")
    text: str = req("The same in a sentence.")


class PruneResult(Value):
    """Images that a map can do without."""

    removed: bool = req("Whether the candidates were removed.")
    candidates: list[PrunedImage] = req("Images that can be removed.")
    reasons: dict[str, int] = req("Number of candidates by reason.")
    expected_recall: list[RecallLoss] = req("What that costs.")
    images: int = req("Images of the map now.", ge=0)
    notes: list[str] = req("Notes for the user.")


class Displacement(Value):
    """How far two views differ, in patches."""

    down: int = req("Patches down.")
    right: int = req("Patches right.")


class Admission(Value):
    """Whether the answers of a map are reranked."""

    admitted: bool = req("Whether answers are reranked.")
    reason: str = req("Why.")


class ExplainResult(Value):
    """The patches of a query that match a hit."""

    query: str = req("The photo.")
    rank: int = req("Rank of the hit.", ge=1)
    answer: Hit = req("The hit.")
    consistent: int = req("Matches that move alike.", ge=0)
    mutual: int = req("All mutual matches.", ge=0)
    displacement: Displacement | None = req("How much further the query looks; null if nothing moves alike.")
    view: str = req("The same in a sentence.")
    verification: Admission = req("Whether answers are reranked.")
    grid: tuple[int, int] = req("Rows and columns of patches.")
    matches: list[tuple[int, int, int, int, bool]] = req(
        "Each mutual match: row and column in the query, row and column in the map image, whether it moves alike."
    )


class CatalogEncoder(Value):
    """An encoder of the catalog."""

    name: str = req("Name for --encoder.")
    about: str = req("What it is.")
    parameters: int = req("Parameters of the model.", ge=1)
    patch: int = req("Pixels of a patch's side.", ge=1)
    size: int = req("Pixels of a photo's side.", ge=1)
    channels: int = req("Channels of a patch.", ge=1)
    blocks: int = req("Blocks of the model.", ge=1)
    licence: str = req("License of the weights.")
    hub: str | None = req("Where weights are downloaded from; null if a package provides them.")
    weights: str | None = req("Weights file on this machine.")


class PluginEncoder(Value):
    """An encoder of another distribution."""

    name: str = req("Name for --encoder.")
    distribution: str = req("Distribution that provides it.")


class Setting(Value):
    """A setting and where it comes from."""

    setting: str = req("Name of the setting.")
    value: Any = req("Its value; null if it is not set.")
    source: str | None = req("The settings file, or environment; null for the default.")
    variable: str = req("Environment variable that sets it.")


class ConfigInfo(Value):
    """The settings in use."""

    file: str | None = req("Settings file; null if there is none.")
    settings: list[Setting] = req("Settings of all commands.")
    verbs: dict[str, dict[str, Any]] = req("Settings of single commands, as written in the file.")


class CachedTokens(Value, kw_only=False):
    """Cached tokens of one encoder."""

    encoder: str = req("Name of the encoder.")
    fingerprint: str = req("Fingerprint of weights and preprocessing.")
    files: int = req("Number of files.", ge=0)
    images: int = req("Number of images.", ge=0)
    bytes: int = req("Size of the files.", ge=0)


class CachedResults(Value, kw_only=False):
    """Cached results of the benchmark."""

    kind: str = req("Kind of results.", pattern="^(masks|matches|vectors)$")
    files: int = req("Number of files.", ge=1)
    bytes: int = req("Size of the files.", ge=0)


class UnfinishedBuilds(Value, kw_only=False):
    """Shards of builds that were interrupted."""

    builds: int = req("Number of builds.", ge=0)
    files: int = req("Number of files.", ge=0)
    bytes: int = req("Size of the files.", ge=0)


class DeletedFiles(Value, kw_only=False):
    """Files that were deleted from the cache."""

    files: int = req("Number of files.", ge=0)
    bytes: int = req("Size of the files.", ge=0)


class CacheInfo(Value):
    """What the cache holds."""

    folder: str = req("Folder of the tokens.")
    bytes: int = req("Size of all tokens.", ge=0)
    limit: int | None = req("Largest size of all tokens; null without a limit.", ge=0)
    encoders: list[CachedTokens] = req("Tokens by encoder, the largest first.")
    benchmark: list[CachedResults] = req("Results that the benchmark stores.")
    unfinished_builds: UnfinishedBuilds = req("Shards of interrupted builds.")
    deleted: DeletedFiles | None = req("Files that were deleted; null if none were to be.")

"""Public options and results, defined once.

Command-line options, HTTP forms and OpenAPI, the client, JSON Schemas, CSV columns, ROS messages and the page's form
are derived from these classes. To add a field, add it here and compute it where the object is created.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, overload

from tfa.core.plain import BadShape, Options, Value, opt, req
from tfa.errors import BadPositions
from tfa.method.carriers import CARRIER_WORDS

AUTO: Literal["auto"] = "auto"
HeadKind = Literal["second-order", "paper", "paper-dual"]
HEAD_KINDS: tuple[str, ...] = get_args(HeadKind)
if TYPE_CHECKING:
    CarrierName = str
else:
    CarrierName = Literal[tuple(CARRIER_WORDS)]
Precision = Literal["auto", "int8", "float32", "float16"]
StorageType = Literal["float16", "float32", "int7"]
STORAGES: tuple[str, ...] = get_args(StorageType)
Candidates = int | Literal["auto"]
PAPER_ENCODER = "dinov2-b14@322"  # the paper's encoder and input size for ground datasets
CAMERA_PATTERN = "[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"  # part of an address, where a name of dots leads elsewhere
Verdict = Literal["recognized", "probable", "not recognized"]
RECOGNIZED, PROBABLE, NOT_RECOGNIZED = VERDICTS = get_args(Verdict)
NO_HITS = "nothing was found"
UNREADABLE = "the photo cannot be read"
WITHHELD = "the answer is below the requested confidence"

# Squared distances within these limits are finite.
POSITION_LIMITS = {
    "lat": (90.0, "degrees"), "lon": (180.0, "degrees"), "x": (1e12, "meters"), "y": (1e12, "meters"),
    "alt": (1e6, "meters"), "heading": (360.0, "degrees"),
}  # fmt: skip
POSITION_KINDS = (("lat", "lon"), ("x", "y"))
POSITION_EXTRAS = ("alt", "heading")


class Position(Value):
    """A point on the globe (lat, lon) or in a metric plane (x, y). Distances ignore altitude and heading."""

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
            raise BadPositions(f"a position needs lat and lon, or x and y; got: {', '.join(values) or 'nothing'}")
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
        try:
            return super().from_dict({name: "null" if value is None else value for name, value in values.items()})
        except BadShape as error:
            raise BadPositions(
                f"{error}; a position needs numbers lat and lon, or x and y, and optionally alt and heading"
            ) from None

    def __str__(self) -> str:
        if self.lat is not None and self.lon is not None:
            return f"{abs(self.lat):.5f}° {'NS'[self.lat < 0]}, {abs(self.lon):.5f}° {'EW'[self.lon < 0]}"
        return f"x {self.x:.1f} m, y {self.y:.1f} m"


# --- options -------------------------------------------------------------------------------------------------------


class QueryOptions(Options):
    """Options of a query."""

    k: int = opt(5, "Hits per photo.", ge=1, le=1000)
    min_confidence: float = opt(0.0, "Return no hits below this confidence.", ge=0, le=1)
    sure: bool = opt(False, "Return only reliable answers.")
    calibration: str | None = opt(None, "Calibration to use, or 'none'. [default: the active one]")
    rerank: bool | None = opt(
        None, "Rerank the top candidates by matching patches. [default: on if the map stores patches]"
    )
    candidates: int | Literal["auto"] | None = opt(
        None, "How many top-ranked images to rerank, or auto. [default: the map's setting]", ge=1, le=1000
    )
    sessions: tuple[str, ...] = opt((), "Search only images of these sessions.")
    region: tuple[float, float, float, float] | None = opt(
        None, "Search only images in this box: west, south, east, north."
    )
    camera: str | None = opt(None, "Camera name; its photos adapt later answers.", pattern=f"^{CAMERA_PATTERN}$")
    sequence: bool = opt(False, "Track the camera's photos as frames of one drive.")
    loops: bool = opt(False, "Close loops in the camera's photos, in order of arrival.")


class StreamOptions(Options):
    """How several photos are answered: independently, or as a stream of one camera."""

    online: bool = opt(False, "Whether answers adapt to earlier photos.")
    sequence: bool = opt(False, "Whether the photos are tracked as frames of one drive.")
    lag: int = opt(0, "Later frames that each answer of a drive uses.", ge=0, le=100)

    @property
    def flags(self) -> str:
        """Options of `tfa query` that answer photos this way."""
        if not self.sequence:
            return "--online" if self.online else "--no-online"
        return "--sequence" + (f" --lag {self.lag}" if self.lag else "") + ("" if self.online else " --no-online")


class LoopOptions(Options):
    """Options of loop closure."""

    gap: str = opt("60", "How long before a place can recur.", cli={"metavar": "N|Ns|Nmin|Nm"})
    session_breaks: str | None = opt(None, "Start another session after a pause this long.", cli={"metavar": "Ns|Nmin"})
    false_loops: float = opt(0.1, "Expected number of false loops in a drive.", ge=1e-6, le=1000)
    fov: float = opt(60.0, "Horizontal field of view of the camera in degrees, for headings.", ge=1, le=170)


class CalibrateOptions(Options):
    """Options of a calibration."""

    FEWEST: ClassVar = 2  # minimum number of photos
    FEW: ClassVar = 8  # number of photos below which a calibration warns
    SCORE_FROM: ClassVar = 16  # number of photos from which the paper's head calibrates scores by default

    name: str = opt("target", "Name of the calibration.", pattern="^[A-Za-z0-9_-]+$")
    budget: int = opt(64, "Use at most this many photos, sampled with a fixed seed.", ge=2)
    score: bool | None = opt(None, "Also calibrate scores. [default: with enough photos, but not after build --paper]")


class HeadSpec(Options):
    """Options for fitting a head."""

    words: int = opt(64, "Visual words per vocabulary.", ge=1)
    temperature: float = opt(0.01, "Softmax temperature of the soft assignment.", ge=1e-6)
    max_patches: int = opt(300_000, "Database patches the vocabularies are fitted on.", ge=1)
    max_rank: int = opt(4096, "Maximum number of principal directions.", ge=1)
    max_pca: int = opt(10_000, "Largest database whose PCA uses every image.", ge=2)
    pca_sample: int = opt(5000, "Images the PCA is fitted on above max_pca.", ge=2)
    max_pseudo: int = opt(5000, "Maximum number of database images used as pseudo queries.", ge=2)

    @classmethod
    def paper(cls) -> HeadSpec:
        """Return the paper's settings, which sample the PCA only for Pitts250k (83,952 images)."""
        return cls(max_pca=80_000)


class RerankSpec(Options):
    """Options of geometric reranking."""

    candidates: int | Literal["auto"] = opt(AUTO, "How many top-ranked images to rerank, or auto (10–100).", ge=1)
    patches: Literal["full", "small"] = opt("full", "Patch storage: full (67,712 bytes per image) or small (15,870).")
    dimensions: int = opt(128, "Maximum dimensions of a stored patch.", ge=1)
    max_patches: int = opt(100_000, "Database patches the compaction is fitted on.", ge=1)
    max_pseudo: int = opt(256, "Maximum number of map images used to measure the usual evidence.", ge=1)


class BuildOptions(Options):
    """Options for building a map."""

    head: HeadKind = opt("second-order", "Head to fit.")
    carrier: CarrierName = opt("tempered", "Carrier of a second-order head.")
    storage: StorageType = opt("int7", "Data type of stored descriptors; int7 is smallest and fastest.")
    ensemble: bool = opt(False, "Store all three constructions: three times the size, steadier answers.")
    rerank: bool | RerankSpec = opt(True, "Store patch descriptors for reranking.")
    dims: int | None = opt(None, "Search N dimensions, then rescore the best 100 exactly. [default: all]", ge=2)
    depths: int | None = opt(
        None, "Encoder blocks that a second-order head describes. [default: 1; 2 without reranking]", ge=1, le=2
    )
    vocabulary: str | Path | None = opt(
        None,
        "Source vocabulary for --head paper-dual. [default: fitted on the photos]",
        cli={"metavar": "FILE", "exists": True},
    )

    @classmethod
    def paper(cls) -> BuildOptions:
        """Return the options of a map that is TFA as published; `HeadSpec.paper` fits it, `PAPER_ENCODER` encodes."""
        return cls(head="paper", storage="float32", rerank=False)

    @property
    def chosen_depths(self) -> int | Literal["auto"] | None:
        """Depths for `load_encoder`: without reranking, two if the encoder has them."""
        auto: Literal["auto"] | None = AUTO if self.head == "second-order" and not self.rerank else None
        return auto if self.depths is None else self.depths

    @property
    def reranking(self) -> RerankSpec | None:
        """Reranking options; None if no patches are stored."""
        return self.rerank if isinstance(self.rerank, RerankSpec) else RerankSpec() if self.rerank else None


class EncoderOptions(Options):
    """Options for reading and encoding photos. Only `precision` changes answers."""

    weights: str | Path | None = opt(None, "Weights file. [default: the encoder's released weights]")
    device: str = opt("cpu", "Device for encoding, fitting and scoring; auto prefers a GPU.")
    threads: int | None = opt(None, "CPU threads of the encoder. [default: all cores]", ge=1)
    precision: Precision = opt(AUTO, "Arithmetic of the encoder; auto is int8 for the default encoder on a CPU.")
    batch_size: int = opt(8, "Photos encoded together.", ge=1)
    skip_bad: bool = opt(False, "Skip and list unreadable photos instead of stopping.")
    cache: Any = opt(None, "Token cache. [default: the user's cache]")


# --- results -------------------------------------------------------------------------------------------------------


class ImageRecord(Value):
    """One map image. Ids are never reused."""

    OMITTED: ClassVar = frozenset({"image_url", "last_confirmed"})

    id: int = req("Id of the image.", ge=0)
    path: str = req("Image file; only its name in a service.")
    digest: str = req("sha256 of the file.")
    fitted: bool = req("Whether the head was fitted on this image.")
    position: Position | None = opt(None, "Where it was taken.")
    session: str | None = opt(None, "Drive that the image belongs to.")
    image_url: str | None = opt(None, "URL of the photo in a service.")
    last_confirmed: str | None = opt(None, "Time of the last sure answer that matched it, in a service.")


class Hit(Value):
    """A map image returned for a query."""

    OMITTED: ClassVar = frozenset({"image_url"})

    id: int = req("Id of the map image.")
    image: str = req("File of the map image; only its name in a service.")
    score: float = req("Score of the head; comparable only within one answer.")
    confidence: float = req("Probability that this is the query's place, from 0 to 1.")
    position: Position | None = opt(None, "Where the map image was taken.")
    inliers: int | None = opt(None, "Number of geometrically consistent patch matches; null without reranking.")
    sure: bool = opt(False, "Whether the hit is reliable.")
    image_url: str | None = opt(None, "URL of the map image in a service.")


class Place(Value):
    """Position estimate of a photo, from all reranked images."""

    position: Position = req("Estimated position.")
    radius: float = req("Radius in meters.")
    share: float = req("Share of the patch evidence that supports this position, from 0 to 1.")
    images: int = req("Number of images the estimate is based on.")

    def __str__(self) -> str:
        return f"{self.position} ± {self.radius:,.0f} m"


class Answer(Value):
    """The hits of one photo, best first, with a position estimate and a confidence. Iterates over its hits."""

    OMITTED: ClassVar = frozenset(
        {"error", "calibration", "camera", "adaptation_photos", "lost", "loop", "node", "seconds", "time_ns", "frame"}
    )

    query: str = opt("", "The photo.")
    verdict: Verdict = opt("not recognized", "recognized (reliable), probable or not recognized.")
    reason: str = opt(NO_HITS, "Reason of the verdict.")
    hits: list[Hit] = opt([], "Best first; empty below the requested confidence or for an unreadable photo.")
    confidence: float = opt(0.0, "Confidence of the best hit, also if hits are withheld.")
    sure: bool = opt(False, "Whether the best hit is reliable; the verdict is then recognized.")
    reranked: bool = opt(False, "Whether the best hit was reranked.")
    place: Place | None = opt(None, "Position estimate; null without hits, or if they disagree.")
    place_missing: str | None = opt(None, "Why there is no position estimate.")
    error: str | None = opt(None, "Why the photo cannot be read.")
    calibration: str | None = opt(None, "Calibration used.")
    camera: str | None = opt(None, "Camera of the query.")
    adaptation_photos: int | None = opt(None, "Earlier photos of this camera that adapted the scores.")
    lost: float | None = opt(None, "Probability that a frame of a drive is outside the map.")
    loop: Loop | None = opt(None, "Loop that the camera's photo closes, without file names.")
    node: int | None = opt(None, "Number of the photo in the camera's loops; 0 if they start over.")
    seconds: float | None = opt(None, "Seconds from the decoded photo to its hits, including waiting.")
    time_ns: int | None = opt(None, "Time of a recorded frame in nanoseconds since 1970.")
    frame: str | None = opt(None, "Source of a frame without a file.")

    @property
    def name(self) -> str:
        """Name of the photo for display."""
        return self.frame or self.query

    def withhold(self, options: QueryOptions) -> Self:
        """Drop the hits if the answer is below the requested confidence."""
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


class LoopPair(Value):
    """Two frames that show the same place."""

    query: int = req("Node of the later frame.", ge=0)
    match: int = req("Node of the earlier frame.", ge=0)
    inliers: int | None = opt(None, "Number of patches that match at one displacement.", ge=0)
    heading: float | None = opt(None, "Degrees that the later frame looks further right.")
    scale: float | None = opt(None, "How much larger the later frame shows the scene.", ge=0)


class Loop(LoopPair):
    """A loop closure. Nodes are frame numbers, which a pose graph may move."""

    query_image: str = opt("", "The later frame.")
    match_image: str = opt("", "The earlier frame.")
    confidence: float = req("Confidence, from the expected number of false loops.", ge=0, le=1)
    continued: bool = req("Whether it continues the loop of the frames before.")
    chain: list[LoopPair] = req("Pairs of frames behind the decision, the latest first.")


class LoopsResult(Value):
    """Loop closures of a drive."""

    frames: int = req("Number of frames.", ge=0)
    keyframes: int = req("Number of frames that differ from the one before.", ge=0)
    sessions: int = req("Number of sessions.", ge=0)
    loops: list[Loop] = req("Loops in order, one per frame at most.")
    skipped: list[SkippedFile] = opt([], "Frames that cannot be read.")
    notes: list[str] = opt([], "Notes for the user.")

    @property
    def pairs(self) -> list[LoopPair]:
        """One pair per frame: its own loop, or the chain of a later one."""
        found = {pair.query: pair for loop in reversed(self.loops) for pair in reversed(loop.chain)}
        found |= {loop.query: loop.chain[0] for loop in self.loops}
        return [found[query] for query in sorted(found)]

    @property
    def confidences(self) -> dict[int, float]:
        """Confidence of each pair's loop, by the later node."""
        found = {pair.query: loop.confidence for loop in reversed(self.loops) for pair in loop.chain}
        return found | {loop.query: loop.confidence for loop in self.loops}


class ExpectedRecall(Value):
    """Expected recall on similar photos, from 0 to 1."""

    share: float = req("Expected recall.", ge=0, le=1)
    low: float = req("Lower end of the 90 % interval.", ge=0, le=1)
    high: float = req("Upper end of the 90 % interval.", ge=0, le=1)
    sure: float = req("Share of answers that are recognized.", ge=0, le=1)
    photos: int = req("Number of photos it was computed from.", ge=0)

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return (
            f"expected R@1 on similar photos: {100 * self.share:.0f} % ({low:.0f}–{high:.0f} %); "
            f"{100 * self.sure:.0f} % recognized"
        )


class Answers(Value):
    """Answers to several photos, in their order. Iterates over the answers."""

    answers: list[Answer] = opt([], "One per photo.")
    expected_recall: ExpectedRecall | None = opt(None, "Expected recall on similar photos.")
    notice: str | None = opt(None, "Warning if the photos differ from those the map was built for.")

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
    """Result of an edit."""

    OMITTED: ClassVar = frozenset({"revision"})

    added: list[int] = opt([], "Ids of added images.")
    removed: list[int] = opt([], "Ids of removed images.")
    skipped: list[tuple[str, str]] = opt([], "Skipped photos, with the reason.")
    notes: list[str] = opt([], "Notes for the user.")
    revision: int | None = opt(None, "Map revision after the edit, in a service.")


class CalibrationReport(Value):
    """Data and decisions of a calibration."""

    OMITTED: ClassVar = frozenset({"differences", "revision"})

    name: str = req("Name of the calibration.")
    used: int = req("Number of photos used.")
    photos: int = req("Number of photos passed.")
    skipped: list[tuple[str, str]] = opt([], "Skipped photos, with the reason.")
    notes: list[str] = opt([], "Notes for the user.")
    decisions: dict[str, Any] = opt({}, "Decisions by name.")
    reasons: dict[str, str] = opt({}, "Reasons of the decisions.")
    expected_recall: ExpectedRecall | None = opt(None, "Expected recall on similar photos.")
    differences: list[str] | None = opt(None, "Differences from the head without calibration, in a service.")
    revision: int | None = opt(None, "Map revision after the calibration, in a service.")


class EncoderInfo(Value):
    """The encoder of a map."""

    id: str = req("Name of the encoder.")
    fingerprint: str = req("Fingerprint of weights and preprocessing.")
    channels: int = req("Channels of a patch.")
    global_channels: int | None = req("Channels of the global token; null without one.")
    grid: list[int] = req("Rows and columns of patches.")
    weights: str | None = req("Weights file; null for the released weights.")


class Margin(Value):
    """Distance of a decision from its threshold."""

    standard_errors: float | None = req("Distance in standard errors; null if nothing was measured against it.")
    within_noise: bool = req("Whether the distance is within one standard error.")
    text: str = req("The distance as text.")


class Decision(Value):
    """One decision of a head."""

    name: str = req("Name of the decision.")
    choice: str = req("Chosen value.")
    reason: str = req("Reason of the choice.")
    margin: Margin | None = req("How close it was; null if unknown.")


class AnswerSource(Value):
    """The head that answers by default."""

    calibration: str | None = req("Active calibration.")
    reranked: bool = req("Whether answers are reranked.")
    text: str = req("Description of the head.")


class CalibrationInfo(Value):
    """One calibration of a map."""

    name: str = req("Name of the calibration.")
    active: bool = req("Whether it is used by default.")
    calibration: dict[str, Any] | None = req("Photos used.")
    decided: list[Decision] = req("Decisions for display.")
    decisions: dict[str, Any] = req("Decisions by name.")
    reasons: dict[str, str] = req("Reasons of the decisions.")
    evidence: dict[str, Any] = req("Numbers behind the decisions.")
    data_used: str = req("Data it was fitted on.")
    verification: dict[str, Any] | None = req("Whether answers are reranked, and why.")
    differences: list[str] = req("Differences from the head without calibration.")


class MapInfo(Value):
    """Contents and decisions of a map."""

    OMITTED: ClassVar = frozenset(
        {"published", "sample", "dims", "version", "created", "store", "previous", "editable", "recent", "rules"}
    )

    name: str | None = req("Name of the map; null if it is not saved.")
    path: str | None = req("Folder or URL; only the name in a service.")
    format_version: int = req("Version of the format.")
    revision: int = req("Number of edits so far.")
    photo_root: str | None = req("Folder of the photos.")
    encoder: EncoderInfo = req("Encoder of the map.")
    images: int = req("Number of images.")
    fitted_images: int = req("Number of images the head was fitted on.")
    removed_images: int = req("Number of removed images whose descriptors are still stored.")
    unseen_share: float = req("Share of the images that the head was not fitted on.")
    positions: int = req("Number of images with a position.")
    spec: dict[str, Any] = req("Settings the head was fitted with.")
    head: str = req("Kind of head.")
    answers: AnswerSource = req("Head that answers by default.")
    decided: list[Decision] = req("Decisions for display.")
    decisions: dict[str, Any] = req("Decisions by name.")
    reasons: dict[str, str] = req("Reasons of the decisions.")
    evidence: dict[str, Any] = req("Numbers behind the decisions.")
    data_used: str = req("Data the head was fitted on.")
    replica: int | str = req("Vocabulary in use, or ensemble.")
    storage: str = req("Data type of stored descriptors.")
    reduction: dict[str, Any] | None = req("Reduced search dimensions; null if all are searched.")
    verification: dict[str, Any] | None = req("Stored patches and whether answers are reranked.")
    bytes: int | None = req("Size on disk in bytes.")
    calibrations: list[CalibrationInfo] = req("Calibrations, newest last.")
    photos: list[ImageRecord] = req("Map images; empty for a store and in a service.")
    notes: list[str] = opt([], "Notes for the user.")
    published: str | None = opt(None, "Published system that answers, if the map is one of tfa build --paper.")
    sample: int | None = opt(None, "Number of sampled images that the head of a store was fitted on.")
    dims: int | None = opt(None, "Search dimensions of a store.")
    version: int | None = opt(None, "Version of a map in a store.")
    created: str | None = opt(None, "Time at which that version was created.")
    store: dict[str, Any] | None = opt(None, "Description by the store.")
    previous: dict[str, Any] | None = opt(None, "Version that a rollback restores.")
    editable: bool | None = opt(None, "Whether the service accepts edits.")
    recent: dict[str, Any] | None = opt(None, "Expected recall of the service's last queries.")
    rules: dict[str, str] | None = opt(None, "Definitions of confidence, sure and other terms.")


# --- command output ------------------------------------------------------------------------------------------------


class SkippedFile(Value):
    """A photo that was skipped."""

    file: str = req("The photo.")
    reason: str = req("Why it was skipped.")


class EditResult(Value):
    """Result of `tfa add` and `tfa remove`."""

    added: list[int] = req("Ids of added images.")
    removed: list[int] = req("Ids of removed images.")
    skipped: list[SkippedFile] = req("Skipped photos.")
    notes: list[str] = req("Notes for the user.")
    images: int = req("Number of map images afterwards.", ge=0)


class BuildResult(MapInfo):
    """A new map in a folder."""

    skipped: list[SkippedFile] = req("Skipped photos.")


class BuildPass(Value, kw_only=False):
    """One pass of a build over the photos."""

    name: str = req("Name of the pass.")
    shards: int = req("Number of shards.", ge=0)
    before: int = req("Number of shards finished by an earlier run.", ge=0)
    images: int = req("Number of images in all shards.", ge=0)
    seconds: float = req("Duration in seconds.", ge=0)


class StoreBuildResult(Value):
    """A new map in a store."""

    url: str = req("URL of the map, without a password.")
    images: int = req("Number of map images.", ge=0)
    revision: int = req("Number of edits so far.", ge=0)
    notes: list[str] = req("Notes for the user.")
    passes: list[BuildPass] = req("Passes over the photos, in the order they ran.")
    skipped: list[SkippedFile] = req("Skipped photos.")


class CalibrationResult(CalibrationInfo):
    """A new calibration."""

    skipped: list[SkippedFile] = req("Skipped photos.")
    notes: list[str] = req("Notes for the user.")


class ActiveCalibration(Value):
    """The calibrations of a map after `tfa calibrate --activate` or `--drop`."""

    active: str = req("Calibration used by default; none for the head without calibration.")
    calibrations: list[str] = req("Calibrations of the map.")


class FramesResult(Value):
    """Frames extracted from recordings."""

    out: str = req("Folder of the photos.")
    frames: int = req("Number of frames written.", ge=0)
    seen: int = req("Number of frames in the recordings.", ge=0)
    positions: str | None = req("CSV file of frame positions; null if no frame has one.")
    skipped: list[SkippedFile] = req("Unreadable frames, as RECORDING@SECONDS.")
    notes: list[str] = req("Notes for the user.")


class TileSize(Value):
    """Size of a tile in pixels of the orthophoto."""

    across: int = req("Pixels from west to east.", ge=1)
    down: int = req("Pixels from north to south.", ge=1)


class TilesResult(Value):
    """Tiles of an orthophoto."""

    out: str = req("Folder of the tiles and of positions.csv.")
    tiles: int = req("Number of tiles written.", ge=0)
    left_out: int = req("Number of tiles skipped because they are mostly empty.", ge=0)
    pixels: TileSize = req("Size of a tile.")


class RollbackResult(Value):
    """Restored version of a map in a store."""

    version: int = req("Version in use now.", ge=0)
    active: str = req("Calibration used by default.")
    images: int = req("Number of map images.", ge=0)
    notes: list[str] = req("Notes for the user.")


class RelocateResult(Value):
    """New paths of moved photos."""

    moved: int = req("Number of map images in the old folder.", ge=1)
    missing: list[str] = req("New paths where there is no file.")


class SnapshotResult(Value):
    """Copy of a map in a store."""

    url: str = req("URL of the copy, without a password.")
    version: int = req("Version of the copy.", ge=1)
    images: int = req("Number of images in the copy.", ge=0)


class SharedPlace(Value):
    """A photo that shows a place of an earlier map."""

    image: str = req("Photo of this map.")
    shows: str = req("Photo of an earlier map that shows its place.")
    inliers: int = req("Number of geometrically consistent patch matches.", ge=0)


class MergedPart(Value):
    """One of the merged maps."""

    name: str = req("Name of the map.")
    path: str | None = req("Folder of the map.")
    sessions: list[str] = req("Sessions of its photos.")
    photos: int = req("Number of its photos in the new map.", ge=0)
    repeated: int = req("Number of photos that are also in an earlier map, byte for byte.", ge=0)
    compared: int | None = req("Number of photos compared with earlier maps; null if those store no patches.")
    shared: list[SharedPlace] = req("Photos that show a place of an earlier map.")

    def __str__(self) -> str:
        if not self.photos:
            return f"{self.name}: all {self.repeated:,} photos are also in earlier maps"
        if self.compared is None:
            return f"{self.name}: overlap unknown, since earlier maps store no patches for reranking"
        return f"{self.name}: {len(self.shared):,} of {self.compared:,} photos show places of earlier maps"


class MergeResult(Value):
    """Result of merging maps."""

    path: str | None = req("Folder of the new map.")
    images: int = req("Number of images in the new map.", ge=2)
    maps: list[MergedPart] = req("Merged maps, in order.")
    notes: list[str] = req("Notes for the user.")


class PrunedImage(Value):
    """An image that can be removed from a map."""

    id: int = req("Id of the image.", ge=0)
    path: str = req("File of the image.")
    why: Literal["near duplicate", "never confirmed"] = req("Why it can be removed.")
    duplicate_of: int | None = req("Id of the near duplicate that remains; null for other reasons.")


class RecallLoss(Value):
    """Expected recall before and after images are removed."""

    photos_like: str = req("Photos it was estimated from.")
    before: ExpectedRecall | None = req("With all images; null for the removed images.")
    after: ExpectedRecall = req("Without the removed images.")
    text: str = req("Both values as text.")


class PruneResult(Value):
    """Result of `tfa prune`."""

    removed: bool = req("Whether the candidates were removed.")
    candidates: list[PrunedImage] = req("Images that can be removed.")
    reasons: dict[str, int] = req("Number of candidates by reason.")
    expected_recall: list[RecallLoss] = req("Expected recall before and after the removal.")
    images: int = req("Number of map images afterwards.", ge=0)
    notes: list[str] = req("Notes for the user.")


class Displacement(Value):
    """Offset between two views, in patches."""

    down: int = req("Patches down.")
    right: int = req("Patches right.")


class Admission(Value):
    """Whether the answers of a map are reranked."""

    admitted: bool = req("Whether answers are reranked.")
    reason: str = req("Reason of the decision.")


class ExplainResult(Value):
    """The patches of a query that match a hit."""

    query: str = req("The photo.")
    rank: int = req("Rank of the hit.", ge=1)
    answer: Hit = req("The hit.")
    consistent: int = req("Number of inliers.", ge=0)
    mutual: int = req("Number of mutual matches.", ge=0)
    displacement: Displacement | None = req("Median offset of the inliers; null without inliers.")
    view: str = req("Offset as text.")
    verification: Admission = req("Whether answers are reranked.")
    grid: tuple[int, int] = req("Rows and columns of patches.")
    matches: list[tuple[int, int, int, int, bool]] = req(
        "Each mutual match: row and column in the query, row and column in the map image, whether it is an inlier."
    )


class CatalogEncoder(Value):
    """An encoder of the catalog."""

    name: str = req("Name for --encoder.")
    about: str = req("Description.")
    parameters: int = req("Number of model parameters.", ge=1)
    patch: int = req("Side of a patch in pixels.", ge=1)
    size: int = req("Side of the input image in pixels.", ge=1)
    channels: int = req("Channels of a patch.", ge=1)
    blocks: int = req("Number of transformer blocks.", ge=1)
    licence: str = req("License of the weights.")
    hub: str | None = req("Model hub id of the weights; null if a package provides them.")
    weights: str | None = req("Weights file on this machine.")


class PluginEncoder(Value):
    """An encoder of another distribution."""

    name: str = req("Name for --encoder.")
    distribution: str = req("Distribution that provides it.")


class EncoderTrial(Value):
    """Report of `tfa encoders try`: tokens, input, speed and memory of an encoder."""

    encoder: str = req("Name of the encoder.")
    fingerprint: str = req("Fingerprint of weights and preprocessing.")
    notes: list[str] = req("Notes, such as a changed size.")
    patches: int = req("Patches of a photo.", ge=1)
    channels: int = req("Channels of a patch.", ge=1)
    global_channels: int | None = req("Channels of the global token; null if there is none.")
    grid: list[int] = req("Rows and columns of patches.")
    prefix: int | None = req("Tokens before the patches; null if unknown.")
    input: list[int] | None = req("Width and height of the input in pixels; null if unknown.")
    resample: str | None = req("Resampling; null if unknown.")
    mean: list[float] | None = req("Mean of each color that is subtracted; null if unknown.")
    std: list[float] | None = req("Standard deviation of each color; null if unknown.")
    photos: int = req("Photos in the folder.", ge=1)
    seconds: float = req("Seconds per photo.", ge=0)
    peak_memory: int = req("Largest memory of the process in bytes.", ge=0)
    token_bytes: int = req("Bytes of a photo's tokens.", ge=1)


class SpeedResult(Value):
    """Speed and memory of queries on this machine. Times are in seconds; those of a frame are means."""

    map: str = req("Path or URL of the map.")
    images: int = req("Images of the map.", ge=0)
    encoder: str = req("Name of the encoder.")
    precision: str = req("Arithmetic of the encoder, such as float32 or int8.")
    device: str = req("Device of the encoder.")
    threads: int = req("CPU threads of the encoder.", ge=1)
    open: float = req("Seconds to open the map.", ge=0)
    first_query: float = req("Seconds of the first query, which also loads the encoder.", ge=0)
    frames: int = req("Frames that were measured after the first query.", ge=1)
    read: float = req("Seconds to read the photo.", ge=0)
    encode: float = req("Seconds to encode it.", ge=0)
    answer: float = req("Seconds to describe, search and rerank.", ge=0)
    frames_per_second: float = req("Frames per second of one camera.", ge=0)
    peak_memory: int = req("Largest memory of the process in bytes.", ge=0)


class Setting(Value):
    """A setting and its source."""

    setting: str = req("Name of the setting.")
    value: Any = req("Value; null if it is not set.")
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
    bytes: int = req("Size of the files in bytes.", ge=0)


class CachedResults(Value, kw_only=False):
    """Cached results of the benchmark."""

    kind: str = req("Kind of results.", pattern="^(masks|matches|vectors)$")
    files: int = req("Number of files.", ge=1)
    bytes: int = req("Size of the files in bytes.", ge=0)


class UnfinishedBuilds(Value, kw_only=False):
    """Shards of interrupted builds."""

    builds: int = req("Number of builds.", ge=0)
    files: int = req("Number of files.", ge=0)
    bytes: int = req("Size of the files in bytes.", ge=0)


class DeletedFiles(Value, kw_only=False):
    """Files deleted from the cache."""

    files: int = req("Number of files.", ge=0)
    bytes: int = req("Size of the files in bytes.", ge=0)


class CacheInfo(Value):
    """Contents of the cache."""

    folder: str = req("Folder of the tokens.")
    bytes: int = req("Size of all tokens in bytes.", ge=0)
    limit: int | None = req("Maximum size of all tokens in bytes; null without a limit.", ge=0)
    encoders: list[CachedTokens] = req("Tokens by encoder, largest first.")
    benchmark: list[CachedResults] = req("Files of the benchmark.")
    unfinished_builds: UnfinishedBuilds = req("Shards of interrupted builds.")
    deleted: DeletedFiles | None = req("Deleted files; null without --prune or --clear.")

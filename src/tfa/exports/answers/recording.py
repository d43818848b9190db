"""Export answers as an MCAP recording of ROS messages."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfa.core.files import write_atomically
from tfa.core.plain import hints
from tfa.core.text import make_printable
from tfa.errors import BadImage, MissingExtra
from tfa.exports.answers.record import (
    SECOND,
    ExportContext,
    Times,
    called,
    degrees_of,
    list_coordinates,
    print_bool,
    spaced,
    sure_place,
)
from tfa.maps.confidence import estimate_answer_recall
from tfa.photos.images import Photo, as_rgb, read_photo_file
from tfa.types import Answer, ExpectedRecall, Hit, LoopsResult, Place, Position
from tfa.version import __version__

# Messages of ros/tfa_msgs/msg, which a test compares. Unknown numbers are NaN.
# Field of a message → field of a position; other fields of a match have their names in a hit.
POSITION_FIELDS = {"latitude": "lat", "longitude": "lon", "altitude": "alt", "x": "x", "y": "y", "heading": "heading"}
NOT_IN_MATCH = frozenset({"id", "inliers", "image_url", "position"})
_KINDS = {str: "string", float: "float64", bool: "bool", int: "int64", int | None: "float64", float | None: "float64"}
HIT_FIELDS = {name: _KINDS[kind] for name, kind in hints(Hit).items() if name not in NOT_IN_MATCH}
_MATCH_FIELDS = {**HIT_FIELDS, "has_position": "bool", **dict.fromkeys(POSITION_FIELDS, "float64")}
MATCH = "".join(f"{kind} {name}\n" for name, kind in _MATCH_FIELDS.items())
MATCHES = """\
std_msgs/Header header
string query
string verdict
string reason
string map_name
string calibration
tfa_msgs/Match[] matches
"""
EDGE_NUMBERS = ("confidence", "inliers", "heading", "scale")
LOOP_EDGE = "std_msgs/Header header\nstd_msgs/Header match\n" + "".join(f"float64 {name}\n" for name in EDGE_NUMBERS)
DEFINITIONS = {"tfa_msgs/msg/Match": MATCH, "tfa_msgs/msg/Matches": MATCHES, "tfa_msgs/msg/LoopEdge": LOOP_EDGE}
UNKNOWN_HEIGHT = 1e6  # variance in m²: a kilometer up or down
UNKNOWN_ANGLE = math.pi**2 / 3  # variance in rad² of a uniform angle
LIKE_THE_BEST = math.radians(30) ** 2  # assumed variance in rad² of the heading relative to the best image
OK, WARN, ERROR = 0, 1, 2  # levels of a diagnostic
APPROXIMATED = 1  # covariance type of a fix


class Messages:
    """Factory of messages, which it serializes with their type definitions."""

    def __init__(self) -> None:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        # The oldest supported release, whose definitions later ones read.
        self._store: Any = get_typestore(Stores.ROS2_HUMBLE)
        for name, definition in DEFINITIONS.items():
            self._store.register(get_types_from_msg(definition, name))

    def cdr(self, message: Any) -> bytes:
        return bytes(self._store.serialize_cdr(message, message.__msgtype__, little_endian=True))

    def definition(self, kind: str) -> str:
        """Return the definition of a type, including the types of its fields."""
        return str(self._store.generate_msgdef(kind, ros_version=2)[0])

    def image(self, time: int, kind: str, content: bytes) -> Any:
        header, data = self._header(time, "camera"), np.frombuffer(content, np.uint8)
        return self._new("sensor_msgs", "CompressedImage", header=header, format=kind, data=data)

    def matches(
        self, time: int, answer: Answer, degrees: Mapping[Position, Position], map_name: str, calibration: str
    ) -> Any:
        own = [self._match(hit, degrees) for hit in answer.hits]
        return self._new(
            "tfa_msgs", "Matches", header=self._header(time, "camera"), query=called(answer),
            verdict=answer.verdict, reason=make_printable(answer.reason), map_name=make_printable(map_name),
            calibration=make_printable(calibration), matches=own,
        )  # fmt: skip

    def edge(self, time: int, earlier: int, numbers: Mapping[str, float | None]) -> Any:
        """Make an edge between two frames of a drive."""
        known = {name: _number(numbers[name]) for name in EDGE_NUMBERS}
        return self._new(
            "tfa_msgs", "LoopEdge", header=self._header(time, "camera"), match=self._header(earlier, "camera"), **known
        )

    def pose(self, time: int, place: Place, best: Position | None) -> Any:
        """Make a pose in meters, with altitude and heading of the best image if known."""
        x, y = place.position.pair
        z = best.alt if best is not None and best.alt is not None else 0.0
        heading = None if best is None else best.heading
        half = 0.0 if heading is None else math.radians(90.0 - heading) / 2
        yaw = UNKNOWN_ANGLE if heading is None else LIKE_THE_BEST
        variance = place.radius**2 / 2  # the radius is a typical distance, so each axis has half of its square
        diagonal = [variance, variance, UNKNOWN_HEIGHT, UNKNOWN_ANGLE, UNKNOWN_ANGLE, yaw]
        point = self._new("geometry_msgs", "Point", x=x, y=y, z=z)
        turn = self._new("geometry_msgs", "Quaternion", x=0.0, y=0.0, z=math.sin(half), w=math.cos(half))
        pose = self._new("geometry_msgs", "Pose", position=point, orientation=turn)
        sure = self._new("geometry_msgs", "PoseWithCovariance", pose=pose, covariance=np.diag(diagonal).reshape(-1))
        return self._new("geometry_msgs", "PoseWithCovarianceStamped", header=self._header(time, "map"), pose=sure)

    def fix(self, time: int, place: Place, on_globe: Position, best: Position | None) -> Any:
        """Make a fix in degrees, as a GPS receiver does."""
        variance = place.radius**2 / 2
        return self._new(
            "sensor_msgs", "NavSatFix",
            header=self._header(time, "camera"),
            status=self._new("sensor_msgs", "NavSatStatus", status=0, service=0),
            latitude=on_globe.lat, longitude=on_globe.lon, altitude=_number(None if best is None else best.alt),
            position_covariance=np.diag([variance, variance, UNKNOWN_HEIGHT]).reshape(-1),
            position_covariance_type=APPROXIMATED,
        )  # fmt: skip

    def diagnostics(self, time: int, answer: Answer, hardware: str, values: Mapping[str, str]) -> Any:
        level, said = OK if answer.sure and answer.hits else WARN, f"{answer.verdict}: {answer.reason}"
        if answer.error is not None:
            level, said = ERROR, make_printable(answer.error)
        pairs = [self._new("diagnostic_msgs", "KeyValue", key=key, value=value) for key, value in values.items()]
        status = self._new(
            "diagnostic_msgs", "DiagnosticStatus", level=level, name="tfa: place", message=said,
            hardware_id=make_printable(hardware), values=pairs,
        )  # fmt: skip
        return self._new("diagnostic_msgs", "DiagnosticArray", header=self._header(time, ""), status=[status])

    def _match(self, hit: Hit, degrees: Mapping[Position, Position]) -> Any:
        known = list_coordinates(hit.position, degrees)
        numbers = {name: _number(known.get(short)) for name, short in POSITION_FIELDS.items()}
        plain = {
            name: make_printable(value) if isinstance(value, str) else _number(value) if kind == "float64" else value
            for name, kind in HIT_FIELDS.items()
            for value in [getattr(hit, name)]
        }
        return self._new("tfa_msgs", "Match", has_position=hit.position is not None, **plain, **numbers)

    def _header(self, time: int, frame: str) -> Any:
        seconds, nanoseconds = divmod(time, SECOND)
        stamp = self._new("builtin_interfaces", "Time", sec=seconds, nanosec=nanoseconds)
        return self._new("std_msgs", "Header", stamp=stamp, frame_id=frame)

    def _new(self, package: str, kind: str, /, **fields: Any) -> Any:
        return self._store.types[f"{package}/msg/{kind}"](**fields)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def diagnostic_values(
    answer: Answer, milliseconds: float | None, recall: ExpectedRecall | None, *, timed: bool
) -> dict[str, str]:
    """Return the key-value pairs of a diagnostic, without unknown values."""
    values: dict[str, Any] = {
        "query": called(answer),
        "verdict": answer.verdict,
        "reason": make_printable(answer.reason),
        "confidence": answer.confidence,
        "sure": answer.sure,
        "reranked": answer.reranked,
        "lost": answer.lost,
        "radius": None if answer.place is None else answer.place.radius,
        "place_missing": answer.place_missing,
        "milliseconds": milliseconds,
        "time": "known" if timed else "assumed",
    }
    if recall is not None:
        values |= {"expected_recall": recall.share, "expected_recall_low": recall.low}
        values |= {"expected_recall_high": recall.high}
    return {key: str(print_bool(value)) for key, value in values.items() if value is not None}


IMAGE, MATCHES_TOPIC, POSE, FIX = "/tfa/image/compressed", "/tfa/matches", "/tfa/pose", "/tfa/fix"
DIAGNOSTICS, LOOPS = "/tfa/diagnostics", "/tfa/loops"
# Topic → type name, as rosbags and the file spell it.
TOPICS = {
    IMAGE: "sensor_msgs/msg/CompressedImage",
    MATCHES_TOPIC: "tfa_msgs/msg/Matches",
    POSE: "geometry_msgs/msg/PoseWithCovarianceStamped",
    FIX: "sensor_msgs/msg/NavSatFix",
    DIAGNOSTICS: "diagnostic_msgs/msg/DiagnosticArray",
}
_STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}  # first bytes of files that are copied unchanged
JPEG_QUALITY = 95
LAST_SECOND = 2**31 - 1_000_000  # ROS seconds have 31 bits; the margin is for photos without a time


def check_installed() -> None:
    """Raise MissingExtra if a package is missing."""
    try:
        import mcap  # noqa: F401
        import rosbags  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "a recording of answers needs rosbags and mcap; install with: pip install 'tfa-vpr[bags]'"
        ) from None


def write_mcap(path: Path, answers: Sequence[Answer], times: Times, context: ExportContext) -> int:
    """Write every photo in order; return the number with an answer. Only one photo is in memory at a time."""
    messages = Messages()
    _write_messages(path, messages, TOPICS, _messages(messages, answers, times, context))
    return sum(bool(answer.hits) for answer in answers)


def write_loop_mcap(path: Path, result: LoopsResult, names: Sequence[str], times: Times) -> None:
    """Write an edge per pair, at the time of its later frame. Frames without a time are a second apart."""
    check_installed()
    messages, known, confidences = Messages(), spaced(_in_range(times)), result.confidences
    edges = (
        (known[pair.query], LOOPS, messages.edge(known[pair.query], known[pair.match], {**vars(pair), **confidence}))
        for pair in result.pairs
        for confidence in [{"confidence": confidences[pair.query]}]
    )
    _write_messages(path, messages, {LOOPS: "tfa_msgs/msg/LoopEdge"}, edges)


def _write_messages(
    path: Path, messages: Messages, topics: Mapping[str, str], stream: Iterable[tuple[int, str, Any]]
) -> None:
    """Write a recording of time, topic and message, completely or not at all."""
    from mcap.writer import Writer

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            writer = Writer(file)
            writer.start(profile="ros2", library=f"tfa {__version__}")
            channels = {}
            for topic, kind in topics.items():
                schema = writer.register_schema(kind, "ros2msg", messages.definition(kind).encode())
                channels[topic] = writer.register_channel(topic, "cdr", schema, {"offered_qos_profiles": ""})
            for sequence, (time, topic, message) in enumerate(stream):
                writer.add_message(channels[topic], time, messages.cdr(message), time, sequence)
            writer.finish()

    write_atomically(Path(path), write)


def _in_range(times: Times) -> Times:
    """Return the times that a ROS message can hold; None for others."""
    return [time if time is not None and 0 <= time < LAST_SECOND * SECOND else None for time in times]


def _messages(
    messages: Messages, answers: Sequence[Answer], times: Times, context: ExportContext
) -> Iterator[tuple[int, str, Any]]:
    """Yield time, topic and message, photo by photo."""
    known = _in_range(times)
    degrees, recall = degrees_of(answers, context.utm), estimate_answer_recall(answers)
    for answer, photo, time, own in zip(answers, _photos(answers, context), spaced(known), known, strict=True):
        if photo is not None and answer.error is None:
            yield time, IMAGE, messages.image(time, *_compressed(photo))
        yield time, MATCHES_TOPIC, messages.matches(time, answer, degrees, context.map_name, context.calibration)
        place = sure_place(answer)
        if place is not None:
            best, on_globe = answer.hits[0].position, degrees.get(place.position)
            if not place.position.is_global:
                yield time, POSE, messages.pose(time, place, best)
            if on_globe is not None:
                yield time, FIX, messages.fix(time, place, on_globe, best)
        values = diagnostic_values(answer, context.milliseconds, recall, timed=own is not None)
        yield time, DIAGNOSTICS, messages.diagnostics(time, answer, context.map_name, values)


def _photos(answers: Sequence[Answer], context: ExportContext) -> Iterable[Photo | None]:
    """Return the photos to copy: those of the context, else the files that answers name."""
    if not context.images:
        return itertools.repeat(None, len(answers))
    if context.photos is not None:
        return context.photos
    return (path if (path := Path(answer.query)).is_file() else None for answer in answers)


def _compressed(photo: Photo) -> tuple[str, bytes]:
    """Return format and content: the file if it is JPEG or PNG, else the photo as JPEG."""
    content = read_photo_file(photo)[1]
    for kind, start in _STARTS.items():
        if content.startswith(start):
            return kind, content
    written = io.BytesIO()
    try:
        as_rgb(content).save(written, "JPEG", quality=JPEG_QUALITY)
    except BadImage as error:
        raise BadImage(f"{error} (photos are copied into the recording; --set out.images=no leaves them out)") from None
    return "jpeg", written.getvalue()

"""Read ROS bags (extra `bags`): choose image and position topics, decode images, place frames along the track."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tfa.errors import BadImage, BadRecording, MissingExtra, from_os_error
from tfa.photos.positions import Track, pluralize
from tfa.photos.recordings.recording import (
    NO_TOPIC,
    FramePicture,
    RecordedFrame,
    detect_bag,
    iterate_limited,
    limit_reading,
    measure_recording,
    refuse_bombs,
)
from tfa.types import POSITION_LIMITS, Position

COMPRESSED, RAW = "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
IMAGE_MESSAGES = (COMPRESSED, RAW)
_SIGNS = {b"\xff\xd8\xff": ".jpg", b"\x89PNG\r\n\x1a\n": ".png", b"RIFF": ".webp"}
_CHANNELS = {
    "rgb8": (0, 1, 2), "bgr8": (2, 1, 0), "rgba8": (0, 1, 2), "bgra8": (2, 1, 0), "8uc3": (2, 1, 0), "8uc4": (2, 1, 0),
    "rgb16": (0, 1, 2), "bgr16": (2, 1, 0), "rgba16": (0, 1, 2), "bgra16": (2, 1, 0),
}  # fmt: skip  # indices of red, green and blue; OpenCV's names mean blue first
_GRAY = ("mono8", "8uc1", "mono16")
_YUV = {"yuv422": (1, 0, 2), "uyvy": (1, 0, 2), "yuv422_yuy2": (0, 1, 3), "yuyv": (0, 1, 3)}  # first Y, U, V of 4 bytes
_BAYER = {"rggb": (0, 3), "bggr": (3, 0), "grbg": (1, 2), "gbrg": (2, 1)}  # red and blue in a square of four
ENCODINGS = (*_CHANNELS, *_GRAY, *_YUV, *(f"bayer_{order}{bits}" for order in _BAYER for bits in (8, 16)))


def decode_picture(message: Any, kind: str) -> FramePicture:
    """Decode an image message; raise BadImage if that fails."""
    return _compressed(message) if kind == COMPRESSED else FramePicture(".png", pixels=_raw(message))


def _compressed(message: Any) -> FramePicture:
    """Return the payload, which is a complete image file, byte for byte."""
    content = message.data.tobytes()
    suffix = next((suffix for sign, suffix in _SIGNS.items() if content.startswith(sign)), None)
    if suffix is None:
        given = str(message.format)[:80]
        raise BadImage(
            f"a CompressedImage of format {given!r} and {len(content):,} bytes is not JPEG, PNG or WebP; video codecs "
            "and depth are not supported: use another topic, or republish this one as raw or compressed"
        )
    return FramePicture(suffix, content=content)


def _raw(message: Any) -> Image.Image:
    encoding, height, width = str(message.encoding).strip().lower(), int(message.height), int(message.width)
    if encoding not in ENCODINGS:
        raise BadImage(
            f"an Image has encoding {str(message.encoding)[:80]!r}, must be one of {', '.join(ENCODINGS)}; "
            "use another topic, or republish this one as rgb8"
        )
    if encoding in _GRAY:
        return Image.fromarray(_samples(message, height, width, encoding.endswith("16")))
    if encoding in _YUV:
        return Image.fromarray(_decode_yuv(_samples(message, height, width * 2, wide=False), _YUV[encoding]))
    if encoding.startswith("bayer_"):
        order, wide = encoding[6:10], encoding.endswith("16")
        return Image.fromarray(_decode_bayer(_samples(message, height, width, wide), *_BAYER[order]))
    count = 4 if "a" in encoding or encoding == "8uc4" else 3
    samples = _samples(message, height, width * count, encoding.endswith("16")).reshape(height, width, count)
    return Image.fromarray(np.ascontiguousarray(_bytes(samples[..., _CHANNELS[encoding]])))


def _samples(message: Any, height: int, across: int, wide: bool) -> np.ndarray:
    """Return the samples `(height, across)` of a message without row padding, in native byte order."""
    size = 2 if wide else 1
    step, data = int(message.step), np.asarray(message.data, np.uint8)
    row = across * size
    # The last row need not be padded.
    if not height or not across or step < row or len(data) < step * (height - 1) + row:
        raise BadImage(
            f"an Image of {message.width} × {height} {message.encoding} needs {height} rows of {row:,} bytes, but has "
            f"a step of {step:,} and {len(data):,} bytes; the message is damaged"
        )
    rows = np.lib.stride_tricks.as_strided(data, (height, row), (step * data.strides[0], data.strides[0]))
    rows = np.ascontiguousarray(rows)
    if not wide:
        return rows
    given = np.dtype(">u2" if message.is_bigendian else "<u2")
    return rows.view(given).astype(np.uint16)


def _bytes(samples: np.ndarray) -> np.ndarray:
    """Reduce 16-bit samples to their upper 8 bits."""
    return samples if samples.dtype == np.uint8 else (samples >> 8).astype(np.uint8)


def _decode_bayer(mosaic: np.ndarray, red: int, blue: int) -> np.ndarray:
    """Decode to RGB at half the size, one pixel per square of four; encoders read fewer pixels than that."""
    height, width = (side // 2 * 2 for side in mosaic.shape)
    if not height or not width:
        raise BadImage("an Image of a Bayer encoding needs at least 2 × 2 pixels")
    corners = [mosaic[row:height:2, column:width:2] for row in (0, 1) for column in (0, 1)]
    one, other = (corner for place, corner in enumerate(corners) if place not in (red, blue))
    green = ((one.astype(np.uint32) + other) // 2).astype(mosaic.dtype)
    return np.ascontiguousarray(_bytes(np.stack([corners[red], green, corners[blue]], axis=-1)))


def _decode_yuv(rows: np.ndarray, places: tuple[int, int, int]) -> np.ndarray:
    """Convert 4:2:2 in video range to RGB (BT.601: Y from 16 to 235, U and V around 128)."""
    if rows.shape[1] % 4:
        raise BadImage("an Image of a YUV encoding needs an even width")
    first, u_at, v_at = places
    y = rows[:, first::2].astype(np.float32) - 16
    u, v = (np.repeat(rows[:, at::4].astype(np.float32) - 128, 2, axis=1) for at in (u_at, v_at))
    luma = 1.164383 * y
    rgb = np.stack([luma + 1.596027 * v, luma - 0.391762 * u - 0.812968 * v, luma + 2.017232 * u], axis=-1)
    return np.rint(rgb.clip(0, 255)).astype(np.uint8)


_GAP = 10.0  # maximum seconds between two messages to interpolate across
_EDGE = 1.0  # seconds before the first and after the last message that use its position
WORST = 100.0  # maximum standard deviation of a fix in meters
_NEVER_TURNED = 90.0  # heading of the identity rotation in degrees

TrackPoint = tuple[float, float, float, float]  # latitude and longitude, or x and y; altitude or nan; heading or nan


@dataclass(frozen=True)
class Clocked:
    """A message with its two times, in nanoseconds."""

    recorded: int  # by the clock of the recorder
    stamp: int  # from the header; 0 if never set
    message: Any


@dataclass(frozen=True)
class MessageTrack:
    """A track of position messages, with times in nanoseconds."""

    track: Track  # with times relative to the first: float64 is too coarse for nanoseconds since 1970
    first_ns: int

    def at(self, time_ns: int) -> Position | None:
        seconds, times = (time_ns - self.first_ns) / 1e9, self.track.times
        early, late = times[0] - seconds, seconds - times[-1]
        if 0 < max(early, late) <= _EDGE:
            seconds = float(times[0] if early > 0 else times[-1])
        return self.track.at(seconds, _GAP)


def read_track(messages: Iterable[Clocked], kind: str, topic: str, *, stamped: bool) -> tuple[MessageTrack, list[str]]:
    """Build a track from position messages of one kind, by header stamps or recording times; also return notes."""
    rows, without = [], 0
    for one in messages:
        point = POSITION_MESSAGES[kind](one.message)
        if point is None:
            without += 1
        else:
            rows.append(((one.stamp if stamped else 0) or one.recorded, *point))
    if not rows:
        raise BadRecording(
            f"{topic} has no positions: {pluralize(without, 'message')} without a fix; choose another "
            f"--position-topic, or --position-topic none{_SET_ELSEWHERE['--position-topic']}"
        )
    is_global = kind == NAV_SAT_FIX
    if all(heading == _NEVER_TURNED for *_, heading in rows):  # never set
        rows = [(time, first, second, alt, math.nan) for time, first, second, alt, _ in rows]
    first_ns = min(time for time, *_ in rows)
    table = np.array([((time - first_ns) / 1e9, *point) for time, *point in sorted(rows)], np.float64)
    _, first = np.unique(table[:, 0], return_index=True)
    track = Track(table[first, 0], table[first, 1:], np.zeros(len(first), np.int64), is_global)
    notes = [f"{pluralize(without, 'message')} of {topic} without a fix"] if without else []
    return MessageTrack(track, first_ns), notes


def _read_fix(message: Any) -> TrackPoint | None:
    """Read a fix; None without satellites, for zero coordinates, or for a large standard deviation."""
    lat, lon, alt = float(message.latitude), float(message.longitude), float(message.altitude)
    if int(message.status.status) < 0 or not (math.isfinite(lat) and math.isfinite(lon)) or (lat == 0 and lon == 0):
        return None
    if int(message.position_covariance_type):
        variance = max(float(message.position_covariance[0]), float(message.position_covariance[4]))
        if not variance <= WORST**2:  # also refuses nan
            return None
    return _check_point((lat, lon, alt, math.nan), "lat", "lon")


def _read_pose(pose: Any) -> TrackPoint | None:
    """Read a pose in meters of its frame; the heading is that of the x axis, clockwise from the y axis."""
    place, turn = pose.position, pose.orientation
    x, y, z, w = (float(value) for value in (turn.x, turn.y, turn.z, turn.w))
    heading = math.nan
    if abs(math.hypot(x, y, z, w) - 1) < 0.1:  # else it is not a rotation
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        heading = (90 - math.degrees(yaw)) % 360
    return _check_point((float(place.x), float(place.y), float(place.z), heading), "x", "y")


def _check_point(point: TrackPoint, *names: str) -> TrackPoint | None:
    """Return None if coordinates are out of range; drop an altitude out of range."""
    first, second, alt, heading = point
    for name, value in zip(names, (first, second), strict=True):
        if not math.isfinite(value) or abs(value) > POSITION_LIMITS[name][0]:
            return None
    known = math.isfinite(alt) and abs(alt) <= POSITION_LIMITS["alt"][0]
    return first, second, alt if known else math.nan, heading


NAV_SAT_FIX = "sensor_msgs/msg/NavSatFix"
POSITION_MESSAGES: dict[str, Callable[[Any], TrackPoint | None]] = {
    NAV_SAT_FIX: _read_fix,
    "nav_msgs/msg/Odometry": lambda message: _read_pose(message.pose.pose),
    "geometry_msgs/msg/PoseStamped": lambda message: _read_pose(message.pose),
    "geometry_msgs/msg/PoseWithCovarianceStamped": lambda message: _read_pose(message.pose.pose),
}


_APART = 60_000_000_000  # maximum difference in nanoseconds between stamps of one clock
_LISTED = 40  # maximum number of topics listed in an error
_RECOVER = {
    ".bag": "index it with: rosbag reindex {name}",
    ".mcap": "recover intact messages with: mcap recover {name} -o recovered.mcap",
    ".db3": "pass its folder, or copy the bag again",
}


@dataclass(frozen=True)
class BagTopic:
    """A topic of a bag."""

    name: str
    kind: str  # message type, such as sensor_msgs/msg/Image
    count: int
    connections: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.count:,})"


@contextmanager
def open_bag(path: Path, topic: str | None, position_topic: str | None) -> Iterator[BagRecording]:
    """Open a bag and choose its topics."""
    reader = _reader(path)
    with _explain_errors(path), limit_reading(path, unpacks=True):
        refuse_bombs(path)
        reader.open()
    try:
        with _explain_errors(path):
            topics = _topics(reader)
        images = choose_topic(topics, topic, IMAGE_MESSAGES, path, "--topic", "images")
        assert images is not None, "a bag without one is refused"
        positions = choose_topic(
            topics, position_topic, tuple(POSITION_MESSAGES), path, "--position-topic", "positions"
        )
        yield BagRecording(path, reader, images, positions)
    finally:
        with _explain_errors(path):
            reader.close()


def _let_signals_run(connection: Any) -> None:
    """Make SQLite call Python regularly: without that, no signal handler ends an endless query."""
    connection.set_progress_handler(lambda: False, 100_000)


def _reader(path: Path) -> Any:
    try:
        import apsw
        from rosbags.rosbag1 import Reader as Reader1
        from rosbags.rosbag2 import Reader as Reader2
    except ImportError:
        raise MissingExtra("bags need rosbags; install with: pip install 'tfa-vpr[bags]'") from None
    if _let_signals_run not in apsw.connection_hooks:
        apsw.connection_hooks.append(_let_signals_run)
    known = path.suffix if path.is_dir() else detect_bag(path)
    if not path.is_dir() and known != path.suffix:
        if known is None:
            size = path.stat().st_size
            said = "is empty" if not size else f"is not a {path.suffix[1:]} file: its first bytes do not match"
            raise BadRecording(f"{path} {said}; copy or record it again", path)
        raise BadRecording(f"{path} has the content of a {known} file; rename it to {path.stem}{known}", path)
    with _explain_errors(path):
        return Reader1(path) if known == ".bag" else Reader2(path)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Convert any error that the library raises for a damaged bag to BadRecording."""
    try:
        yield
    except (BadRecording, BadImage, GeneratorExit):
        raise
    except Exception as error:
        if (known := from_os_error(error, path)) is not None:
            raise known from error
        said = " ".join(str(error).split())[:200] or type(error).__name__
        if not type(error).__module__.startswith("rosbags"):  # an unexpected error
            said = f"it is damaged ({said})"
        advice = _RECOVER.get(path.suffix, "copy it again").format(name=path.name)
        if "Profile is not" in said:
            advice = "only ROS 2 MCAP files are supported"
        raise BadRecording(f"{path} cannot be read: {said.rstrip('.')}; if it is truncated, {advice}", path) from None


def _topics(reader: Any) -> list[BagTopic]:
    by_name: dict[tuple[str, str], list[Any]] = {}
    for one in reader.connections:
        if not (isinstance(one.topic, str) and isinstance(one.msgtype, str) and isinstance(one.msgcount, int)):
            raise ValueError(f"a topic has name {one.topic!r}, type {one.msgtype!r} and count {one.msgcount!r}")
        encoding = getattr(one.ext, "serialization_format", "cdr")
        kind = one.msgtype if encoding == "cdr" else f"{one.msgtype} in {encoding}"
        by_name.setdefault((one.topic, kind), []).append(one)
    return [
        BagTopic(name, kind, sum(one.msgcount for one in several), tuple(several))
        for (name, kind), several in sorted(by_name.items())
    ]


# Settings for commands without these options.
_SET_ELSEWHERE = {
    "--topic": " (tfa query: --set frames.topic=NAME)",
    "--position-topic": " (tfa build and query: --set frames.position_topic=NAME)",
}


def choose_topic(
    topics: Sequence[BagTopic], requested: str | None, kinds: Sequence[str], path: Path, option: str, what: str
) -> BagTopic | None:
    """Return the requested topic, or the only one of these kinds; None if there are no positions."""
    able = [one for one in topics if one.kind in kinds and one.count]
    if requested == NO_TOPIC and option != "--topic":
        return None
    if requested is None:
        if len(able) == 1:
            return able[0]
        if able:
            or_none = ("" if option == "--topic" else f", or {option} {NO_TOPIC}") + _SET_ELSEWHERE[option]
            raise BadRecording(
                f"{path} has {len(able)} topics with {what}; choose one with {option}{or_none}:", path, more=_list(able)
            )
        if option == "--topic":
            has = f"has {pluralize(len(topics), 'topic')}, none with {what} ({', '.join(kinds)})"
            raise BadRecording(f"{path} {has}{':' if topics else ''}", path, more=_list(topics))
        return None
    named = [one for one in topics if one.name == requested]
    if not named:
        raise BadRecording(f"{path} has no topic {requested}; its topics are:", path, more=_list(topics))
    right = [one for one in named if one.kind in kinds]
    if not right:
        others = f"; topics with {what} are:" if able else ""
        raise BadRecording(
            f"{requested} of {path} has type {named[0].kind}, must be {' or '.join(kinds)}{others}",
            path,
            more=_list(able),
        )
    if not right[0].count:
        raise BadRecording(f"{requested} of {path} has no messages; its topics are:", path, more=_list(topics))
    return right[0]


def _list(topics: Sequence[BagTopic]) -> list[str]:
    more = [f"  … and {len(topics) - _LISTED} more"] if len(topics) > _LISTED else []
    return [f"  {one}" for one in topics[:_LISTED]] + more


class BagRecording:
    """Frames of an image topic of an open bag, placed by a position topic."""

    def __init__(self, path: Path, reader: Any, images: BagTopic, positions: BagTopic | None) -> None:
        from rosbags.typesys import Stores, get_typestore

        self.path, self.total, self.notes = path, images.count, list[str]()  # the total is estimated before reading
        self.images, self.positions, self._reader, self._size = images, positions, reader, measure_recording(path)
        # These message types are the same in every release, so the bag's own definitions are not needed.
        self._is_ros1 = type(reader).__module__.startswith("rosbags.rosbag1")
        store = get_typestore(Stores.ROS1_NOETIC if self._is_ros1 else Stores.ROS2_HUMBLE)
        self._parse = store.deserialize_ros1 if self._is_ros1 else store.deserialize_cdr
        self._stamped = True  # header stamps, or else recording times
        self._track = self._read_track()

    @property
    def placed(self) -> bool:
        """Whether frames have positions."""
        return self._track is not None

    def facts(self) -> dict[str, Any]:
        """Return the sources of frames and positions, for JSON."""
        return {"topic": self.images.name, "position_topic": None if self.positions is None else self.positions.name}

    def frames(self) -> Iterator[RecordedFrame]:
        """Yield all frames in order of time; a frame is invalid after the next one is requested."""
        with _explain_errors(self.path):
            for one in iterate_limited(self.path, self._messages(self.images)):
                time_ns = (one.stamp if self._stamped else 0) or one.recorded
                position = None if self._track is None else self._track.at(time_ns)
                yield RecordedFrame(time_ns, partial(self._picture, one.message, time_ns), position)

    def _picture(self, message: Any, time_ns: int) -> FramePicture:
        try:
            with limit_reading(self.path, self._size):
                return decode_picture(message, self.images.kind)
        except BadImage as error:
            when = f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
            raise BadImage(f"{self.path}, {self.images.name} at {when}: {error}", self.path) from None

    def _messages(self, topic: BagTopic) -> Iterator[Clocked]:
        for _, recorded, raw in self._reader.messages(topic.connections):
            if not isinstance(recorded, int):
                raise ValueError(f"a message has time {recorded!r}")
            message: Any = self._parse(raw, topic.kind)
            stamp = message.header.stamp
            yield Clocked(recorded, int(stamp.sec) * 10**9 + int(stamp.nanosec), message)

    def _read_track(self) -> MessageTrack | None:
        """Read all positions before the first frame; they are few and small compared to images."""
        if self.positions is None:
            return None
        with _explain_errors(self.path), limit_reading(self.path):
            first = next(self._messages(self.images), None)
            also = next(self._messages(self.positions), None)
            if first is not None and also is not None:
                self._stamped = self._one_clock(first, also)
            track, notes = read_track(
                self._messages(self.positions), self.positions.kind, self.positions.name, stamped=self._stamped
            )
        self.notes += notes
        return track

    def _one_clock(self, image: Clocked, position: Clocked) -> bool:
        """Return True if both topics use the same clock. In a replayed bag both have old stamps."""
        assert self.positions is not None
        if not image.stamp or not position.stamp:
            return False
        apart = abs((image.stamp - image.recorded) - (position.stamp - position.recorded))
        if apart <= _APART:
            return True
        self.notes.append(
            f"the clocks of {self.images.name} and {self.positions.name} are {apart / 1e9:,.0f} s apart: using "
            "recording times instead"
        )
        return False

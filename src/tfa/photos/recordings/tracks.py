"""Where a camera was, by the messages of a bag that say so: NavSatFix, Odometry, PoseStamped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.errors import BadRecording
from tfa.photos.positions import POSITION_LIMITS, Position, format_count
from tfa.photos.track import Track

_GAP = 10.0  # seconds between two messages from which on nothing is known between them
_EDGE = 1.0  # seconds before the first and after the last message that still count as there
WORST = 100.0  # metres of standard deviation from which on a fix is none
_NEVER_TURNED = 90.0  # the heading of a rotation by nothing

TrackPoint = tuple[float, float, float, float]  # latitude and longitude, or x and y; altitude or nan; heading or nan


@dataclass(frozen=True)
class Clocked:
    """A message with the two times that it has."""

    recorded: int  # nanoseconds, by the clock of whoever wrote the bag
    stamp: int  # by its own header; 0 if that was never set
    message: Any


@dataclass(frozen=True)
class MessageTrack:
    """A track of messages, asked by nanoseconds."""

    track: Track  # whose times count from the first of them: float64 is too coarse for nanoseconds since 1970
    first_ns: int

    def at(self, time_ns: int) -> Position | None:
        seconds, times = (time_ns - self.first_ns) / 1e9, self.track.times
        early, late = times[0] - seconds, seconds - times[-1]
        if 0 < max(early, late) <= _EDGE:
            seconds = float(times[0] if early > 0 else times[-1])
        return self.track.at(seconds, _GAP)


def read_track(messages: Iterable[Clocked], kind: str, topic: str, *, stamped: bool) -> tuple[MessageTrack, list[str]]:
    """The track of position messages of one kind, by their stamps or by when they were recorded, and notes."""
    rows, without = [], 0
    for one in messages:
        point = POSITION_MESSAGES[kind](one.message)
        if point is None:
            without += 1
        else:
            rows.append(((one.stamp if stamped else 0) or one.recorded, *point))
    if not rows:
        raise BadRecording(
            f"{topic} has no position: {format_count(without, 'message')} without a fix; give another "
            "--position-topic, or none of them with --position-topic none"
        )
    is_global = kind == NAV_SAT_FIX
    if all(heading == _NEVER_TURNED for *_, heading in rows):  # nobody set it
        rows = [(time, first, second, alt, math.nan) for time, first, second, alt, _ in rows]
    first_ns = min(time for time, *_ in rows)
    table = np.array([((time - first_ns) / 1e9, *point) for time, *point in sorted(rows)], np.float64)
    _, first = np.unique(table[:, 0], return_index=True)
    track = Track(table[first, 0], table[first, 1:], np.zeros(len(first), np.int64), is_global)
    notes = [f"{format_count(without, 'message')} of {topic} without a fix"] if without else []
    return MessageTrack(track, first_ns), notes


def _read_fix(message: Any) -> TrackPoint | None:
    """A fix; None where there is none: no satellites, two zeros, or one that may be anywhere."""
    lat, lon, alt = float(message.latitude), float(message.longitude), float(message.altitude)
    if int(message.status.status) < 0 or not (math.isfinite(lat) and math.isfinite(lon)) or (lat == 0 and lon == 0):
        return None
    if int(message.position_covariance_type):
        variance = max(float(message.position_covariance[0]), float(message.position_covariance[4]))
        if not variance <= WORST**2:  # nor nan
            return None
    return _check_point((lat, lon, alt, math.nan), "lat", "lon")


def _read_pose(pose: Any) -> TrackPoint | None:
    """Metres of the frame that the pose is given in; its heading is that of the x axis, clockwise from the y axis."""
    place, turn = pose.position, pose.orientation
    x, y, z, w = (float(value) for value in (turn.x, turn.y, turn.z, turn.w))
    heading = math.nan
    if abs(math.hypot(x, y, z, w) - 1) < 0.1:  # else it is no rotation
        yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        heading = (90 - math.degrees(yaw)) % 360
    return _check_point((float(place.x), float(place.y), float(place.z), heading), "x", "y")


def _check_point(point: TrackPoint, *names: str) -> TrackPoint | None:
    """None where it is no position; without an altitude that is none."""
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

"""Build ROS messages from the fields of `messages` and `health`, and read requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from geometry_msgs.msg import Point, Pose, PoseWithCovariance, PoseWithCovarianceStamped, Quaternion
from sensor_msgs.msg import NavSatFix, NavSatStatus
from std_msgs.msg import Header
from tfa_msgs.msg import LoopEdge, Match, Matches
from tfa_msgs.srv import AddPhoto

from tfa_ros.health import Status
from tfa_ros.messages import fix_fields, match_fields, pose_fields, query_name, verdict_fields
from tfa_ros.photos import BadPhoto, compressed_file, image_file

# Indexed by the levels of `health`; in Python a ROS level is one byte.
LEVELS = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE)


def matches_message(header: Any, answer: dict[str, Any], map_name: str) -> Any:
    """Build the answer to the image with this header."""
    types = Match.get_fields_and_field_types()
    return Matches(
        header=header,
        query=query_name(header.stamp.sec, header.stamp.nanosec),
        **verdict_fields(answer),
        map_name=map_name,
        calibration=answer.get("calibration") or "",
        matches=[Match(**match_fields(hit, types)) for hit in answer["hits"]],
    )


def edge_message(later: Any, earlier: Any, numbers: dict[str, float]) -> Any:
    """Build an edge between the images with these headers."""
    return LoopEdge(header=later, match=earlier, **numbers)


def fix_message(header: Any, place: dict[str, Any]) -> Any:
    """Build the position in degrees; the frame is the camera's, as for a GPS receiver."""
    return NavSatFix(
        header=header,
        status=NavSatStatus(status=NavSatStatus.STATUS_FIX, service=0),  # no satellite system
        position_covariance_type=NavSatFix.COVARIANCE_TYPE_APPROXIMATED,
        **fix_fields(place),
    )


def pose_message(header: Any, frame_id: str, place: dict[str, Any], best: dict[str, Any] | None) -> Any:
    """Build the pose in the plane of the map, at the time of the image."""
    fields = pose_fields(place, best)
    position, turn = fields["position"], fields["orientation"]
    pose = Pose(
        position=Point(**dict(zip("xyz", position, strict=True))),
        orientation=Quaternion(**dict(zip("xyzw", turn, strict=True))),
    )
    return PoseWithCovarianceStamped(
        header=Header(stamp=header.stamp, frame_id=frame_id),
        pose=PoseWithCovariance(pose=pose, covariance=fields["covariance"]),
    )


def diagnostics_message(stamp: Any, node: str, hardware: str, statuses: Sequence[Status]) -> Any:
    """Build the diagnostics of the node."""
    listed = [
        DiagnosticStatus(
            level=LEVELS[one.level],
            name=f"{node}: {one.name}",
            message=one.message,
            hardware_id=hardware,
            values=[KeyValue(key=key, value=value) for key, value in one.values.items()],
        )
        for one in statuses
    ]
    return DiagnosticArray(header=Header(stamp=stamp), status=listed)


def file_of(image: Any) -> tuple[str, bytes]:
    """Return the file name and content of an image message of either type."""
    return compressed_file(image) if hasattr(image, "format") else image_file(image)


def image_of(request: Any) -> Any:
    """Return the image of a request that has data."""
    for image in (request.compressed, request.image):
        if len(image.data):
            return image
    raise BadPhoto("the request has no image; set compressed or image")


def position_of(request: Any) -> dict[str, float] | None:
    """Return the position of a photo to add, as JSON for the service."""
    if request.position == AddPhoto.Request.NO_POSITION:
        return None
    if request.position == AddPhoto.Request.DEGREES:
        position = {"lat": request.latitude, "lon": request.longitude}
    elif request.position == AddPhoto.Request.METERS:
        position = {"x": request.x, "y": request.y}
    else:
        raise BadPhoto(f"position is {request.position}, must be 0 (none), 1 (degrees) or 2 (meters)")
    if request.has_altitude:
        position["alt"] = request.altitude
    if request.has_heading:
        position["heading"] = request.heading
    if not all(math.isfinite(value) for value in position.values()):
        raise BadPhoto(f"position {position} has a value that is not finite; leave it out")
    return position

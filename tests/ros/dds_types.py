"""The types of ROS 2 messages as DDS knows them, written for cyclonedds from the definitions, by hand.

ROS calls the type of `sensor_msgs/Image` on the wire `sensor_msgs::msg::dds_::Image_`. All are final: their bytes are
the fields one after the other, each aligned to its size.
"""

# Without `from __future__ import annotations`: cyclonedds reads the types themselves.
import array
from dataclasses import dataclass
from typing import Any

from cyclonedds.idl import IdlStruct
from cyclonedds.idl.annotations import final
from cyclonedds.idl.types import array as fixed
from cyclonedds.idl.types import float64, int8, int32, int64, sequence, uint8, uint16, uint32

from tests.ros.ros_types import Message, message_class


@dataclass
@final
class Time(IdlStruct, typename="builtin_interfaces.msg.dds_.Time_"):
    sec: int32
    nanosec: uint32


@dataclass
@final
class Header(IdlStruct, typename="std_msgs.msg.dds_.Header_"):
    stamp: Time
    frame_id: str


@dataclass
@final
class CompressedImage(IdlStruct, typename="sensor_msgs.msg.dds_.CompressedImage_"):
    header: Header
    format: str
    data: sequence[uint8]


@dataclass
@final
class Image(IdlStruct, typename="sensor_msgs.msg.dds_.Image_"):
    header: Header
    height: uint32
    width: uint32
    encoding: str
    is_bigendian: uint8
    step: uint32
    data: sequence[uint8]


@dataclass
@final
class NavSatStatus(IdlStruct, typename="sensor_msgs.msg.dds_.NavSatStatus_"):
    status: int8
    service: uint16


@dataclass
@final
class NavSatFix(IdlStruct, typename="sensor_msgs.msg.dds_.NavSatFix_"):
    header: Header
    status: NavSatStatus
    latitude: float64
    longitude: float64
    altitude: float64
    position_covariance: fixed[float64, 9]
    position_covariance_type: uint8


@dataclass
@final
class Point(IdlStruct, typename="geometry_msgs.msg.dds_.Point_"):
    x: float64
    y: float64
    z: float64


@dataclass
@final
class Quaternion(IdlStruct, typename="geometry_msgs.msg.dds_.Quaternion_"):
    x: float64
    y: float64
    z: float64
    w: float64


@dataclass
@final
class Pose(IdlStruct, typename="geometry_msgs.msg.dds_.Pose_"):
    position: Point
    orientation: Quaternion


@dataclass
@final
class PoseWithCovariance(IdlStruct, typename="geometry_msgs.msg.dds_.PoseWithCovariance_"):
    pose: Pose
    covariance: fixed[float64, 36]


@dataclass
@final
class PoseWithCovarianceStamped(IdlStruct, typename="geometry_msgs.msg.dds_.PoseWithCovarianceStamped_"):
    header: Header
    pose: PoseWithCovariance


@dataclass
@final
class KeyValue(IdlStruct, typename="diagnostic_msgs.msg.dds_.KeyValue_"):
    key: str
    value: str


@dataclass
@final
class DiagnosticStatus(IdlStruct, typename="diagnostic_msgs.msg.dds_.DiagnosticStatus_"):
    level: uint8
    name: str
    message: str
    hardware_id: str
    values: sequence[KeyValue]


@dataclass
@final
class DiagnosticArray(IdlStruct, typename="diagnostic_msgs.msg.dds_.DiagnosticArray_"):
    header: Header
    status: sequence[DiagnosticStatus]


@dataclass
@final
class LoopEdge(IdlStruct, typename="tfa_msgs.msg.dds_.LoopEdge_"):
    header: Header
    match: Header
    confidence: float64
    inliers: float64
    heading: float64
    scale: float64


@dataclass
@final
class Match(IdlStruct, typename="tfa_msgs.msg.dds_.Match_"):
    image: str
    score: float64
    confidence: float64
    sure: bool
    has_position: bool
    latitude: float64
    longitude: float64
    altitude: float64
    x: float64
    y: float64
    heading: float64


@dataclass
@final
class Matches(IdlStruct, typename="tfa_msgs.msg.dds_.Matches_"):
    header: Header
    query: str
    verdict: str
    reason: str
    map_name: str
    calibration: str
    matches: sequence[Match]


@dataclass
@final
class LocalizeRequest(IdlStruct, typename="tfa_msgs.srv.dds_.Localize_Request_"):
    compressed: CompressedImage
    image: Image


@dataclass
@final
class LocalizeResponse(IdlStruct, typename="tfa_msgs.srv.dds_.Localize_Response_"):
    success: bool
    message: str
    matches: Matches
    sure: bool
    has_place: bool
    latitude: float64
    longitude: float64
    x: float64
    y: float64
    radius: float64


@dataclass
@final
class AddPhotoRequest(IdlStruct, typename="tfa_msgs.srv.dds_.AddPhoto_Request_"):
    compressed: CompressedImage
    image: Image
    name: str
    position: uint8
    latitude: float64
    longitude: float64
    x: float64
    y: float64
    has_altitude: bool
    altitude: float64
    has_heading: bool
    heading: float64


@dataclass
@final
class AddPhotoResponse(IdlStruct, typename="tfa_msgs.srv.dds_.AddPhoto_Response_"):
    success: bool
    message: str
    id: int64
    revision: int64


# By the names of ROS, such as sensor_msgs/msg/Image.
KINDS: dict[str, Any] = {
    kind.__idl_typename__.replace(".dds_", "").replace(".", "/").removesuffix("_"): kind
    for kind in IdlStruct.__subclasses__()
    if kind.__module__ == __name__
}


def to_dds(value: Any) -> Any:
    """A message of ROS as cyclonedds writes it."""
    if isinstance(value, Message):
        kind = KINDS[value._type]
        return kind(**{name: to_dds(getattr(value, name)) for name in kind.__dataclass_fields__})
    if isinstance(value, (list, array.array)):
        return [to_dds(one) for one in value]
    return value[0] if isinstance(value, bytes) else value


def from_dds(value: Any, name: str) -> Message:
    """What cyclonedds read, as a message of ROS."""
    fields = {}
    for field in value.__dataclass_fields__:
        found = getattr(value, field)
        if isinstance(found, IdlStruct):
            found = from_dds(found, next(name for name, kind in KINDS.items() if kind is type(found)))
        fields[field] = array.array("B", found) if field == "data" else found
    return message_class(name)(**fields)

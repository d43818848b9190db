"""Real bags and videos, written by rosbags and by PyAV."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_typestore

START = 1_700_000_000 * 10**9
IMAGES, FIXES, ODOMETRY = "/camera/image/compressed", "/gps/fix", "/odom"
ROS1, ROS2 = get_typestore(Stores.ROS1_NOETIC), get_typestore(Stores.ROS2_HUMBLE)
Row = tuple[int, str, Any]  # when it was recorded, its topic, a message


def jpeg(place: int, size: tuple[int, int] = (64, 48)) -> bytes:
    cells = np.random.default_rng(place).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    written = io.BytesIO()
    Image.fromarray(cells).resize(size, Image.Resampling.BILINEAR).save(written, "JPEG")
    return written.getvalue()


class Messages:
    """Messages of one of the two ROS."""

    def __init__(self, ros1: bool = False) -> None:
        self.ros1, self.store = ros1, ROS1 if ros1 else ROS2

    def of(self, kind: str, *values: Any, **named: Any) -> Any:
        return self.store.types[kind](*values, **named)

    def header(self, time_ns: int, frame: str = "camera") -> Any:
        stamp = self.of("builtin_interfaces/msg/Time", *divmod(time_ns, 10**9))
        return self.of("std_msgs/msg/Header", *([0] if self.ros1 else []), stamp, frame)

    def compressed(self, time_ns: int, content: bytes, form: str = "jpeg") -> Any:
        kind = "sensor_msgs/msg/CompressedImage"
        return self.of(kind, self.header(time_ns), form, np.frombuffer(content, np.uint8))

    def image(
        self, time_ns: int, encoding: str, size: tuple[int, int], step: int, data: bytes, *, big: bool = False
    ) -> Any:
        kind, (width, height) = "sensor_msgs/msg/Image", size
        content = np.frombuffer(data, np.uint8)
        return self.of(kind, self.header(time_ns), height, width, encoding, int(big), step, content)

    def fix(
        self, time_ns: int, lat: float, lon: float, alt: float = 40.0, status: int = 0, deviation: float = 0
    ) -> Any:
        known = self.of("sensor_msgs/msg/NavSatStatus", status, 1)
        covariance = np.diag([float(deviation) ** 2] * 3).ravel()
        return self.of(
            "sensor_msgs/msg/NavSatFix", self.header(time_ns), known, lat, lon, alt, covariance, 2 * (deviation > 0)
        )

    def pose(self, x: float, y: float, z: float = 0.0, yaw: float = 0.0) -> Any:
        turn = self.of("geometry_msgs/msg/Quaternion", 0.0, 0.0, float(np.sin(yaw / 2)), float(np.cos(yaw / 2)))
        return self.of("geometry_msgs/msg/Pose", self.of("geometry_msgs/msg/Point", x, y, z), turn)

    def pose_stamped(self, time_ns: int, *place: float) -> Any:
        return self.of("geometry_msgs/msg/PoseStamped", self.header(time_ns), self.pose(*place))

    def odometry(self, time_ns: int, *place: float) -> Any:
        vector = self.of("geometry_msgs/msg/Vector3", 0.0, 0.0, 0.0)
        twist = self.of("geometry_msgs/msg/Twist", vector, vector)
        with_covariance = self.of("geometry_msgs/msg/PoseWithCovariance", self.pose(*place), np.zeros(36))
        twists = self.of("geometry_msgs/msg/TwistWithCovariance", twist, np.zeros(36))
        return self.of("nav_msgs/msg/Odometry", self.header(time_ns), "base", with_covariance, twists)


def write_bag(path: Path, rows: Sequence[Row]) -> Path:
    """A bag of the form that the name's ending says; the path of its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ros1 = path.suffix == ".bag"
    plugin = StoragePlugin.MCAP if path.suffix == ".mcap" else StoragePlugin.SQLITE3
    folder = path if ros1 else path.with_suffix("")
    store = ROS1 if ros1 else ROS2
    with Writer1(folder) if ros1 else Writer2(folder, version=9, storage_plugin=plugin) as writer:
        topics = {}
        for time_ns, topic, message in rows:
            if topic not in topics:
                topics[topic] = writer.add_connection(topic, message.__msgtype__, typestore=store)
            raw = (store.serialize_ros1 if ros1 else store.serialize_cdr)(message, message.__msgtype__)
            writer.write(topics[topic], time_ns, raw)
    return path if ros1 else folder / path.name


def drive_rows(frames: int = 20, *, ros1: bool = False, step: float = 1e-5, rate: int = 10) -> list[Row]:
    """A drive north: a frame every tenth of a second, a fix every half, recorded a little later than they say."""
    made, rows = Messages(ros1), []
    for number in range(frames):
        time_ns = START + number * 10**9 // rate
        rows.append((time_ns + 2_000_000, IMAGES, made.compressed(time_ns, jpeg(number))))
        if number % 5 == 0:
            rows.append((time_ns + 30_000_000, FIXES, made.fix(time_ns, 52 + number * step, 13.0)))
    return sorted(rows, key=lambda row: row[0])


def write_video(
    path: Path, frames: int = 30, rate: int = 10, size: tuple[int, int] = (64, 48), **metadata: str
) -> Path:
    """A video that shows another place every second."""
    import av

    with av.open(str(path), "w") as container:
        container.metadata.update(metadata)
        codec = {".webm": "libvpx", ".avi": "mjpeg"}.get(path.suffix, "mpeg4")
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(frames):
            image = Image.open(io.BytesIO(jpeg(number // rate, size)))
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())
    return path

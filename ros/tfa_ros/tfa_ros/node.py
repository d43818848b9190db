"""The ROS 2 node: subscribes to images, queries `tfa serve`, publishes matches, loops, poses, fixes and diagnostics."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from rcl_interfaces.msg import ParameterDescriptor
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.logging import get_logger
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, NavSatFix
from tfa_msgs.msg import LoopEdge, Matches
from tfa_msgs.srv import AddPhoto, Localize

from tfa_ros.assemble import (
    diagnostics_message,
    edge_message,
    file_of,
    fix_message,
    image_of,
    matches_message,
    pose_message,
    position_of,
)
from tfa_ros.health import Health
from tfa_ros.latest import Latest
from tfa_ros.messages import LoopEdges, is_global, place_fields, place_of, query_name, verdict_fields
from tfa_ros.parameters import PARAMETERS, BadParameter, checked, query_fields
from tfa_ros.photos import BadPhoto
from tfa_ros.service_client import ServiceAway, ServiceBusy, ServiceClient, ServiceProblem, ServiceRefusal

THREADS = 4  # executor threads: images and diagnostics must not wait for the two ROS services
AWAY_PAUSE = 1.0  # seconds until a retry if the service cannot be reached
# Best effort is compatible with every camera; only the newest image counts.
NEWEST = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


class TfaNode(Node):
    """Queries a service with the newest image, in a thread of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__("tfa", **options)
        self._values = checked({one.name: self._declared(one) for one in PARAMETERS})
        api_key = os.environ.get(self._values["api_key_variable"], "") if self._values["api_key_variable"] else ""
        try:
            self._client = ServiceClient(self._values["url"], api_key, self._values["map"], self._values["timeout"])
        except ValueError as error:
            raise BadParameter(f"parameter url: {error}") from None
        self._map_name = self._values["map"]
        self._node_name = self.get_fully_qualified_name().lstrip("/")  # with the namespace, for several cameras
        self._health = Health(self._values["stale_after"])
        self._newest: Latest[Any] = Latest(self._query, self._values["rate"])

        self._matches = self.create_publisher(Matches, "~/matches", 10)
        self._loops, self._edges = self.create_publisher(LoopEdge, "~/loops", 100), LoopEdges()
        self._pose = self.create_publisher(PoseWithCovarianceStamped, "~/pose", 10)
        self._fix = self.create_publisher(NavSatFix, "~/fix", 10)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # Services and diagnostics wait for the network, so they must not block images or each other.
        waiting, alone = ReentrantCallbackGroup(), MutuallyExclusiveCallbackGroup()
        kind = CompressedImage if self._values["compressed"] else Image
        self.create_subscription(kind, self._values["image_topic"], self._image_came, NEWEST)
        self.create_service(Localize, "~/localize", self._localize, callback_group=waiting)
        self.create_service(AddPhoto, "~/add", self._add, callback_group=waiting)
        self.create_timer(self._values["diagnostics_period"], self._diagnose, callback_group=alone)

    def _declared(self, one: Any) -> Any:
        # Accept any type here, so that checked() can explain what is wrong.
        how = ParameterDescriptor(description=one.meaning, read_only=True, dynamic_typing=True)
        return self.declare_parameter(one.name, one.default, how).value

    def destroy_node(self) -> None:
        """Send no more queries, and wait for the running one."""
        self._newest.stop()
        super().destroy_node()

    # --- images -------------------------------------------------------------------------------------------------

    def _image_came(self, image: Any) -> None:
        self._health.image_came()
        self._newest.put(image)

    def _query(self, image: Any) -> float | None:
        """Query the newest image, in the thread of `Latest`; return seconds until a retry, or None when done."""
        try:
            begun = time.monotonic()
            name, content = file_of(image)
            answer = self._client.query(name, content, query_fields(self._values, of_the_camera=True))
            verdict = ": ".join(filter(None, verdict_fields(answer).values()))
            self._health.answered(time.monotonic() - begun, bool(answer["sure"]), float(answer["confidence"]), verdict)
            self._publish(image.header, answer)
        except BadPhoto as error:
            self._bad_photo(str(error))
        except ServiceRefusal as error:
            if error.is_of_the_photo:
                self._bad_photo(str(error))
            else:
                self._health.refused(str(error))
                self._warn(f"the service refuses: {error}")
        except ServiceBusy as error:
            self._health.busy(str(error))
            return error.pause
        except ServiceAway as error:
            self._health.away(str(error))
            self._warn(str(error))
            self._map_name = self._values["map"]  # the service may come back with other maps
            return AWAY_PAUSE
        except Exception as error:  # a bug must not end the thread
            self._health.refused(f"{type(error).__name__}: {error}")
            self.get_logger().error(f"query failed: {type(error).__name__}: {error}")
        return None

    def _bad_photo(self, sentence: str) -> None:
        self._health.bad_photo(sentence)
        self._warn(f"image skipped: {sentence}")

    def _warn(self, sentence: str) -> None:
        self.get_logger().warning(sentence, throttle_duration_sec=10.0)

    def _publish(self, header: Any, answer: dict[str, Any]) -> None:
        self._matches.publish(matches_message(header, answer, self._answering_map()))
        for edge in self._edges.add(header, answer):
            self._loops.publish(edge_message(*edge))
        place = place_of(answer)
        if place is None:
            return
        if is_global(place):
            self._fix.publish(fix_message(header, place))
        else:
            best = answer["hits"][0] if answer["hits"] else None
            self._pose.publish(pose_message(header, self._values["frame_id"], place, best))

    def _answering_map(self) -> str:
        if not self._map_name:
            self._map_name = self._client.maps()[0]
        return self._map_name

    # --- services -----------------------------------------------------------------------------------------------

    def _localize(self, request: Any, response: Any) -> Any:
        for name in ("latitude", "longitude", "x", "y", "radius"):
            setattr(response, name, math.nan)
        try:
            image = image_of(request)
            answer = self._client.query(*file_of(image), query_fields(self._values, of_the_camera=False))
            response.matches = matches_message(image.header, answer, self._answering_map())
        except (BadPhoto, ServiceProblem) as error:
            response.success, response.message = False, str(error)
            return response
        for name, value in place_fields(answer).items():
            setattr(response, name, value)
        response.success = True
        return response

    def _add(self, request: Any, response: Any) -> Any:
        response.success, response.id, response.revision = False, -1, -1
        try:
            image = image_of(request)
            _, content = file_of(image)
            name = request.name or query_name(image.header.stamp.sec, image.header.stamp.nanosec)
            report = self._client.add(name, content, position_of(request))
        except (BadPhoto, ServiceProblem) as error:
            response.message = str(error)
            return response
        response.revision = int(report["revision"])
        if report["added"]:
            response.success, response.id = True, int(report["added"][0])
            response.message = " ".join([f"{name} added as image {response.id}.", *report["notes"]])
        else:
            image_name, reason = report["skipped"][0]
            response.message = f"{image_name} not added: {reason}"
        return response

    # --- diagnostics --------------------------------------------------------------------------------------------

    def _diagnose(self) -> None:
        if self._health.quiet(self._values["diagnostics_period"]):
            self._look_at_service()
        statuses = self._health.statuses(*self._newest.counts)
        now = self.get_clock().now().to_msg()
        self._diagnostics.publish(diagnostics_message(now, self._node_name, self._client.url, statuses))

    def _look_at_service(self) -> None:
        try:
            self._client.check_ready()
            self._health.is_ready()
        except ServiceAway as error:
            self._health.away(str(error))
        except ServiceBusy as error:
            self._health.busy(str(error))
        except ServiceProblem as error:
            self._health.refused(str(error))


def main(args: list[str] | None = None) -> int:
    """Run the node: `ros2 run tfa_ros node`."""
    rclpy.init(args=args)
    try:
        node = TfaNode()
    except BadParameter as error:
        get_logger("tfa").fatal(str(error))
        rclpy.try_shutdown()
        return 1
    executor = MultiThreadedExecutor(num_threads=THREADS)
    executor.add_node(node)
    try:
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

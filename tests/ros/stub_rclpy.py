"""As much of rclpy as the node uses, in modules of the same names. What carries messages is given: a `Transport`."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

from tests.ros.ros_types import Message, message_class, store
from tests.waiting import PATIENCE


class Transport(Protocol):
    """Carries messages of topics by their full names."""

    def publisher(self, kind: type[Message], topic: str, qos: QoSProfile) -> Callable[[Message], None]: ...

    def subscribe(
        self, kind: type[Message], topic: str, qos: QoSProfile, callback: Callable[[Message], None]
    ) -> None: ...

    def close(self) -> None: ...


class LocalTransport:
    """Keeps what is published; hands messages to subscribers at once, in the thread that gives them."""

    def __init__(self) -> None:
        self.published: dict[str, list[Any]] = defaultdict(list)
        self.subscribers: dict[str, tuple[type[Message], Callable[[Message], None]]] = {}

    def publisher(self, kind: type[Message], topic: str, qos: QoSProfile) -> Callable[[Message], None]:
        def publish(message: Message) -> None:
            assert isinstance(message, kind), f"{message!r} on a topic of {kind.__name__}"
            self.published[topic].append(message)

        return publish

    def subscribe(self, kind: Any, topic: str, qos: QoSProfile, callback: Callable[[Message], None]) -> None:
        self.subscribers[topic] = (kind, callback)

    def deliver(self, topic: str, message: Message) -> None:
        kind, callback = self.subscribers[topic]
        assert isinstance(message, kind)
        callback(message)

    def close(self) -> None:
        pass


@dataclass
class QoSProfile:
    depth: int
    history: str = "keep_last"
    reliability: str = "reliable"


@dataclass
class Parameter:
    name: str
    type_: Any = None
    value: Any = None


@dataclass
class Logger:
    lines: list[tuple[str, str]] = field(default_factory=list)

    def __getattr__(self, level: str) -> Callable[..., None]:
        def log(sentence: str, *, throttle_duration_sec: float = 0.0) -> None:
            self.lines.append((level, sentence))

        assert level in ("debug", "info", "warning", "error", "fatal")
        return log


LOG = Logger()


class Clock:
    def now(self) -> Any:
        nanoseconds = time.time_ns()
        stamp = message_class("builtin_interfaces/msg/Time")
        return SimpleNamespace(to_msg=lambda: stamp(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9))


class Node:
    transport: Transport  # set by install()
    overrides: dict[str, Any] = {}  # noqa: RUF012  what a file of parameters says

    def __init__(self, node_name: str, *, namespace: str = "", parameter_overrides: Any = ()) -> None:
        self._stub_name, self._namespace = node_name, "/" + namespace.strip("/") if namespace else ""
        self._given = {**self.overrides, **{one.name: one.value for one in parameter_overrides}}
        self.declared: dict[str, Any] = {}
        self.services: dict[str, Callable[[Any], Any]] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def declare_parameter(self, name: str, value: Any, descriptor: Any) -> Parameter:
        given = self._given.get(name, value)
        assert descriptor.dynamic_typing or type(given) is type(value), name
        self.declared[name] = (value, descriptor)
        return Parameter(name, value=given)

    def get_fully_qualified_name(self) -> str:
        return f"{self._namespace}/{self._stub_name}"

    def get_logger(self) -> Logger:
        return LOG

    def get_clock(self) -> Clock:
        return Clock()

    def create_publisher(self, kind: Any, topic: str, qos: QoSProfile | int) -> Any:
        profile = QoSProfile(qos) if isinstance(qos, int) else qos
        return SimpleNamespace(publish=self.transport.publisher(kind, self._full(topic), profile))

    def create_subscription(self, kind: Any, topic: str, callback: Any, qos: QoSProfile) -> None:
        self.transport.subscribe(kind, self._full(topic), qos, callback)

    def create_service(self, kind: Any, name: str, callback: Any, *, callback_group: Any) -> None:
        def call(request: Any) -> Any:
            assert isinstance(request, kind.Request)
            response = callback(request, kind.Response())
            assert isinstance(response, kind.Response)
            return response

        self.services[self._full(name)] = call

    def create_timer(self, seconds: float, callback: Any, *, callback_group: Any) -> None:
        self.timers.append((seconds, callback))

    def destroy_node(self) -> None:
        self.transport.close()

    def _full(self, name: str) -> str:
        if name.startswith("~/"):
            return f"{self.get_fully_qualified_name()}/{name[2:]}"
        return name if name.startswith("/") else f"{self._namespace}/{name}"


class Executor:
    """Runs until rclpy is shut down; callbacks come from the transport's own threads."""

    spinning, stopped = threading.Event(), threading.Event()

    def __init__(self, num_threads: int) -> None:
        assert num_threads > 2, "both services may wait, and diagnostics too"

    def add_node(self, node: Node) -> None:
        self.node = node

    def spin(self) -> None:
        self.spinning.set()
        assert self.stopped.wait(PATIENCE)
        raise sys.modules["rclpy.executors"].ExternalShutdownException


def modules() -> dict[str, ModuleType]:
    """All modules of ROS that the node imports, by name."""
    found: dict[str, ModuleType] = {}

    def module(name: str, **content: Any) -> None:
        found[name] = ModuleType(name)
        vars(found[name]).update(content)

    module("rclpy", init=lambda args=None: Executor.stopped.clear(), try_shutdown=Executor.stopped.set)
    module("rclpy.node", Node=Node)
    module("rclpy.parameter", Parameter=Parameter)
    module("rclpy.logging", get_logger=lambda name: LOG)
    module("rclpy.callback_groups", MutuallyExclusiveCallbackGroup=object, ReentrantCallbackGroup=object)
    shutdown = type("ExternalShutdownException", (Exception,), {})
    module("rclpy.executors", MultiThreadedExecutor=Executor, ExternalShutdownException=shutdown)
    reliability = SimpleNamespace(BEST_EFFORT="best_effort", RELIABLE="reliable")
    history = SimpleNamespace(KEEP_LAST="keep_last", KEEP_ALL="keep_all")
    module("rclpy.qos", QoSProfile=QoSProfile, ReliabilityPolicy=reliability, HistoryPolicy=history)
    kinds = ("builtin_interfaces", "diagnostic_msgs", "geometry_msgs", "rcl_interfaces", "sensor_msgs", "std_msgs")
    for package in (*kinds, "tfa_msgs"):
        names = [name for name in store().fielddefs if name.startswith(f"{package}/msg/")]
        module(package)
        module(f"{package}.msg", **{name.rpartition("/")[2]: message_class(name) for name in names})
    services = {
        name: SimpleNamespace(
            **{half: message_class(f"tfa_msgs/srv/{name}_{half}") for half in ("Request", "Response")}
        )
        for name in ("AddPhoto", "Localize")
    }
    module("tfa_msgs.srv", **services)
    return found

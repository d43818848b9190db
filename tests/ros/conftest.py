"""The node of `ros/tfa_ros` on a stub of rclpy, and real services of small maps for it to ask."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rosbags", reason="tests of the ROS 2 node need rosbags; install with pip install 'tfa-vpr[dev]'")

from tests.client.conftest import running_service
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.ros import stub_rclpy
from tests.ros.ros_types import Message, message_class
from tests.service.conftest import FLOATS
from tests.waiting import PATIENCE, wait_until
from tfa.maps import PlaceMap
from tfa.service.settings import ServiceSettings
from tfa_ros.service_client import ServiceClient

PLACES = 14
IMAGES = "/camera/image/compressed"


def degrees(place: int) -> tuple[float, float]:
    return 52.5 + place * 1e-4, 13.4


def build(folder: Path, header: str, rows: list[str]) -> Path:
    for place in range(PLACES):
        photo(folder / "town" / f"{place:02d}.png", place)
    lines = [header, *(f"{place:02d}.png,{row}" for place, row in enumerate(rows))]
    (folder / "positions.csv").write_text("\n".join(lines))
    built = PlaceMap.build(
        folder / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=FLOATS, positions=folder / "positions.csv"
    )
    built.save(folder / "town.tfa")
    return folder / "town.tfa"


@pytest.fixture(scope="session")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map with positions in degrees."""
    rows = [f"{degrees(place)[0]},{degrees(place)[1]}" for place in range(PLACES)]
    return build(tmp_path_factory.mktemp("degrees"), "file,lat,lon", rows)


@pytest.fixture(scope="session")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map with positions in metres, and headings."""
    rows = [f"{30 * place},-5,{10 * place}" for place in range(PLACES)]
    return build(tmp_path_factory.mktemp("metres"), "file,x,y,heading", rows)


@pytest.fixture(scope="session")
def service(town: Path) -> Iterator[str]:
    """The address of a service of the map in degrees."""
    with running_service(town, ServiceSettings(port=0)) as (url, _):
        yield url


@pytest.fixture(scope="package", autouse=True)
def ros() -> Iterator[None]:
    """Modules of ROS are there, and are gone again for tests of other folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stub_rclpy.modules().items():
            patch.setitem(sys.modules, name, module)
        yield
        for name in ("tfa_ros.node", "tfa_ros.assemble"):
            sys.modules.pop(name, None)


class Run:
    """A node that runs, what it has published, and what it logged."""

    def __init__(self, node: Any, transport: Any) -> None:
        self.node, self.transport = node, transport

    def see(self, image: Message, topic: str = IMAGES) -> None:
        self.transport.deliver(topic, image)

    def heard(self, topic: str, count: int = 1) -> list[Any]:
        """What was published there, as soon as there is so much of it."""
        wait_until(lambda: len(self.transport.published[topic]) >= count)
        return list(self.transport.published[topic])

    def diagnose(self) -> dict[str, Any]:
        """What diagnostics say now, by the last word of their names."""
        [(_, tick)] = self.node.timers
        tick()
        return {one.name.split()[-1]: one for one in self.transport.published["/diagnostics"][-1].status}


Start = Callable[..., Run]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(url, k=2)`: a node with these parameters, on a transport that is given or a local one."""
    nodes = []

    def run(url: str, transport: Any = None, **parameters: Any) -> Run:
        from tfa_ros.node import TfaNode

        carrier = transport or stub_rclpy.LocalTransport()
        monkeypatch.setattr(stub_rclpy.Node, "transport", carrier, raising=False)
        # Diagnostics look at the service once, no image is old and no answer late, however slow the machine is.
        slow = {"diagnostics_period": 600, "stale_after": 600, "timeout": 600}
        monkeypatch.setattr(ServiceClient.check_ready, "__defaults__", (PATIENCE,))
        given = {"url": url, "rerank": "always", **slow, **parameters}
        nodes.append(TfaNode(parameter_overrides=[stub_rclpy.Parameter(*one) for one in _parameters(given)]))
        return Run(nodes[-1], carrier)

    stub_rclpy.LOG.lines.clear()
    yield run
    for node in nodes:
        node.destroy_node()


def _parameters(given: dict[str, Any]) -> list[tuple[str, None, Any]]:
    return [(name, None, value) for name, value in given.items()]


def ros_header(number: int = 0, frame: str = "camera") -> Message:
    stamp = message_class("builtin_interfaces/msg/Time")(sec=1_700_000_000, nanosec=number)
    return message_class("std_msgs/msg/Header")(stamp=stamp, frame_id=frame)


def compressed(content: bytes, number: int = 0) -> Message:
    kind = message_class("sensor_msgs/msg/CompressedImage")
    return kind(header=ros_header(number), format="png", data=array.array("B", content))


def raw(pixels: bytes, width: int, height: int, encoding: str, *, step: int = 0, big: int = 0) -> Message:
    return message_class("sensor_msgs/msg/Image")(
        header=ros_header(), height=height, width=width, encoding=encoding, is_bigendian=big,
        step=step or len(pixels) // height, data=array.array("B", pixels),
    )  # fmt: skip

"""Messages over real DDS on loopback, under the names that ROS 2 gives topics and types: cyclonedds behind the stub."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cyclonedds.core import Listener, Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from tests.ros.dds_types import KINDS, from_dds, to_dds
from tests.ros.ros_types import Message
from tests.ros.stub_rclpy import QoSProfile

# Loopback alone, no multicast: others are looked for at the ports of this machine.
CONFIG = """<CycloneDDS><Domain id="any">
<General><Interfaces><NetworkInterface address="127.0.0.1"/></Interfaces>
<AllowMulticast>false</AllowMulticast></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex><Peers><Peer address="127.0.0.1"/></Peers></Discovery>
</Domain></CycloneDDS>"""
WAIT = duration(seconds=60)


def qos_of(profile: QoSProfile) -> Qos:
    """As rmw_cyclonedds_cpp translates it; bytes as in version 1 of the encoding, which is what ROS 2 speaks."""
    reliable = profile.reliability == "reliable"
    return Qos(
        Policy.Reliability.Reliable(WAIT) if reliable else Policy.Reliability.BestEffort,
        Policy.History.KeepLast(profile.depth),
        Policy.DataRepresentation(use_cdrv0_representation=True),
    )


def topic_of(participant: DomainParticipant, name: str, topic: str, profile: QoSProfile) -> Any:
    """The DDS topic of a ROS topic by its full name: `/tfa/matches` is `rt/tfa/matches`."""
    return Topic(participant, f"rt{topic}", KINDS[name], qos=qos_of(profile))


class DdsTransport:
    def __init__(self, domain: int) -> None:
        self._participant = DomainParticipant(domain)
        self._readers: list[Any] = []  # which end with the last reference
        self._closed = threading.Event()

    def publisher(self, kind: type[Message], topic: str, qos: QoSProfile) -> Callable[[Message], None]:
        writer = DataWriter(
            self._participant, topic_of(self._participant, kind._type, topic, qos), qos=qos_of(qos)
        )  # fmt: skip
        return lambda message: None if self._closed.is_set() else writer.write(to_dds(message))

    def subscribe(self, kind: type[Message], topic: str, qos: QoSProfile, callback: Callable[[Any], None]) -> None:
        class Arrived(Listener):
            def on_data_available(self, reader: Any) -> None:
                for sample in reader.take(N=100):
                    if sample.sample_info.valid_data:
                        callback(from_dds(sample, kind._type))

        known = topic_of(self._participant, kind._type, topic, qos)
        self._readers.append(DataReader(self._participant, known, qos=qos_of(qos), listener=Arrived()))

    def close(self) -> None:
        self._closed.set()
        self._readers.clear()

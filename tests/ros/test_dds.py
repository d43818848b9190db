"""The messages in bytes by two writers, and the node over real DDS under the names of ROS 2."""

from __future__ import annotations

import array
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedds", reason="needs cyclonedds, which has no build for every system")

from tests.ros.conftest import compressed, degrees
from tests.ros.dds_transport import CONFIG, DdsTransport
from tests.ros.dds_types import KINDS, to_dds
from tests.ros.ros_types import PACKAGE, SEQUENCE, Message, cdr, fields_of, from_cdr, message_class
from tests.ros.test_node import ADD, LOCALIZE
from tests.service.conftest import picture


def filled(name: str, number: int = 1) -> Message:
    """A message with something else in every field, texts of every length from 0, so that alignment shows."""
    given: dict[str, Any] = {}
    for field, (what, inner) in fields_of(name):
        number += 1
        given[field] = _value(what, inner, number)
    return message_class(name)(**given)


def _value(what: int, inner: Any, number: int) -> Any:
    if what == 2:
        return filled(inner, number)
    if what > 2:
        count = number % 4 if what == SEQUENCE else inner[1]
        values = [_value(*inner[0], number + one) for one in range(count)]
        return array.array("B", values) if inner[0] == (1, ("uint8", 0)) else values
    kind = inner[0]
    values = {
        "bool": bool(number % 2),
        "byte": bytes([number % 4]),
        "string": "ä" * (number % 6),
        "float64": number / 3,
    }
    return values.get(kind, number % 100)


@pytest.mark.parametrize("name", KINDS)
def test_both_writers_write_the_same_bytes(name):
    for start in range(1, 9):
        message = filled(name, start)
        written = cdr(message)
        assert to_dds(message).serialize(use_version_2=False) == written
        assert written[:4] == b"\0\1\0\0"  # little endian, version 1, as ROS 2 has it
        assert KINDS[name].deserialize(written) == to_dds(message)
        assert cdr(from_cdr(written, name)) == written


def test_every_definition_has_a_type_of_dds():
    ours = {f"tfa_msgs/msg/{file.stem}" for file in (PACKAGE / "msg").iterdir()}
    ours |= {
        f"tfa_msgs/srv/{file.stem}_{half}" for file in (PACKAGE / "srv").iterdir() for half in ("Request", "Response")
    }
    assert {name for name in KINDS if name.startswith("tfa_msgs/")} == ours
    assert KINDS["tfa_msgs/msg/Matches"].__idl__.idl_transformed_typename == "tfa_msgs::msg::dds_::Matches_"


def test_what_the_node_publishes_is_the_same_in_both(start, service):
    run = start(service)
    run.see(compressed(picture(5)))
    run.heard("/tfa/fix")
    run.diagnose()
    published = [message for several in run.transport.published.values() for message in several]
    request = LOCALIZE(compressed=compressed(picture(5)))
    published += [request, run.node.services["/tfa/localize"](request), run.node.services["/tfa/add"](ADD())]
    kinds = {message._type for message in published}
    assert kinds >= {"tfa_msgs/msg/Matches", "sensor_msgs/msg/NavSatFix", "diagnostic_msgs/msg/DiagnosticArray"}
    assert len(kinds) == 6
    for message in published:
        assert to_dds(message).serialize(use_version_2=False) == cdr(message)


def test_a_camera_of_another_process_is_answered_over_dds(start, service, monkeypatch, tmp_path):
    monkeypatch.setenv("CYCLONEDDS_URI", CONFIG)
    domain = 1 + os.getpid() % 200  # of its own: others may test on this machine
    (tmp_path / "photo.png").write_bytes(picture(5, 0.9))
    command = [sys.executable, "-m", "tests.ros.dds_peer", str(domain), str(tmp_path / "photo.png")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as peer:
        run = start(service, DdsTransport(domain))
        [(_, diagnose)] = run.node.timers
        while peer.poll() is None:
            diagnose()
            try:
                peer.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert peer.stdout is not None
        told = json.loads(peer.stdout.read())
    assert told["matches"], f"nothing was heard of {told['sent']} photos"
    assert told["matches"][0] == [1700000000, "camera", "town", "05.png", True]
    latitude, longitude, variance = told["fixes"][0]
    assert (latitude, longitude) == pytest.approx(degrees(5), abs=2e-4)
    assert variance > 0
    assert all(len(levels) == 3 for levels in told["levels"])
    assert told["levels"]

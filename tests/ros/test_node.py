"""The node with a stub of rclpy and a real service: images in, messages out."""

from __future__ import annotations

import io
import math
import shutil
import threading

import pytest
from PIL import Image

from tests.client.conftest import running_service
from tests.ros import stub_rclpy
from tests.ros.conftest import compressed, degrees, raw
from tests.ros.ros_types import message_class
from tests.servers import free_port
from tests.service.conftest import picture
from tests.service.test_camera_loops import EveryThird
from tests.waiting import PATIENCE, wait_until
from tfa.client import Client
from tfa.service.settings import ServiceSettings
from tfa_ros.messages import LoopEdges

OK, WARN, ERROR, STALE = (bytes([level]) for level in range(4))
ADD, LOCALIZE = (message_class(f"tfa_msgs/srv/{name}_Request") for name in ("AddPhoto", "Localize"))


def test_an_image_gives_matches_and_a_fix(start, service):
    run = start(service, k=3, camera="cam0")
    assert run.node.services["/tfa/localize"](LOCALIZE(compressed=compressed(picture(6)))).success
    run.see(compressed(picture(5, 0.8), number=7))
    [found] = run.heard("/tfa/matches")
    assert (found.query, found.map_name, found.calibration) == ("1700000000.000000007", "town", "")
    assert found.verdict == "recognized"
    assert found.reason
    assert (found.header.stamp.nanosec, found.header.frame_id) == (7, "camera")
    best, *others = found.matches
    assert (best.image, best.sure, best.has_position, len(others)) == ("05.png", True, True, 2)
    assert (best.latitude, best.longitude) == pytest.approx(degrees(5))
    assert all(math.isnan(value) for value in (best.x, best.y, best.altitude, best.heading))
    [fix] = run.heard("/tfa/fix")
    assert (fix.latitude, fix.longitude) == pytest.approx(degrees(5), abs=2e-4)
    assert math.isnan(fix.altitude)
    # Root mean square of the distance, 8 to 25 m here; half of its square along either axis.
    assert 8 < math.sqrt(fix.position_covariance[0] + fix.position_covariance[4]) < 25
    assert (fix.status.status, fix.position_covariance_type, fix.header.frame_id) == (0, 1, "camera")
    assert not run.transport.published["/tfa/pose"]
    assert [(one["name"], one["seen"]) for one in Client(service).cameras()] == [
        ("cam0", 1)
    ]  # not what a service asked
    told = run.diagnose()
    assert [told[name].level for name in ("service", "images", "answers")] == [OK, OK, OK]
    assert told["answers"].message == "1 of the last 1 answers are sure"
    assert told["service"].hardware_id == service


def test_loops_of_the_camera_are_edges_between_times(start, town, monkeypatch):
    monkeypatch.setattr("tfa.service.cameras.LoopCloser", EveryThird)
    with running_service(town, ServiceSettings(port=0)) as (url, _):
        run = start(url, camera="cam0", loops=True)
        for number in range(6):
            run.see(compressed(picture(number), number=10 + number))
            run.heard("/tfa/matches", number + 1)
        edges = run.heard("/tfa/loops", 2)
    assert all(math.isnan(value) for value in (edges[0].inliers, edges[0].heading, edges[0].scale))  # not known
    assert [(one.header.stamp.nanosec, one.match.stamp.nanosec, one.confidence) for one in edges] == [
        (12, 10, 0.9),
        (15, 10, 0.9),
    ]
    assert edges[0].header.frame_id == "camera"


def test_edges_join_images_of_one_start_of_the_service():
    def answer(node, *pairs):
        seen = {"inliers": 30, "heading": -2.5, "scale": 1.1}
        chain = [{"query": query, "match": match, **seen} for query, match in pairs]
        return {"node": node, **({"loop": {"confidence": 0.8, "chain": chain}} if chain else {})}

    edges, numbers = LoopEdges(), {"confidence": 0.8, "inliers": 30.0, "heading": -2.5, "scale": 1.1}
    assert edges.add("plain", {}) == []  # without loops
    assert [edges.add(f"t{node}", answer(node)) for node in (0, 1, 3)] == [[], [], []]  # the answer to 2 was lost
    assert edges.add("t4", answer(4, (4, 1), (3, 0), (2, 0))) == [("t4", "t1", numbers), ("t3", "t0", numbers)]
    assert edges.add("t5", answer(5, (5, 2), (4, 1))) == []  # 2 is not known, and 4 is joined
    assert edges.add("u0", answer(0)) == []
    assert edges.add("u4", answer(4, (4, 0), (3, 1))) == [("u4", "u0", numbers)]


def test_a_map_in_metres_gives_a_pose(start, hall):
    with running_service(hall, ServiceSettings(port=0)) as (url, _):
        run = start(url, frame_id="floor", compressed=False, image_topic="camera/image_raw")
        with Image.open(io.BytesIO(picture(5))) as image:
            blue_first = Image.merge("RGB", image.split()[::-1]).tobytes()
        run.see(raw(blue_first, *image.size, "bgr8"), "/camera/image_raw")
        [stamped] = run.heard("/tfa/pose")
    assert stamped.header.frame_id == "floor"
    place, turn = stamped.pose.pose.position, stamped.pose.pose.orientation
    assert (place.x, place.y, place.z) == pytest.approx((150, -5, 0), abs=30)
    assert 2 * math.atan2(turn.z, turn.w) == pytest.approx(math.radians(90 - 50))  # 50° from north, to the right
    covariance = stamped.pose.covariance
    assert covariance[0] == covariance[7] > 50
    assert covariance[14] == 1e6
    assert run.transport.published["/tfa/matches"][0].matches[0].image == "05.png"  # colours were not swapped
    assert not run.transport.published["/tfa/fix"]


def test_unsure_answers_give_no_position(start, service):
    run = start(service, rerank="never")
    for number in range(20):
        run.see(compressed(picture(5), number))
        run.heard("/tfa/matches", number + 1)
    assert [one.matches[0].image for one in run.transport.published["/tfa/matches"]] == ["05.png"] * 20
    assert not run.transport.published["/tfa/fix"]
    told = run.diagnose()["answers"]
    assert (told.level, told.message.split(";")[0]) == (WARN, "none of the last 20 answers is sure")
    elsewhere = start(service)
    elsewhere.see(compressed(picture(99)))  # verified, with a place of its own, and not of the map
    assert not elsewhere.heard("/tfa/matches")[0].matches[0].sure
    found = elsewhere.node.services["/tfa/localize"](LOCALIZE(compressed=compressed(picture(99))))
    assert (found.sure, found.has_place) == (False, True)
    elsewhere.diagnose()
    assert set(elsewhere.transport.published) == {"/tfa/matches", "/diagnostics"}
    doubtful = start(service, min_confidence=1.0)
    doubtful.see(compressed(picture(5)))
    assert doubtful.heard("/tfa/matches")[0].matches == []


def test_the_newest_image_replaces_those_that_wait(start, service):
    run = start(service)
    images = [compressed(picture(number % 14), number) for number in range(30)]
    for image in images:
        run.see(image)
    wait_until(lambda: run.heard("/tfa/matches")[-1].header.stamp.nanosec == 29)
    answered = len(run.transport.published["/tfa/matches"])
    values = {one.key: int(one.value) for one in run.diagnose()["images"].values}
    assert answered < 30
    assert values == {"received": 30, "dropped for newer ones": 30 - answered, "not readable": 0}


def test_a_service_that_was_away_is_asked_again(start, town, monkeypatch):
    monkeypatch.setattr("tfa_ros.node.AWAY_PAUSE", 0.05)
    port = free_port()
    run = start(f"http://127.0.0.1:{port}", stale_after=0.2, diagnostics_period=0.05)
    run.see(compressed(picture(3), 1))
    wait_until(lambda: "warning" in dict(stub_rclpy.LOG.lines))
    told = run.diagnose()
    assert told["service"].level == WARN
    assert "is tfa serve running there?" in told["service"].message
    with running_service(town, ServiceSettings(port=port)):
        assert run.heard("/tfa/matches")[0].matches[0].image == "03.png"  # the image that waited
        wait_until(lambda: run.diagnose()["service"].level == OK)
    wait_until(lambda: run.diagnose()["service"].level == WARN)  # asked without any image
    run.see(compressed(picture(4), 2))
    wait_until(lambda: run.diagnose()["images"].level == STALE)
    with running_service(town, ServiceSettings(port=port)):
        assert run.heard("/tfa/matches", 2)[1].matches[0].image == "04.png"


def test_bad_images_are_left_out(start, service):
    run = start(service)
    for number, content in enumerate((b"", b"no picture", picture(3)[:200])):
        run.see(compressed(content, number))
        wait_until(lambda: len(stub_rclpy.LOG.lines) > number)  # noqa: B023
    told = run.diagnose()
    assert told["images"].level == ERROR
    assert "image file is truncated" in told["images"].message
    assert told["service"].level == OK
    run.see(compressed(picture(3), 9))
    assert [one.header.stamp.nanosec for one in run.heard("/tfa/matches")] == [9]
    assert run.diagnose()["images"].level == OK


def test_photos_are_localized_and_added_by_services(start, town, monkeypatch, tmp_path):
    copy = shutil.copytree(town, tmp_path / "town.tfa")
    with running_service(copy, ServiceSettings(port=0, read_api_key="r" * 16, edit_api_key="e" * 16)) as (url, _):
        for api_key, said in (("", "API key missing"), ("r" * 16, "may not edit")):
            monkeypatch.setenv("MY_API_KEY", api_key)
            run = start(url, api_key_variable="MY_API_KEY")
            refused = run.node.services["/tfa/add"](ADD(compressed=compressed(picture(40)), name="new.png"))
            assert (refused.success, refused.id, refused.revision) == (False, -1, -1)
            assert said in refused.message
        monkeypatch.setenv("MY_API_KEY", "e" * 16)
        run = start(url, api_key_variable="MY_API_KEY")
        add, localize = run.node.services["/tfa/add"], run.node.services["/tfa/localize"]
        where = {"position": ADD.DEGREES, "latitude": 52.6, "longitude": 13.5, "has_heading": True, "heading": 90.0}
        added = add(ADD(compressed=compressed(picture(40)), name="new.png", **where))
        assert (added.success, added.id) == (True, 14), added.message
        assert added.message.startswith("new.png added as image 14.")
        again = add(ADD(compressed=compressed(picture(40)), name="new.png"))
        assert (again.success, again.id) == (False, -1)
        assert again.message.startswith("new.png not added: ")
        found = localize(LOCALIZE(compressed=compressed(picture(40, 0.9), number=3)))
        assert (found.success, found.sure, found.has_place) == (True, True, True)
        assert (found.matches.matches[0].image, found.matches.matches[0].heading) == ("new.png", 90.0)
        assert (found.latitude, found.longitude) == pytest.approx((52.6, 13.5))
        assert found.radius > 0
        assert math.isnan(found.x)
        for request, said in ((LOCALIZE(), "has no image"), (LOCALIZE(compressed=compressed(b"x")), "photo")):
            nothing = localize(request)
            assert not nothing.success
            assert said in nothing.message
        strange = add(ADD(compressed=compressed(picture(41)), position=3))
        assert strange.message == "position is 3, must be 0 (none), 1 (degrees) or 2 (meters)"


def test_a_wrong_token_is_an_error_that_readiness_does_not_hide(start, town, monkeypatch):
    monkeypatch.setenv("TFA_API_KEY", "wrong")
    with running_service(town, ServiceSettings(port=0, read_api_key="r" * 16)) as (url, _):
        run = start(url, diagnostics_period=0.05)
        assert run.diagnose()["service"].message == "ready"
        run.see(compressed(picture(3)))
        wait_until(lambda: bool(stub_rclpy.LOG.lines))
        wait_until(lambda: run.node._health.quiet(0.05))  # then the service is looked at again, and is ready
        told = run.diagnose()["service"]
        assert (told.level, "API key not valid" in told.message) == (ERROR, True)
        assert "wrong" not in str(stub_rclpy.LOG.lines)


def test_the_program_runs_until_it_is_shut_down_and_refuses_bad_parameters(service, monkeypatch):
    from tfa_ros.node import main

    monkeypatch.setattr(stub_rclpy.Node, "transport", stub_rclpy.LocalTransport(), raising=False)
    monkeypatch.setattr(stub_rclpy.Node, "overrides", {"url": service})
    stub_rclpy.Executor.spinning.clear()
    waiting = threading.Thread(
        target=lambda: stub_rclpy.Executor.spinning.wait(PATIENCE) and stub_rclpy.Executor.stopped.set()
    )
    waiting.start()
    assert main() == 0
    waiting.join()
    for name, value, said in (
        ("url", "town.tfa", "not a service URL"),
        ("k", 0, "1 to 1000"),
        ("rate", "2", "a number"),
    ):
        monkeypatch.setattr(stub_rclpy.Node, "overrides", {name: value})
        assert main() == 1
        level, sentence = stub_rclpy.LOG.lines[-1]
        assert level == "fatal"
        assert sentence.startswith(f"parameter {name}")
        assert said in sentence

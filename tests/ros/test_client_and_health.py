"""The standard-library client, diagnostics and position messages."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.ros.ros_types import message_class
from tfa_ros.health import ERROR, OK, STALE, WARN, Health
from tfa_ros.messages import fix_fields, match_fields, place_of, pose_fields
from tfa_ros.parameters import PARAMETERS, BadParameter, checked, query_fields
from tfa_ros.service_client import ServiceAway, ServiceBusy, ServiceClient, ServiceRefusal

DEFAULTS = {one.name: one.default for one in PARAMETERS}


@pytest.fixture
def server():
    """A server that answers as it is told, and remembers what it was asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.server.asked.append((self.path, self.headers.get("Authorization"), body))
            status, headers, content = self.server.reply
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked, running.url = [], f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_question_is_a_form_below_the_path_of_a_proxy(server):
    server.reply = (200, {}, b'{"hits": []}')
    client = ServiceClient(f"{server.url}/places/", "secret", "my town")
    assert client.query('a"b.jpg', b"\r\n--bytes", {"k": "3"}) == {"hits": []}
    [(path, token, body)] = server.asked
    assert (path, token) == ("/places/v1/query?map=my+town", "Bearer secret")
    boundary = body.split(b"\r\n")[0]
    field, file = body.removeprefix(boundary).removesuffix(boundary + b"--\r\n").split(boundary)
    assert field == b'\r\nContent-Disposition: form-data; name="k"\r\n\r\n3\r\n'
    assert b'name="image"; filename="a%22b.jpg"' in file
    assert file.endswith(b"\r\n\r\n\r\n--bytes\r\n")


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ((503, {"Retry-After": "7"}, b'{"error": "256 queries wait"}'), ServiceBusy, "256 queries wait"),
        ((429, {"Retry-After": "999"}, b'{"error": "too often"}'), ServiceBusy, "too often"),
        ((503, {}, b'{"status": "loading"}'), ServiceBusy, "the service is loading"),
        ((401, {}, b'{"error": "no token"}'), ServiceRefusal, "no token"),
        ((422, {}, b'{"error": "damaged"}'), ServiceRefusal, "damaged"),
        ((200, {}, b"<html>"), ServiceRefusal, "returned 200 OK, which is not a response of tfa serve"),
        ((302, {"Location": "/"}, b""), ServiceRefusal, "returned 302"),
        ((200, {"Content-Length": "99"}, b"{}"), ServiceAway, "does not answer"),
    ],
)
def test_other_replies_say_what_to_do(server, reply, kind, said):
    server.reply = reply
    with pytest.raises(kind, match=said) as raised:
        ServiceClient(server.url).query("a", b"b", {})
    if kind is ServiceBusy:
        assert raised.value.pause == {"7": 7.0, "999": 30.0}.get(reply[1].get("Retry-After"), 1.0)
    if kind is ServiceRefusal:
        assert raised.value.is_of_the_photo == (reply[0] == 422)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://here", "http://", "town.tfa"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="not a service URL"):
        ServiceClient(url)


def test_health_by_what_happened():
    now = [100.0]
    health = Health(stale_after=5.0, clock=lambda: now[0])

    def levels(came=0, replaced=0):
        return [one.level for one in health.statuses(came, replaced)]

    assert levels() == [WARN, OK, OK]  # not asked yet
    now[0] += 5
    assert levels() == [WARN, STALE, OK]
    health.is_ready()
    health.image_came()
    assert levels(1) == [OK, OK, OK]
    health.refused("wrong token")
    health.is_ready()  # which does not show that it answers us
    assert levels(1) == [ERROR, OK, OK]
    health.bad_photo("damaged")
    assert levels(1) == [ERROR, ERROR, OK]
    for number in range(4):
        health.answered(0.1 * (number + 1), number == 0, 0.5, "probable: one place leads")
    assert levels(1) == [OK, OK, OK]
    service, images, answers = health.statuses(9, 4)
    assert service.values == {"no answer": "0", "too busy": "0", "latency, last (s)": "0.400",
                              "latency, median (s)": "0.300", "latency, longest (s)": "0.400"}  # fmt: skip
    assert images.values == {"received": "9", "dropped for newer ones": "4", "not readable": "1"}
    assert answers.values == {"answers": "4", "sure share": "0.25", "confidence, last": "0.50",
                              "verdict, last": "probable: one place leads"}  # fmt: skip
    assert not health.quiet(1.0)
    now[0] += 1
    assert health.quiet(1.0)
    health.busy("loading")
    health.away("gone")
    assert levels(1)[0] == WARN


def test_covariances_are_of_the_radius():
    place = {"position": {"lat": 1.0, "lon": 2.0, "alt": 30.0}, "radius": 10.0}
    fix = fix_fields(place)
    assert fix["position_covariance"] == [50.0, 0, 0, 0, 50.0, 0, 0, 0, 50.0]
    assert fix["altitude"] == 30.0
    pose = pose_fields({"position": {"x": 1, "y": 2}, "radius": 2}, {"position": {"x": 0, "y": 0, "heading": 0.0}})
    assert pose["position"] == (1.0, 2.0, 0.0)
    assert pose["orientation"] == pytest.approx((0, 0, math.sqrt(0.5), math.sqrt(0.5)))  # north: a quarter turn
    assert pose["covariance"][::7] == pytest.approx([2, 2, 1e6, math.pi**2 / 3, math.pi**2 / 3, math.radians(30) ** 2])
    assert sum(1 for value in pose["covariance"] if value) == 6
    unknown = pose_fields({"position": {"x": 1, "y": 2}, "radius": 2}, None)
    assert unknown["covariance"][35] == pytest.approx(math.pi**2 / 3)
    assert unknown["orientation"] == (0.0, 0.0, 0.0, 1.0)
    # Of services that fuse nothing, and of answers that are not sure, there is no place.
    assert place_of({"sure": True}) is place_of({"sure": False, "place": place}) is None


def test_fields_are_of_the_types_that_ros_wants():
    hit = json.loads('{"image": "a", "score": 1, "confidence": 1, "sure": true, "position": {"x": 3, "y": -4}}')
    types = message_class("tfa_msgs/msg/Match").get_fields_and_field_types()
    fields = match_fields(hit, types)
    assert {name: type(value) for name, value in fields.items()} == {
        "image": str, "sure": bool, "has_position": bool,
        **dict.fromkeys(("score", "confidence", "latitude", "longitude", "altitude", "x", "y", "heading"), float),
    }  # fmt: skip
    assert (fields["x"], fields["y"]) == (3.0, -4.0)
    assert not match_fields({**hit, "position": None}, types)["has_position"]
    older = match_fields({"image": "a", "position": None}, types)  # a service that sends fewer fields
    assert math.isnan(older["score"])
    assert older["sure"] is False


def test_parameters_are_checked_and_become_fields():
    values = checked({**DEFAULTS, "rate": 2, "camera": "cam0", "sequence": True, "calibration": "night"})
    assert (values["rate"], type(values["rate"])) == (2.0, float)
    asked = query_fields(values, of_the_camera=True)
    assert asked == {"k": "5", "min_confidence": "0.0", "calibration": "night", "camera": "cam0", "sequence": "true"}
    assert set(query_fields(values, of_the_camera=False)) == {"k", "min_confidence", "calibration"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"k": True}, "k is True, must be a whole number"),
        ({"camera": 5}, "camera is 5, must be text, in quotes"),
        ({"camera": "a b"}, "letters, digits"),
        ({"sequence": True}, "sequence needs a camera"),
        ({"loops": True}, "loops needs a camera"),
        ({"rerank": "yes"}, "must be one of auto, always, never"),
        ({"min_confidence": 1.5}, "must be 0 to 1"),
        ({"rate": math.nan}, "rate is nan"),
        ({"image_topic": ""}, "image_topic is empty"),
        ({"compressed": "true"}, "must be true or false"),
    ],
)
def test_parameters_that_cannot_be_are_refused(given, said):
    with pytest.raises(BadParameter, match=said):
        checked({**DEFAULTS, **given})

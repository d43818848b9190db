"""A recording of answers as rosbags, mcap-ros2-support and rerun read it."""

from __future__ import annotations

import io
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.exports.answers.conftest import METRES, TAKEN
from tfa.errors import BadImage
from tfa.exports import ExportContext, write_answers
from tfa.exports.answers.recording import DEFINITIONS
from tfa.photos.positions import to_degrees

highlevel = pytest.importorskip("rosbags.highlevel", reason="rosbags is not installed: no recording was written")
reader = pytest.importorskip("mcap_ros2.reader", reason="mcap-ros2-support is not installed: it read no recording")
MESSAGES = Path(__file__).parents[3] / "ros" / "tfa_msgs" / "msg"
CONTEXT = ExportContext(map_name="town.tfa", calibration="night", milliseconds=12.5)
SECOND = 10**9


def by_rosbags(path):
    """(time, topic, message)."""
    with highlevel.AnyReader([path]) as bag:
        return [(time, one.topic, bag.deserialize(data, one.msgtype)) for one, time, data in bag.messages()]


def by_mcap(path):
    return [(one.log_time_ns, one.channel.topic, one.ros_msg) for one in reader.read_ros2_messages(str(path))]


def of(topic, messages):
    return [message for _, own, message in messages if own == topic]


def pairs(diagnostics):
    return {one.key: one.value for one in diagnostics.status[0].values}


@pytest.mark.parametrize("read", [by_rosbags, by_mcap])
def test_others_read_what_was_answered(answers, tmp_path, read):
    assert write_answers(tmp_path / "a.mcap", answers, CONTEXT) == 3
    messages = read(tmp_path / "a.mcap")
    # Photos without a time stand a second after the one before them.
    times = [TAKEN, TAKEN + SECOND, TAKEN + 2 * SECOND, TAKEN + 3 * SECOND, TAKEN + 7 * SECOND]
    found = of("/tfa/matches", messages)
    assert [time for time, topic, _ in messages if topic == "/tfa/matches"] == times
    assert [one.header.stamp.sec * SECOND + one.header.stamp.nanosec for one in found] == times
    assert (found[0].query, found[0].map_name, found[0].calibration) == (answers[0].query, "town.tfa", "night")
    verdicts = [(one.verdict, one.reason) for one in found]
    assert verdicts[0] == ("recognized", "its patches match")
    assert verdicts[1][0] == "not recognized"
    assert found[1].query.endswith('ä, "b"\\n.png')
    first, second = found[0].matches
    assert (first.image, first.score, first.confidence, first.sure, first.has_position) == (
        "map/3.png", 1.5, 0.97, True, True,
    )  # fmt: skip
    assert (first.latitude, first.longitude, first.altitude, first.heading) == (52.5, 13.25, 34.5, 120.0)
    assert math.isnan(first.x)
    assert not second.has_position
    assert math.isnan(second.latitude)
    assert [len(one.matches) for one in found] == [2, 1, 0, 0, 2]
    fixes = of("/tfa/fix", messages)
    assert [(one.latitude, one.longitude, one.altitude) for one in fixes] == [(52.5 + 1e-5, 13.25 - 1e-5, 34.5)] * 2
    variance = 12.5**2 / 2
    assert list(fixes[0].position_covariance) == [variance, 0, 0, 0, variance, 0, 0, 0, 1e6]
    assert of("/tfa/pose", messages) == []
    told = of("/tfa/diagnostics", messages)
    assert [int(one.status[0].level) for one in told] == [0, 1, 2, 1, 0]
    assert told[0].status[0].message == "recognized: its patches match"
    assert told[1].status[0].message == "not recognized: nothing was found"
    assert pairs(told[3])["lost"] == "0.75"
    assert pairs(told[0]) | {"query": ""} == {
        "query": "", "verdict": "recognized", "reason": "its patches match",
        "confidence": "0.97", "sure": "true", "reranked": "true", "radius": "12.5", "milliseconds": "12.5",
        "time": "known", "expected_recall": str(told_recall(answers)[0]),
        "expected_recall_low": str(told_recall(answers)[1]), "expected_recall_high": str(told_recall(answers)[2]),
    }  # fmt: skip
    assert pairs(told[1])["time"] == "assumed"


def told_recall(answers):
    from tfa.maps.confidence import estimate_answer_recall

    expected = estimate_answer_recall(answers)
    return expected.share, expected.low, expected.high


def test_photos_are_copied_as_they_are_or_become_jpeg(answers, tmp_path):
    write_answers(tmp_path / "a.mcap", answers)
    found = of("/tfa/image/compressed", by_rosbags(tmp_path / "a.mcap"))
    assert [one.format for one in found] == ["jpeg", "png", "jpeg", "jpeg"]  # not of the one that cannot be read
    for row, message in zip((0, 1, 4), (found[0], found[1], found[3]), strict=True):
        assert bytes(message.data) == Path(answers[row].query).read_bytes()
    with Image.open(io.BytesIO(bytes(found[2].data))) as picture:
        assert (picture.format, picture.size) == ("JPEG", (40, 30))
    write_answers(tmp_path / "b.mcap", answers, ExportContext(images=False))
    assert of("/tfa/image/compressed", by_rosbags(tmp_path / "b.mcap")) == []
    given = [Path(answers[0].query).read_bytes(), None, None, None, Image.new("RGB", (4, 3))]
    write_answers(tmp_path / "c.mcap", answers, ExportContext(photos=iter(given)))
    assert [one.format for one in of("/tfa/image/compressed", by_rosbags(tmp_path / "c.mcap"))] == ["jpeg", "png"]
    (tmp_path / "d.webp").write_bytes(b"nonsense")
    with pytest.raises(BadImage, match=r"--set out\.images=no leaves them out"):
        write_answers(tmp_path / "d.mcap", answers)
    assert not (tmp_path / "d.mcap").exists()


def test_metres_are_poses_and_with_a_zone_fixes_too(in_metres, tmp_path):
    write_answers(tmp_path / "a.mcap", in_metres, ExportContext(times=[None] * 5))
    messages = by_rosbags(tmp_path / "a.mcap")
    assert [time for time, topic, _ in messages if topic == "/tfa/matches"] == [row * SECOND for row in range(5)]
    pose, _ = of("/tfa/pose", messages)
    assert of("/tfa/fix", messages) == []
    assert pose.header.frame_id == "map"
    assert pose.pose.pose.position.x == METRES.x + 1e-5
    assert pose.pose.pose.position.z == 34.5
    turn = pose.pose.pose.orientation
    # 120 degrees clockwise from north is 30 clockwise from east, where ROS counts from.
    assert math.degrees(2 * math.atan2(turn.z, turn.w)) == pytest.approx(-30)
    diagonal = pose.pose.covariance.reshape(6, 6).diagonal()
    assert list(diagonal[:3]) == [12.5**2 / 2, 12.5**2 / 2, 1e6]
    assert diagonal[5] == pytest.approx(math.radians(30) ** 2)
    # A camera's clock may stand anywhere; what ROS cannot count is taken for no time.
    write_answers(
        tmp_path / "b.mcap", in_metres, ExportContext(utm="33N", times=[-5, 2**62, None, 7, None], images=False)
    )
    messages = by_rosbags(tmp_path / "b.mcap")
    assert [time for time, topic, _ in messages if topic == "/tfa/matches"] == [0, 0, 0, 7, SECOND + 7]
    [there] = to_degrees([in_metres[0].place.position], "33N")
    assert len(of("/tfa/pose", messages)) == 2
    assert of("/tfa/fix", messages)[0].latitude == there.lat
    assert of("/tfa/matches", messages)[0].matches[0].x == METRES.x


def test_our_definitions_are_those_of_the_ros_package():
    from rosbags.typesys import get_types_from_msg

    for name, definition in DEFINITIONS.items():
        text = (MESSAGES / f"{name.rpartition('/')[2]}.msg").read_text("utf-8")
        assert get_types_from_msg(text, name) == get_types_from_msg(definition, name)


def test_rerun_converts_it(in_metres, tmp_path):
    beside = Path(sys.executable).parent
    rerun = shutil.which("rerun", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if rerun is None:
        pytest.skip("rerun is not installed (pip install rerun-sdk, 500 MB): it converted no recording")
    own = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    subprocess.run([rerun, "analytics", "disable"], env=own, capture_output=True, check=True)
    write_answers(tmp_path / "a.mcap", in_metres, ExportContext(utm="33N"))
    command = [rerun, "mcap", "convert", "a.mcap", "-o", "a.rrd"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [rerun, "rrd", "print", "a.rrd"]
    told = subprocess.run(shown, env=own, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    for rows, what in (
        (4, "/tfa/image/compressed - data columns: [CoordinateFrame:frame EncodedImage:blob]"),
        (2, "/tfa/fix - data columns: [CoordinateFrame:frame GeoPoints:positions"),
        (2, "/tfa/pose - data columns: ["),
        (5, "/tfa/matches - data columns: [tfa_msgs.msg.Matches:message]"),
        (5, "/tfa/diagnostics - data columns: [diagnostic_msgs.msg.DiagnosticArray:message]"),
    ):
        assert [line for line in told.splitlines() if f"with {rows} rows" in line and what in line], what

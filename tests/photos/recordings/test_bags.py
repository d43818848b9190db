"""Bags of all three formats: frames, positions and errors."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.photos.recordings.made import FIXES, IMAGES, ODOMETRY, START, Messages, drive_rows, jpeg, write_bag
from tfa.errors import BadImage, BadRecording, BadSpec, MissingExtra, NoImages
from tfa.photos.images import find_images
from tfa.photos.positions import read_positions_csv
from tfa.photos.recordings.frames import FrameSpec, extract_frames, open_recording
from tfa.types import Position

ROS2 = Messages()


def at(tenths: float) -> int:
    return START + int(tenths * 10**8)


def images(count: int = 3, clock: int = 0) -> list:
    return [(at(n), IMAGES, ROS2.compressed(at(n) + clock, jpeg(n))) for n in range(count)]


@pytest.mark.parametrize("name", ["drive.bag", "drive.db3", "drive.mcap", "folder"])
def test_every_form_gives_the_same_photos_at_the_same_places(tmp_path, name):
    rows = drive_rows(20, ros1=name.endswith("bag"))
    bag = write_bag(tmp_path / ("drive.db3" if name == "folder" else name), rows)
    found = extract_frames(bag.parent if name == "folder" else bag, tmp_path / "out", FrameSpec(every=4))
    assert [photo.name for photo in found.photos] == [
        f"{1_700_000_000 + number // 10}.{number % 10}00000000.jpg" for number in range(0, 20, 4)
    ]
    # Byte for byte as they were recorded, although the fix of a frame may come after it.
    assert [photo.read_bytes() for photo in found.photos] == [jpeg(number) for number in range(0, 20, 4)]
    assert [found.time_ns(photo) for photo in found.photos] == [at(number) for number in range(0, 20, 4)]
    places = read_positions_csv(found.positions)
    assert [places[photo.name].lat for photo in found.photos] == pytest.approx(
        [52 + min(number, 15) * 1e-5 for number in range(0, 20, 4)], abs=1e-9
    )  # after the last fix it is taken to stay for a second
    assert {place.alt for place in places.values()} == {40.0}
    assert found.notes[0] == f"{'drive' if name == 'folder' else name}: 5 of 20 frames kept, one in 4"


def test_one_topic_is_taken_and_several_are_listed(tmp_path):
    rows = [*images(), *((at(n), "/left", ROS2.compressed(at(n), jpeg(n))) for n in range(2))]
    rows += [(at(n), topic, ROS2.fix(at(n), 1.0, 2.0)) for n in range(2) for topic in (FIXES, "/other")]
    bag = write_bag(tmp_path / "two.mcap", sorted(rows, key=lambda row: row[0]))
    told = r"has 2 topics with images; choose one with --topic \(tfa query: --set frames.topic=NAME\):\n"
    told += "  /camera/image/compressed .sensor_msgs/msg/Compressed"
    for given, complaint in {
        (): rf"{told}Image, 3.\n  /left .*, 2",
        ("/left",): "topics with positions; choose one with --position-topic, or --position-topic none .tfa build",
        ("/right",): r"has no topic /right; its topics are:\n  /camera",
        (FIXES,): "has type sensor_msgs/msg/NavSatFix, must be sensor_msgs/msg/CompressedImage or .*are:\n  /camera",
        ("/left", "/left"): "must be sensor_msgs/msg/NavSatFix or nav_msgs/msg/Odometry",
    }.items():
        with pytest.raises(BadRecording, match=complaint):
            extract_frames(
                bag, tmp_path / "out", FrameSpec(**dict(zip(("topic", "position_topic"), given, strict=False)))
            )
    assert not (tmp_path / "out").exists()
    found = extract_frames(bag, tmp_path / "out", FrameSpec(topic="/left", position_topic="none", every=1))
    assert (len(found.photos), found.positions) == (2, None)
    bare = write_bag(tmp_path / "bare.mcap", [(at(0), FIXES, ROS2.fix(at(0), 1.0, 2.0))])
    with pytest.raises(
        BadRecording, match=r"has 1 topic, none with images .*\n  /gps/fix .sensor_msgs/msg/NavSatFix, 1"
    ):
        extract_frames(bare, tmp_path / "other")


def test_what_is_damaged_is_refused_in_one_sentence(tmp_path):
    ros1, mcap = write_bag(tmp_path / "a.bag", drive_rows(4, ros1=True)), write_bag(tmp_path / "b.mcap", drive_rows(4))
    db3 = write_bag(tmp_path / "c.db3", drive_rows(4))
    unindexed = bytearray(ros1.read_bytes())
    where = unindexed.index(b"index_pos=") + 10
    unindexed[where : where + 8] = bytes(8)
    spoilt = bytearray(mcap.read_bytes())
    second = spoilt.index(b"\xff\xd8\xff", spoilt.index(b"\xff\xd8\xff") + 1)
    spoilt[second - 100 : second] = b"\xff" * 100  # what says how long its message is
    cases = {
        "unindexed.bag": (bytes(unindexed), "not indexed.*rosbag reindex unindexed.bag"),
        "cut.bag": (ros1.read_bytes()[:-400], "cut.bag cannot be read"),
        "cut.mcap": (mcap.read_bytes()[:-100], "mcap recover cut.mcap"),
        "short.mcap": (mcap.read_bytes()[:12], "cannot be read"),
        "spoilt.mcap": (bytes(spoilt), "spoilt.mcap cannot be read: it is damaged"),
        "cut.db3": (db3.read_bytes()[:5000], "cut.db3 cannot be read"),
        "empty.bag": (b"", "empty.bag is empty"),
        "text.mcap": (b"no recording at all", "text.mcap is not a mcap file"),
        "other.bag": (mcap.read_bytes(), "has the content of a .mcap file; rename it to other.mcap"),
        "photo.tif": (b"II*\0 and so on", "is not a recording; pass a ROS 1 bag"),
    }
    for name, (content, complaint) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadRecording, match=complaint):
            extract_frames(tmp_path / name, tmp_path / "out")
        assert not (tmp_path / "out").exists(), name
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []  # nothing half-written is left
    with pytest.raises(BadRecording, match=r"gone.bag cannot be read"):
        extract_frames(tmp_path / "gone.bag", tmp_path / "out")
    with pytest.raises(NoImages, match=r"extract photos first with: tfa frames a.bag"):
        find_images(ros1)


def test_positions_of_all_kinds_follow_the_clock(tmp_path):
    turn = math.pi / 2
    rows = [
        *images(12),
        *((at(n), ODOMETRY, ROS2.odometry(at(n), n * 1.0, 2.0, 3.0, n * turn / 10)) for n in range(0, 12, 10)),
        *((at(n), "/pose", ROS2.pose_stamped(at(n), n * 1.0, 2.0)) for n in range(0, 12, 10)),
    ]
    bag = write_bag(tmp_path / "a.mcap", sorted(rows, key=lambda row: row[0]))
    with open_recording(bag, position_topic=ODOMETRY) as recording:
        placed = [frame.position for frame in recording.frames()]
    assert placed[0] == Position(x=0.0, y=2.0, alt=3.0, heading=90.0)  # along x is east
    assert placed[5].pair == pytest.approx((5.0, 2.0))
    assert placed[5].heading == pytest.approx(45.0)
    assert placed[10].heading % 360 == pytest.approx(0.0, abs=1e-9)
    with open_recording(bag, position_topic="/pose") as recording:  # its rotation is not set
        assert [frame.position for frame in recording.frames()][5] == Position(x=5.0, y=2.0, alt=0.0)


def test_a_fix_that_is_none_and_a_gap_place_no_frame(tmp_path):
    fixes = [
        (0, {}),
        (1, {"status": -1}),
        (2, {"lat": math.nan}),
        (3, {"lat": 0.0, "lon": 0.0}),
        (4, {"deviation": 300}),
    ]
    fixes += [(5, {"deviation": 3}), (200, {})]
    rows = [(at(n), FIXES, ROS2.fix(at(n), **{"lat": 10.0 + min(n, 60), "lon": 20.0, **given})) for n, given in fixes]
    rows += [(at(n), IMAGES, ROS2.compressed(at(n), jpeg(1))) for n in (0, 2.5, 14, 100, 205, 300)]
    bag = write_bag(tmp_path / "a.mcap", sorted(rows, key=lambda row: row[0]))
    with open_recording(bag) as recording:
        assert recording.notes == ["4 messages of /gps/fix without a fix"]
        placed = [frame.position for frame in recording.frames()]
    assert [None if one is None else one.lat for one in placed] == [10.0, 12.5, None, None, 70.0, None]


@pytest.mark.parametrize(("clock", "told"), [(0, 0), (-(10**15), 1)])
def test_stamps_of_two_clocks_are_not_compared(tmp_path, clock, told):
    """A camera that counts from its start, beside a receiver in UTC: what both share is when they were recorded."""
    rows = [*images(3, clock), *((at(n), FIXES, ROS2.fix(at(n), 50.0 + n, 8.0)) for n in range(3))]
    bag = write_bag(tmp_path / "a.mcap", sorted(rows, key=lambda row: row[0]))
    with open_recording(bag) as recording:
        frames = list(recording.frames())
        assert len(recording.notes) == told
    assert [(frame.time_ns, frame.position.lat) for frame in frames] == [(at(n), 50.0 + n) for n in range(3)]


def test_a_folder_is_used_again_or_left_alone(tmp_path):
    bag = write_bag(tmp_path / "a.mcap", drive_rows(20))
    out = tmp_path / "out"
    first = extract_frames(bag, out, FrameSpec(every="1s"))
    changed = first.photos[0].stat().st_mtime_ns
    assert extract_frames(bag, out, FrameSpec(every="1s")).notes[-1] == f"reusing the frames in {out}"
    with pytest.raises(BadSpec, match="contains other frames; choose another folder, or replace it with --force"):
        extract_frames(bag, out, FrameSpec(every=5))
    assert first.photos[0].stat().st_mtime_ns == changed
    assert len(extract_frames(bag, out, FrameSpec(every=5), overwrite=True).photos) == 4
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("mine")
    with pytest.raises(BadSpec, match=r"exists and is not empty; choose another folder$"):
        extract_frames(bag, tmp_path / "mine", overwrite=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "mine", "out"]


def test_frames_that_cannot_be_read_are_refused_or_left_out(tmp_path):
    rows = [*images(2), (at(3), IMAGES, ROS2.compressed(at(3), b"\0\0\0\1h264", "h264"))]
    bag = write_bag(tmp_path / "a.mcap", rows)
    with pytest.raises(BadImage, match=r"1700000000.300000000: a CompressedImage of format 'h264'.*--skip-bad"):
        extract_frames(bag, tmp_path / "out", FrameSpec(every=1))
    found = extract_frames(bag, tmp_path / "out", FrameSpec(every=1), skip_bad=True)
    assert len(found.photos) == 2
    assert found.skipped[0][0] == f"{bag}@1700000000.300000000"


def test_several_recordings_have_a_folder_each(tmp_path):
    one, other = (write_bag(tmp_path / name / "drive.mcap", drive_rows(6)) for name in ("b", "a"))
    found = extract_frames([one, other], tmp_path / "out", FrameSpec(every=5))
    assert [photo.parent.name for photo in found.photos] == ["000-drive", "000-drive", "001-drive", "001-drive"]
    assert list(read_positions_csv(found.positions)) == [
        str(photo.relative_to(tmp_path / "out")) for photo in found.photos
    ]


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    bag = write_bag(tmp_path / "a.bag", drive_rows(2, ros1=True))
    monkeypatch.setitem(sys.modules, "rosbags.rosbag1", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-vpr\[bags\]'"):
        extract_frames(bag, tmp_path / "out")


MEMORY = """
import resource, sys
from tfa.photos.recordings.frames import KeyframeInterval, Keyframes
from tfa.photos.recordings.frames import open_recording
from pathlib import Path
with open_recording(Path(sys.argv[1])) as recording:
    keyframes, kept = Keyframes(KeyframeInterval.parse("1m")), 0
    for number, frame in enumerate(recording.frames()):
        if keyframes.keeps(frame):
            kept += len(frame.picture().to_bytes()) > 0
        if number in (999, 9_999):
            print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_stays_flat_over_ten_thousand_frames(tmp_path):
    made, content = Messages(), jpeg(1) + bytes(4000)
    rows = [(at(n), IMAGES, made.compressed(at(n), content)) for n in range(10_000)]
    rows += [(at(n), FIXES, made.fix(at(n), 50 + n * 1e-5, 8.0)) for n in range(0, 10_000, 10)]
    bag = write_bag(tmp_path / "long.mcap", sorted(rows, key=lambda row: row[0]))
    assert bag.stat().st_size > 50_000_000
    told = subprocess.run([sys.executable, "-c", MEMORY, bag], check=True, capture_output=True, text=True).stdout
    (few, early), (many, late) = (map(int, line.split()) for line in told.splitlines())
    assert (few, many) == (1000, 9991)
    assert late - early < 6_000, "kilobytes of a recording of 55 MB"
    shutil.rmtree(Path(bag).parent)

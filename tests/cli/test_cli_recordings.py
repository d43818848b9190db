"""Recordings on the command line: the map of a bag equals that of its photos, and the how-to page runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rosbags.rosbag2 import Reader

from tests.fakes import FakeEncoder, random_image
from tests.photos.recordings.made import FIXES, IMAGES, ROS2, START, Messages, drive_rows, write_bag, write_video
from tests.walkthrough.commands import HOW_TO, follow, steps_of
from tfa.maps import PlaceMap
from tfa.maps.building import passes

GPX = '<gpx><trk><trkseg><trkpt lat="50" lon="8"><time>2025-06-01T12:00:00Z</time></trkpt></trkseg></trk></gpx>'


@pytest.fixture
def drive(fake_encoder: Path) -> Path:
    """A working folder with a bag of 30 frames, 1.1 m apart, and its file name."""
    write_bag(fake_encoder / "made/drive.mcap", drive_rows(30)).rename(fake_encoder / "drive.mcap")
    return fake_encoder


def extracted_by_rosbags(bag: Path, folder: Path) -> None:
    """Every third JPEG of the bag as a file, and where it was taken, by rosbags and nothing of ours."""
    folder.mkdir()
    fixes, rows = {}, ["file,lat,lon,alt"]
    with Reader(bag) as reader:
        for connection, _, raw in reader.messages():
            message = ROS2.deserialize_cdr(raw, connection.msgtype)
            stamp = (message.header.stamp.sec, message.header.stamp.nanosec)
            if connection.topic == FIXES:
                fixes[stamp] = (message.latitude, message.longitude, message.altitude)
            elif stamp[1] % 500_000_000 == 0:  # where there is a fix for each
                (folder / f"{stamp[0]}.{stamp[1]:09d}.jpg").write_bytes(message.data.tobytes())
    rows += [f"{sec}.{ns:09d}.jpg,{lat!r},{lon!r},{alt!r}" for (sec, ns), (lat, lon, alt) in fixes.items()]
    folder.with_suffix(".csv").write_text("\n".join(rows) + "\n")


def test_the_map_of_a_bag_is_that_of_its_photos_bit_for_bit(run, drive):
    built = run("build", "drive.mcap", "--out", "bag.tfa", "--topic", IMAGES, "--every", "5", "--json")
    assert built.exit_code == 0, built.stderr
    assert json.loads(built.stdout)["notes"][0] == "drive.mcap: 6 of 30 frames kept, one in 5"
    extracted_by_rosbags(drive / "drive.mcap", drive / "photos")
    assert run("build", "photos", "--out", "photos.tfa", "--positions", "photos.csv").exit_code == 0
    names = sorted(file.name for file in (drive / "bag.tfa").iterdir())
    assert names == sorted(file.name for file in (drive / "photos.tfa").iterdir())
    assert sum(name.endswith(".safetensors") for name in names) >= 4
    for name in names:
        ours, theirs = (drive / "bag.tfa" / name).read_bytes(), (drive / "photos.tfa" / name).read_bytes()
        if name == "map.json":
            ours, theirs = json.loads(ours), json.loads(theirs)
            for own in (ours, theirs):
                assert own.pop("photos")["from_map"] in ("../bag-frames", "../photos")
                own.pop("digest")
        assert ours == theirs, name
    records = PlaceMap.load("bag.tfa").images
    assert [Path(record.path).parent.name for record in records] == ["bag-frames"] * 6
    assert [record.position.alt for record in records] == [40.0] * 6


def test_a_recording_becomes_a_map_in_a_store(run, drive, monkeypatch):
    monkeypatch.setattr(passes, "load_encoder", lambda *_, **__: FakeEncoder())
    passes._load_once.cache_clear()
    words = ("--topic", IMAGES, "--every", "5", "--set", "build.work=work", "--json")
    built = run("build", "drive.mcap", "--out", "memory://drive/bag", *words)
    passes._load_once.cache_clear()
    assert built.exit_code == 0, built.stderr
    facts = json.loads(built.stdout)
    assert facts["notes"][0] == "drive.mcap: 6 of 30 frames kept, one in 5"
    records = sorted(PlaceMap.load("memory://drive/bag").images, key=lambda record: record.id)
    assert [Path(record.path).parent.name for record in records] == ["bag-frames"] * 6
    assert [record.position.alt for record in records] == [40.0] * 6


def test_answers_to_a_recording_say_when(run, drive, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(drive / "tmp"))
    (drive / "tmp").mkdir()
    assert run("build", "drive.mcap", "--out", "town.tfa", "--every", "5m").exit_code == 0
    asked = run("query", "town.tfa", "drive.mcap", "--set", "frames.every=1s", "--json", "--montage", "m.png")
    answers = json.loads(asked.stdout)["answers"]
    assert [answer["time_ns"] for answer in answers] == [START + second * 10**9 for second in range(3)]
    assert answers[0]["query"] == "drive.mcap@1700000000.000000000"
    assert "drive.mcap: 3 of 30 frames kept, one every 1 s" in asked.stderr
    assert Path("m.png").stat().st_size > 1000
    assert (
        "drive.mcap@1700000002.000000000" in run("query", "town.tfa", "drive.mcap", "--set", "frames.every=1s").stdout
    )
    words = ("--set", "frames.every=10", "--set", "frames.folder=kept")
    kept = run("query", "town.tfa", "--sequence", "drive.mcap", *words, "--json")
    answers = json.loads(kept.stdout)["answers"]
    assert [Path(answer["query"]) for answer in answers] == sorted(Path("kept").glob("*.jpg"))
    assert all({"lost", "time_ns"} <= set(answer) for answer in answers)
    assert "time_ns" not in json.loads(run("query", "town.tfa", "kept", "--json").stdout)["answers"][0]


def test_a_frame_that_cannot_be_read_is_reported_and_the_others_are_answered(run, drive):
    assert run("build", "drive.mcap", "--out", "town.tfa", "--every", "5").exit_code == 0
    made, when = Messages(), START + 10**9
    rows = [*drive_rows(4), (when, IMAGES, made.compressed(when, b"\0\0\0\1", "h264"))]
    write_bag(drive / "made/bad.mcap", rows).rename(drive / "bad.mcap")
    result = run("query", "town.tfa", "bad.mcap", "--set", "frames.every=1", "--json")
    assert result.exit_code == 1
    assert (
        "bad.mcap, /camera/image/compressed at 1700000001.000000000: a CompressedImage of format 'h264'"
        in result.stderr
    )
    assert len(json.loads(result.stdout)["answers"]) == 4


def test_what_does_not_go_together_is_refused(run, folder):
    write_bag(folder / "made/drive.mcap", drive_rows(2)).rename(folder / "drive.mcap")
    random_image(1).save("photo.png")
    for words, complaint in {
        "build drive.mcap photo.png --out new.tfa": "drive.mcap is a recording and photo.png is not",
        "build drive.mcap --out new.tfa --positions where.csv": "frames of a recording have no names yet",
        "build drive.mcap --out new.tfa --every 1x": "--every '1x' is not allowed; use 10 (every tenth frame)",
        "build photo.png --out new.tfa --topic /a": "--topic is for bags and videos",
        "add town.tfa drive.mcap": "extract photos first with: tfa frames drive.mcap --out FOLDER",
        "frames photo.png --out new": "photo.png is not a recording; pass a ROS 1 bag",
        "query town.tfa photo.png --set frames.folder=new": "frames.folder is for bags and videos",
    }.items():
        result = run(*words.split())
        assert result.exit_code == (1 if words.startswith(("add", "frames")) else 2), words
        assert complaint in result.stderr
    assert not [name for name in ("new.tfa", "new", "new-frames") if Path(name).exists()]


def test_the_page_runs(run, fake_encoder):
    drive = fake_encoder
    write_bag(drive / "made/drive.mcap", drive_rows(14)).rename(drive / "drive.mcap")
    write_bag(drive / "evening.bag", drive_rows(14, ros1=True))
    write_video(drive / "ride.mp4", frames=40, creation_time="2025-06-01T12:00:00Z")
    points = "".join(
        f'<trkpt lat="{50 + second * 1e-4}" lon="8"><time>2025-06-01T12:00:0{second}Z</time></trkpt>'
        for second in range(5)
    )
    (drive / "ride.gpx").write_text(f"<gpx><trk><trkseg>{points}</trkseg></trk></gpx>")
    page = HOW_TO / "bags-and-videos.md"
    follow(page, run)
    assert len(steps_of(page)) == 9
    assert len(PlaceMap.load("ride.tfa")) == 8  # five frames are 5.6 m

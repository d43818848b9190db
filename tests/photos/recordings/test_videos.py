"""Videos as photos: times, tracks, rotation and errors."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
from PIL import Image

from tests.photos.recordings.made import write_video
from tfa.errors import BadPositions, BadRecording, BadSpec, MissingExtra
from tfa.photos.find_positions import PositionSources
from tfa.photos.positions import read_positions_csv
from tfa.photos.recordings.frames import FrameSpec, extract_frames

TRACK = """<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>
<trkpt lat="50" lon="8"><ele>100</ele><time>2025-06-01T12:00:00Z</time></trkpt>
<trkpt lat="50.001" lon="8"><ele>100</ele><time>2025-06-01T12:00:10Z</time></trkpt></trkseg></trk></gpx>"""


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.mov", "a.webm"])
def test_every_container_gives_its_frames_and_their_times(tmp_path, name):
    video = write_video(tmp_path / name)
    found = extract_frames(video, tmp_path / "out", FrameSpec(every="1s"))
    assert [photo.name for photo in found.photos] == [f"000000000{second}.000000000.jpg" for second in range(3)]
    assert (found.seen, found.positions) == (30, None)
    shown = [np.asarray(Image.open(photo), float).mean(axis=(0, 1)) for photo in found.photos]
    assert np.abs(shown[0] - shown[1]).max() > 2  # another place every second
    assert len(extract_frames(video, tmp_path / "new", FrameSpec(every="new")).photos) == 3


def test_a_video_is_placed_along_a_track_by_when_it_was_recorded(tmp_path):
    (tmp_path / "a.gpx").write_text(TRACK)
    video = write_video(tmp_path / "a.mp4", creation_time="2025-06-01T14:00:02Z")
    along = PositionSources(gpx=tmp_path / "a.gpx", gpx_offset=-7200)
    found = extract_frames(video, tmp_path / "out", FrameSpec(every="10m", gpx=along))
    places = [place.lat for place in read_positions_csv(found.positions).values()]
    assert places == pytest.approx([50.0002, 50.00029, 50.00038, 50.00047], abs=1e-7)  # nine frames are 10.01 m
    assert found.photos[0].name == "1748786402.000000000.jpg"
    with pytest.raises(BadPositions, match=r"it begins 7,192 s after it.; correct the camera's clock"):
        extract_frames(video, tmp_path / "other", FrameSpec(every="5m", gpx=PositionSources(gpx=tmp_path / "a.gpx")))
    with pytest.raises(BadSpec, match="has no positions, so --every 1m is not possible; pass a track with --gpx"):
        extract_frames(video, tmp_path / "other", FrameSpec(every="1m"))


def test_a_video_that_was_held_upright_is_shown_upright(tmp_path):
    """A phone writes its picture lying, and a matrix that turns it clockwise (ISO 14496-12, `tkhd`)."""
    video = write_video(tmp_path / "a.mp4", frames=1)
    lying = extract_frames(video, tmp_path / "lying").photos[0]
    content = bytearray(video.read_bytes())
    matrix = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    turned = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    where = content.index(matrix, content.index(b"tkhd"))
    content[where : where + 36] = turned
    (tmp_path / "b.mp4").write_bytes(content)
    upright = Image.open(extract_frames(tmp_path / "b.mp4", tmp_path / "upright").photos[0])
    assert upright.size == (48, 64)
    apart = np.asarray(upright, float) - np.rot90(np.asarray(Image.open(lying), float), -1)
    assert np.abs(apart).mean() < 2  # both are JPEGs


def test_what_is_no_video_is_refused(tmp_path, monkeypatch):
    video = write_video(tmp_path / "a.mp4")
    (tmp_path / "cut.mp4").write_bytes(video.read_bytes()[:2000])
    (tmp_path / "text.mkv").write_text("no video")
    for name in ("cut.mp4", "text.mkv"):
        with pytest.raises(
            BadRecording, match=rf"{name} (cannot be read: .*ffmpeg -i {name}|has no video stream.*truncated)"
        ):
            extract_frames(tmp_path / name, tmp_path / "out")
    with pytest.raises(BadSpec, match="which has no topics"):
        extract_frames(video, tmp_path / "out", FrameSpec(topic="/camera"))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tfa-vpr\[video\]'"):
        extract_frames(video, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["ffconcat version 1.0\nfile 'secret.mp4'\n", "#EXTM3U\n#EXTINF:1,\nsecret.mp4\n"])
def test_a_playlist_that_is_named_as_a_video_reads_no_other_file(tmp_path, text):
    write_video(tmp_path / "secret.mp4")
    (tmp_path / "list.mp4").write_text(text)
    with pytest.raises(BadRecording, match=r"list\.mp4 cannot be read"):
        extract_frames(tmp_path / "list.mp4", tmp_path / "out")


def test_a_name_that_looks_as_a_protocol_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "a.mp4").rename("concat:b.mp4")
    assert extract_frames("concat:b.mp4", tmp_path / "out").photos

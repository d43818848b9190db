"""Keyframe selection: by number, time, distance and novelty."""

from __future__ import annotations

import pytest

from tests.faults.service.hostile import many_scans
from tests.photos.recordings.made import jpeg
from tfa.errors import BadImage, BadSpec
from tfa.photos.images import MOST_SCANS
from tfa.photos.recordings.frames import KeyframeInterval, Keyframes
from tfa.photos.recordings.recording import FramePicture, RecordedFrame
from tfa.types import Position


def kept(every: str, frames: list[RecordedFrame]) -> list[int]:
    chosen = Keyframes(KeyframeInterval.parse(every))
    return [number for number, frame in enumerate(frames) if chosen.keeps(frame)]


def showing(content: bytes, seconds: float = 0.0, position: Position | None = None) -> RecordedFrame:
    return RecordedFrame(round(seconds * 1e9), lambda: FramePicture(".jpg", content=content), position)


def times(*seconds: float) -> list[RecordedFrame]:
    return [showing(b"", one) for one in seconds]


def places(*metres: float | None, globe: bool = False) -> list[RecordedFrame]:
    degree = 6_371_000 * 3.141592653589793 / 180
    made = (
        (lambda y: Position(lat=60.0, lon=(360 + y / degree * 2) % 360 - 180))
        if globe
        else (lambda y: Position(x=0.0, y=y))
    )
    return [showing(b"", 0, None if one is None else made(one)) for one in metres]


def test_one_in_n():
    assert kept("3", times(*range(8))) == [0, 3, 6]
    assert kept("1", times(*range(3))) == [0, 1, 2]


def test_by_time_the_nearest_frame_is_taken():
    tenths = [number / 10 for number in range(35)]
    assert kept("1s", times(*tenths)) == [0, 10, 20, 30]
    assert kept("0.25s", times(*tenths))[:4] == [0, 3, 6, 9]  # 0.3 is as near as 0.2 and later
    # A camera of one frame a second that trembles loses none, and a gap costs what it costs.
    assert kept("1s", times(0, 0.98, 2.01, 2.97, 4.0, 9.0, 9.9)) == [0, 1, 2, 3, 4, 5, 6]
    assert kept("2s", times(100, 101, 102, 50, 51, 52)) == [0, 2, 3, 5]  # a clock that was set back


def test_by_metres_frames_without_a_position_are_not_kept():
    assert kept("2m", places(None, 0, 1, 1.9, 2.1, None, 3, 4.2, 2.0)) == [1, 4, 7, 8]
    # At 60° north a degree of longitude is half as long; across the 180th meridian it goes on.
    assert kept("10m", places(-4, 0, 5.9, 6.1, 12, globe=True)) == [0, 3]


def test_by_novelty_what_looks_alike_is_left_out():
    one, other = jpeg(1), jpeg(2)
    assert kept("new", [showing(content) for content in (one, one, other, other, one)]) == [0, 2, 4]
    assert kept("new:1.9", [showing(content) for content in (one, other)]) == [0]
    with pytest.raises(BadImage, match=r"at 2.500 cannot be decoded"):
        kept("new", [showing(b"\xff\xd8\xff", 2.5)])


@pytest.mark.parametrize("text", ["", "0", "0s", "1.5", "-1m", "1km", "m", "1 m", "new:0", "new:2", "1e3", "nans"])
def test_what_is_no_measure_is_refused(text):
    with pytest.raises(BadSpec, match=r"^--every "):
        KeyframeInterval.parse(text)


@pytest.mark.parametrize("text", ["10", "0.5s", "2m", "new", "new:0.4"])
def test_a_measure_is_written_as_it_is_read(text):
    assert str(KeyframeInterval.parse(text)) == text


def test_a_frame_with_too_many_scans_is_not_decoded():
    content = many_scans(MOST_SCANS + 1)
    frame = RecordedFrame(0, lambda: FramePicture(".jpg", content))
    with pytest.raises(BadImage, match="it has 101 scans, which take too long"):
        Keyframes(KeyframeInterval.parse("new")).keeps(frame)

"""Loop closure in a stream of frames: fitting on the fly, sessions, bad input, and state in a file."""

import itertools

import numpy as np
import pytest
from PIL import Image

import tfa
from tests.fakes import FakeEncoder, random_image
from tfa.core.files import BadFile
from tfa.core.tokens import Tokens
from tfa.errors import BadImage, BadSpec, BadTokens
from tfa.maps.loop_closer import FIRST_FIT, LoopCloser
from tfa.types import LoopsResult, Position

LAP, GAP = 70, 15


@pytest.fixture(scope="module")
def laps():
    """Tokens of two laps: each place with other noise."""
    rng = np.random.default_rng(3)
    places = rng.normal(size=(LAP, 16, 12))
    return [place + 0.25 * rng.normal(size=place.shape) for place in np.concatenate([places, places])]


def tokens(patches, name="frame"):
    return Tokens(np.asarray(patches, np.float32)[None], grid=(4, 4), names=[name])


def follow(closer, frames):
    return [closer.step(tokens(frame, str(row))) for row, frame in enumerate(frames)]


def list_pairs(loop):
    return [(pair.query, pair.match) for pair in (loop, *loop.chain)]


class SignedEncoder(FakeEncoder):
    """Colors from −½ to ½, so that patches of other images have other directions."""

    def encode(self, images):
        patches, cls = super().encode(images)
        return patches - np.float16(0.5) * (np.arange(12) < 3), cls


@pytest.fixture(scope="module")
def followed(laps):
    closer = LoopCloser(FakeEncoder(), GAP)
    return closer, follow(closer, laps)


def test_the_second_lap_closes_loops_and_the_first_none(followed):
    closer, found = followed
    loops = [loop for loop in found if loop is not None]
    assert closer.loops == loops
    assert all(loop.query >= LAP and abs(loop.query - LAP - loop.match) <= 1 for loop in loops)
    assert len(loops) >= 0.7 * LAP
    assert all(0 <= loop.confidence <= 1 and loop.query_image == str(loop.query) for loop in loops)
    result = LoopsResult(frames=closer.frames, keyframes=len(closer), sessions=1, loops=loops)
    assert len(result.pairs) >= 0.9 * LAP
    assert all(abs(pair.query - LAP - pair.match) <= 1 for pair in result.pairs)


def test_a_pair_has_the_heading_and_scale_of_its_matches():
    """The second lap looks 3 columns further right, which is 3/12 of the width."""
    rng, columns = np.random.default_rng(5), 12
    views = rng.normal(size=(LAP, columns, columns + 3, 16))
    views = views + 0.1 * rng.normal(size=(2, *views.shape))
    frames = [*views[0][:, :, :columns], *views[1][:, :, 3:]]
    closer = LoopCloser(FakeEncoder(), GAP, fov=90)
    for frame in frames:
        closer.step(Tokens(frame.reshape(1, -1, 16).astype(np.float32), grid=(columns, columns)))
    assert len(closer.loops) >= 0.6 * LAP
    for pair in (pair for loop in closer.loops for pair in loop.chain if pair.query - LAP == pair.match):
        assert pair.inliers > 60
        assert pair.heading == pytest.approx(np.degrees(np.arctan(2 * 3 / columns)), abs=1)
        assert pair.scale == pytest.approx(1, abs=0.05)


def test_a_known_length_makes_decisions_stricter(laps, followed):
    closer = LoopCloser(FakeEncoder(), GAP, length=100 * len(laps))
    found = follow(closer, laps)
    first, usual = (next(row for row, loop in enumerate(one) if loop) for one in (found, followed[1]))
    assert first > usual


def test_frames_of_another_grid_are_refused(laps):
    closer = LoopCloser(FakeEncoder(), GAP)
    closer.step(tokens(laps[0]))
    with pytest.raises(BadTokens, match="encode all with one encoder"):
        closer.step(Tokens(np.ones((1, 9, 12), np.float32), grid=(3, 3)))
    assert closer.frames == 1


def test_a_saved_closer_continues_as_the_original(laps, followed, tmp_path):
    for stop in (FIRST_FIT - 2, FIRST_FIT + 8, LAP + 20):
        closer = LoopCloser(FakeEncoder(), GAP)
        before = follow(closer, laps[:stop])
        closer.save(tmp_path / "state")
        resumed = LoopCloser.load(tmp_path / "state", FakeEncoder())
        after = [resumed.step(tokens(frame, str(stop + row))) for row, frame in enumerate(laps[stop:])]
        assert [loop and list_pairs(loop) for loop in (*before, *after)] == [
            loop and list_pairs(loop) for loop in followed[1]
        ]


def test_a_state_of_another_encoder_or_a_broken_one_is_refused(tmp_path):
    LoopCloser(FakeEncoder(), GAP).save(tmp_path / "state")
    with pytest.raises(BadFile, match="another encoder"):
        LoopCloser.load(tmp_path / "state", FakeEncoder(salt="other"))
    (tmp_path / "broken").write_bytes(b"nothing")
    with pytest.raises(BadFile):
        LoopCloser.load(tmp_path / "broken", FakeEncoder())


def test_a_changed_state_is_refused(laps, tmp_path):
    closer = LoopCloser(FakeEncoder(), GAP)
    follow(closer, laps[:FIRST_FIT])
    closer.save(tmp_path / "state")
    sound = (tmp_path / "state").read_bytes()
    counted = b'\\"frames\\": 32'
    assert sound.count(counted) == 1
    for changed in (sound.replace(counted, counted[:-1] + b"3"), sound[:-1] + bytes([sound[-1] ^ 1])):
        (tmp_path / "state").write_bytes(changed)
        with pytest.raises(BadFile, match="damaged or changed after it was written"):
            LoopCloser.load(tmp_path / "state", FakeEncoder())


def test_sessions_answer_without_competition_from_the_running_one(laps):
    closer = LoopCloser(FakeEncoder(), GAP, session_breaks="10min")
    found = [closer.step(tokens(one), row + 1e4 * (row >= LAP)) for row, one in enumerate(laps)]
    assert closer.session == 1
    assert sum(loop is not None and loop.match < LAP for loop in found[LAP:]) >= 0.7 * LAP


def test_a_gap_in_time_or_path_excludes_as_many_frames(laps, followed):
    expected = followed[1]
    timed = LoopCloser(FakeEncoder(), f"{2 * GAP}s")
    assert [timed.step(tokens(one), 2.0 * row) for row, one in enumerate(laps)][-1].match == expected[-1].match
    placed = LoopCloser(FakeEncoder(), f"{3 * GAP}m")
    steps = [placed.step(tokens(one), position=Position(x=3.0 * row, y=0.0)) for row, one in enumerate(laps)]
    assert [loop and loop.match for loop in steps] == [loop and loop.match for loop in expected]


def test_a_drive_shorter_than_the_gap_and_one_frame_give_nothing(laps):
    assert follow(LoopCloser(FakeEncoder(), 2 * LAP), laps) == [None] * (2 * LAP)
    assert LoopCloser(FakeEncoder()).step(random_image(1)) is None


def test_a_standing_robot_a_covered_lens_and_a_higher_rate_add_no_keyframes(laps):
    rng = np.random.default_rng(0)
    stands = [*laps[:40], *(laps[39] + 0.02 * rng.normal(size=(200, 16, 12)))]
    closer = LoopCloser(FakeEncoder(), GAP)
    assert follow(closer, stands) == [None] * 240
    assert (len(closer), closer.frames) == (40, 240)
    covered = LoopCloser(FakeEncoder(), GAP)
    dark = Image.new("RGB", (28, 28))
    assert [covered.step(dark) for _ in range(100)] == [None] * 100
    assert len(covered) == 1
    fast = LoopCloser(FakeEncoder(), GAP)
    follow(fast, itertools.chain.from_iterable([one] * 5 for one in laps[:20]))
    assert len(fast) == 20


def test_a_clock_that_jumps_back_adds_no_time(laps):
    closer = LoopCloser(FakeEncoder(), "20s")
    for row, frame in enumerate(laps[:60]):
        closer.step(tokens(frame), row - 40.0 * (row > 30))
    assert closer.backward_steps == 1
    assert closer._seconds == 58.0


def test_an_unreadable_frame_is_not_a_node(tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no photo")
    closer = LoopCloser(FakeEncoder())
    with pytest.raises(BadImage):
        closer.step(tmp_path / "bad.jpg")
    assert closer.frames == 0


@pytest.mark.parametrize("gap", ["0", "-3", "5 miles", "", "nan", "10kg"])
def test_a_bad_gap_is_refused(gap):
    with pytest.raises(BadSpec, match="gap"):
        LoopCloser(FakeEncoder(), gap)


def test_a_missing_time_or_position_is_one_sentence():
    with pytest.raises(BadSpec, match="needs the time of every frame"):
        LoopCloser(FakeEncoder(), "30s").step(random_image(1))
    with pytest.raises(BadSpec, match="needs the position of every frame"):
        LoopCloser(FakeEncoder(), "20m").step(random_image(1))


def test_a_drive_becomes_a_map_and_a_map_starts_a_closer(tmp_path):
    rng = np.random.default_rng(1)
    for row in range(90):
        blocks = rng.integers(0, 2, (8, 8, 3), dtype=np.uint8) * np.uint8(255)
        Image.fromarray(blocks).resize((28, 28), Image.Resampling.BICUBIC).save(tmp_path / f"{row:03d}.png")
    closer = tfa.LoopCloser(SignedEncoder(), GAP)
    photos = sorted(tmp_path.glob("*.png"))
    for photo in photos:
        closer.step(photo)
    place_map = closer.to_map()
    assert len(place_map) == 90
    second = tfa.LoopCloser(start=place_map, gap=GAP)
    assert (second.frames, second.session) == (90, 1)
    found = [second.step(photo) for photo in photos[:40]]
    right = [loop for row, loop in enumerate(found) if loop is not None and loop.match == row]
    assert len(right) >= 10
    assert all(loop is None or abs(loop.match - row) <= 1 for row, loop in enumerate(found))


def test_frames_without_files_do_not_become_a_map(followed):
    with pytest.raises(BadSpec, match="not a file"):
        followed[0].to_map()

"""One position from all reranked images: the formula by hand, and cases without a position."""

from __future__ import annotations

import numpy as np
import pytest

from tfa.maps.confidence import NO_EVIDENCE, NO_POSITIONS, TWO_KINDS, fuse_positions, locate_frame, measure_reach
from tfa.types import ImageRecord, Place, Position


def at(*points: tuple[float, float]) -> list[Position]:
    return [Position(x=x, y=y) for x, y in points]


def images(positions: list[Position | None]) -> list[ImageRecord]:
    return [
        ImageRecord(id=i, path=str(i), digest="", fitted=True, position=position)
        for i, position in enumerate(positions)
    ]


def test_the_position_is_the_mean_by_evidence_above_that_of_wrong_places():
    # Outside: √M of 1 and 3, so b = 2. Inside: 5, 4 and 1 weigh 9, 4 and 0.
    found = fuse_positions(at((0, 0), (900, 0), (13, 0), (0, 900), (0, 20)), np.array([0.5, 0.1, 0.3, 0.05, 0.05]),
                  np.array([5.0, 1.0, 4.0, 3.0, 1.0]), 25.0)[0]  # fmt: skip
    spread, count = 9 / 13 * 4**2 + 4 / 13 * 9**2, 13**2 / (81 + 16)
    assert found.position.pair == pytest.approx((4.0, 0.0))
    assert found.radius == pytest.approx(np.sqrt((25**2 + count * spread) / (count + 1)))
    assert (found.share, found.images) == (pytest.approx(0.85), 2)


def test_a_wrong_best_answer_gives_way_to_those_that_agree():
    found = fuse_positions(
        at((0, 0), (500, 0), (510, 0), (520, 0)), np.array([0.4, 0.2, 0.2, 0.2]), np.full(4, 2.0) - [1, 0, 0, 0], 25.0
    )
    assert found[0].position.pair == pytest.approx((510.0, 0.0))
    assert fuse_positions(at((0, 0)), np.ones(1), np.array([2.0]), 25.0)[0].radius == pytest.approx(25 / np.sqrt(2))


def test_shares_that_round_above_one_are_a_share_of_one():
    shares = np.random.default_rng(28).random(8)
    shares /= shares.sum()
    assert (np.ones((8, 8), bool) @ shares).max() > 1
    assert fuse_positions(at(*[(0, 0)] * 8), shares, np.arange(8.0), 25.0)[0].share == 1


def test_there_is_no_place_where_answers_disagree_or_say_nothing():
    shares, roots = np.array([0.4, 0.3, 0.3]), np.ones(3)
    apart = fuse_positions(at((0, 0), (100, 0), (200, 0)), shares, roots, 25.0)
    assert (apart[0], "the likeliest place has 40 %" in apart[1]) == (None, True)
    assert fuse_positions([None] * 3, shares, roots, 25.0)[1] == NO_POSITIONS
    assert fuse_positions([*at((0, 0), (1, 1)), Position(lat=1, lon=1)], shares, roots, 25.0)[1] == TWO_KINDS
    assert fuse_positions(at((0, 0), (1, 0), (900, 0)), shares, roots, 25.0)[1] == NO_EVIDENCE
    unplaced = fuse_positions([None, *at((0, 0), (1, 0))], shares, roots, 25.0)  # counts against the others
    assert unplaced[1] == NO_EVIDENCE
    assert unplaced[0] is None


def test_degrees_are_fused_as_metres_also_across_the_180th_meridian():
    east = np.degrees(10 / 6_371_000 / np.cos(np.radians(60.0)))
    pair = [Position(lat=60, lon=180 - east), Position(lat=60, lon=east - 180)]  # 20 m apart
    found = fuse_positions(pair, np.array([0.5, 0.5]), np.ones(2), 25.0)[0]
    assert (abs(found.position.lon), found.position.lat) == (pytest.approx(180.0), pytest.approx(60.0))
    assert found.radius == pytest.approx(np.sqrt((25**2 + 2 * 10**2) / 3), rel=1e-6)
    assert Place.from_dict(found.to_dict()) == found


def test_a_sparse_map_has_a_longer_reach_and_a_drive_is_fused_by_its_filter():
    grid = images(at(*((100.0 * i, 100.0 * j) for i in range(4) for j in range(4))))
    assert measure_reach(grid) == 100.0
    assert measure_reach(grid[:2]) == measure_reach(images(at(*((float(i), 0.0) for i in range(9))))) == 25.0
    globe = images([Position(lat=0.001 * i, lon=5) for i in range(5)])
    assert measure_reach(globe) == pytest.approx(np.radians(0.001) * 6_371_000, rel=1e-3)
    assert measure_reach(images(at((0, 0), (0, 9e5), (9e5, 0)))) == 1000.0
    found = locate_frame(
        np.array([0.3, 0.6, 0.0, 0.0, 0.0]), images(at((0, 0), (9, 0), (900, 0), (950, 0), (0, 900))), 25.0
    )
    assert found[0].position.pair == pytest.approx((6.0, 0.0))
    assert found[0].share == pytest.approx(0.9)

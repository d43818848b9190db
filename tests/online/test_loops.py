"""Loop decisions: lines, margins, their law, and streams with and without loops."""

from collections.abc import Sequence

import numpy as np
import pytest

from tfa.online import loops
from tfa.online.loops import LENGTHS, SLOPES, LoopDetector, LoopLinks, MarginLaw, scan_lines

GAP = 20

# --- the formulas, plain ---


def best_line(standard: np.ndarray, frame: int, column: int, length: int, slopes: Sequence[float]) -> float:
    """Return B_L(t, j) = max over a of 1/L Σ_{k<L} z[t − k, j − round(a k)]; 0 outside the matrix."""
    sums = []
    for slope in slopes:
        total = 0.0
        for back in range(length):
            row, other = frame - back, column - int(np.rint(slope * back))
            if row >= 0 and 0 <= other < standard.shape[1]:
                total += float(standard[row, other])
        sums.append(total / length)
    return max(sums)


def expected_false_loops(spacings: Sequence[float], margins: Sequence[float], margin: float, trials: float) -> float:
    """Return trials · (1 + g / (β κ))^(−κ).

    Args:
        spacings: k (M_k − M_{k+1}), k ≥ 2, of all rows without a loop.
        margins: M_1 − M_2 of the same rows, all of them below 2 β.
        margin: g.
        trials: Number of independent lines of 20 frames in the drive.
    """
    below_gate = 1 - 2 * np.exp(-2) / (1 - np.exp(-2))  # mean of an exponential that is cut at twice its scale
    scale = (sum(spacings) + sum(margins) / below_gate) / (len(spacings) + len(margins))
    certainty = 8 + 3 * len(margins) / 20
    return float(trials * (1 + margin / (scale * certainty)) ** -certainty)


# --- streams ---


def stack(standard, frame):
    """Rows of the last 20 frames, newest first, padded as the detector does."""
    rows = np.zeros((loops._LONGEST, standard.shape[1] + 2 * loops._PAD), np.float32)
    for back in range(min(loops._LONGEST, frame + 1)):
        rows[back, loops._PAD : -loops._PAD] = standard[frame - back]
    return rows


def drive(laps, frames, noise, seed=0, flip=False):
    """Scores of a drive of several laps over the same places."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(frames, 24))
    order = np.concatenate([np.arange(frames)[:: -1 if flip and lap % 2 else 1] for lap in range(laps)])
    seen = places[order] + noise * rng.normal(size=(len(order), 24))
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    return seen @ seen.T, order


def step(detector, scores, frame, allowed=0.1):
    candidates = frame - np.arange(frame) >= GAP
    return detector.step(scores[frame, :frame], candidates, frame + 1, allowed, int((~candidates).sum()))


def follow(scores, allowed=0.1, detector=None):
    detector = detector or LoopDetector()
    found = {}
    for frame in range(1, len(scores)):
        line = step(detector, scores, frame, allowed)
        if line is not None:
            found[frame] = line
            detector.links.add([(frame - back, column) for back, column in line.chain])
    return found


def test_lines_equal_the_reference():
    standard = np.random.default_rng(1).normal(size=(30, 40)).astype(np.float32)
    for frame in (4, 29):
        best = scan_lines(stack(standard, frame), LENGTHS)
        for length in LENGTHS:
            expected = [best_line(standard, frame, column, length, SLOPES) for column in range(40)]
            np.testing.assert_allclose(best[length][0], expected, atol=1e-5)


def test_the_law_equals_the_reference():
    rng, law = np.random.default_rng(2), MarginLaw()
    spacings, margins = [], []
    for _ in range(40):
        peaks = np.cumsum([0.0, *-rng.exponential(0.2, 3)]).tolist()
        before = law.scale(20)
        law.observe(20, peaks)
        if before is None or peaks[0] - peaks[1] <= 2 * before:
            margins.append(peaks[0] - peaks[1])
        spacings += [2 * (peaks[1] - peaks[2]), 3 * (peaks[2] - peaks[3])]
    trials = 600 / (0.6 * 20)
    assert law.expect_false(20, 1.3, 600) == pytest.approx(expected_false_loops(spacings, margins, 1.3, trials))
    assert law.expect_false(10, 1.3, 600) == np.inf  # no rows of this length


def test_a_loop_margin_does_not_change_the_law():
    law = MarginLaw()
    for _ in range(20):
        law.observe(20, [0.5, 0.3, 0.2, 0.1])
    for _ in range(20):
        law.observe(20, [5.0, 0.3, 0.2, 0.1])
    below_gate = 1 - 2 * np.exp(-2) / (1 - np.exp(-2))
    assert law.scale(20) == pytest.approx((40 * (2 * 0.1 + 3 * 0.1) + 20 * 0.2 / below_gate) / (40 * 2 + 20))


@pytest.mark.parametrize("flip", [False, True])
def test_a_second_lap_closes_loops_and_the_first_none(flip):
    scores, order = drive(2, 90, 0.6, flip=flip)
    found = follow(scores)
    assert min(found) >= 90
    late = range(90 + GAP + 20, 180) if flip else range(110, 180)
    assert sum(frame in found for frame in late) >= 0.9 * len(late)
    assert all(abs(int(order[frame]) - int(order[line.match])) <= 1 for frame, line in found.items())


def test_the_chain_reaches_back_to_the_start_of_the_loop_and_not_beyond():
    scores, order = drive(2, 90, 0.6)
    found = follow(scores[:130, :130])
    frame = min(found)
    first = found[frame]
    pairs = [(frame - back, column) for back, column in first.chain]
    assert len(pairs) > 3
    assert all(query >= 90 and abs(int(order[query]) - column) <= 1 for query, column in pairs)


def test_no_loop_without_a_revisit():
    for seed in range(2):
        scores, _ = drive(1, 150, 0.6, seed)
        assert follow(scores) == {}


def test_surroundings_unlike_all_before_are_not_a_loop():
    """Frames of a new building resemble each other, the more the nearer, and nothing outside."""
    rng = np.random.default_rng(0)
    seen = np.zeros((180, 48))
    seen[:120, :24] = rng.normal(size=(120, 24))
    seen[120:, :24] = 0.3 * rng.normal(size=(60, 24))
    inside = rng.normal(size=24)
    for frame in range(120, 180):
        inside = 0.97 * inside + np.sqrt(1 - 0.97**2) * rng.normal(size=24)
        seen[frame, 24:] = inside + 0.5
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    assert follow(seen @ seen.T) == {}


def test_a_third_lap_is_found_although_two_places_match():
    scores, _ = drive(3, 70, 0.5)
    found = follow(scores)
    assert sum(frame in found for frame in range(160, 210)) >= 45


def test_links_join_places_through_several_loops():
    links = LoopLinks()
    links.add([(100, 10), (200, 100)])
    mates = links.mates(8, 12, 300)
    assert mates[[100, 200]].all()
    assert not mates[[10, 50, 150]].any()


def test_equal_scores_and_few_candidates_give_no_loop():
    assert follow(np.full((120, 120), 0.5)) == {}
    assert follow(drive(2, 12, 0.1)[0]) == {}


def test_a_restored_detector_continues_as_the_original():
    scores, _ = drive(2, 90, 0.6)
    detector = LoopDetector()
    before = follow(scores[:110, :110], detector=detector)
    copy = LoopDetector()
    copy.law.table[:], copy.links.pairs = detector.law.table, detector.links.pairs
    copy.load_tensors(detector.tensors())
    for frame in range(110, 130):
        assert step(copy, scores, frame) == step(detector, scores, frame)
    assert before


def test_more_allowed_false_loops_never_give_fewer():
    scores, _ = drive(2, 90, 1.4)
    assert len(follow(scores, 1.0)) >= len(follow(scores, 0.01))

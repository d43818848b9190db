"""Photos alone, adapted and followed, on a made-up drive; streams in which something happens."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from studies import sequences
from studies.sequences import (
    AWAY,
    TABLES,
    Pool,
    Stream,
    events,
    measured,
    study_curve,
    study_drive,
    study_whole,
    table_rows,
)
from tests.worlds import seen_again, world
from tfa.core.tokens import Tokens
from tfa.online.sequence_filter import Belief, OrderMotion
from tfa.pipeline import fit_second_order
from tfa.types import HeadSpec
from tfa.verification.patches import CompactTokens, PhotoPairs
from tfa_bench.heads.contract import Photos
from tfa_bench.streams import describe_photos, follow_scores

pytestmark = pytest.mark.slow

FRAMES = 48
SEEN = (0, 1, 2, 3, 4, 5, 6, 8)  # as many columns as of 0 to 64, from a fourth of the photos


@pytest.fixture(autouse=True)
def few_seen(monkeypatch):
    monkeypatch.setattr(sequences, "SEEN", SEEN)


def gridded(tokens):
    return Tokens(np.asarray(tokens.patches), tokens.cls, grid=(4, 3))


DRIVE = gridded(world(FRAMES, noise=0.3))
AGAIN = gridded(seen_again(DRIVE, noise=0.3))
POSITIVES = [np.array([i]) for i in range(FRAMES)]


@pytest.fixture(scope="module")
def pool():
    scorer = fit_second_order(DRIVE).scorer(0)
    store = CompactTokens.fit(DRIVE)
    pairs = PhotoPairs(store, AGAIN, (4, 3), np.arange(FRAMES))
    return Pool(scorer, list(describe_photos(scorer, AGAIN, store)), pairs)


def test_a_whole_drive_is_answered_alone_adapted_verified_and_followed(pool):
    study = study_whole(pool, POSITIVES)
    scores = pool.scorer.scores(AGAIN)
    assert study["alone"] == np.mean(scores.argmax(axis=1) == np.arange(FRAMES))
    frames = list(
        follow_scores(pool.scorer, pool.photos, pool.comparison, candidates=20, motion=OrderMotion(FRAMES, 2.0))
    )
    assert study["online"] == np.mean([f.scores.argmax() == i for i, f in enumerate(frames)])
    assert study["verified"] == np.mean([f.ranked.indices[0, 0] == i for i, f in enumerate(frames)])
    assert study["followed"] == np.mean([f.belief.best == i for i, f in enumerate(frames)])
    assert study["followed"] > 0.8
    assert set(study) == {"alone", "online", "verified", "followed", "lost"}


def test_a_curve_starts_with_photos_alone(pool):
    curve = study_curve(pool, POSITIVES)
    alone = study_whole(pool, POSITIVES)
    for order, shares in curve.items():
        assert len(shares) == len(SEEN) + 1, order
        assert shares[0] == alone["alone"]
    assert curve["driving"][-1] == alone["online"]


@pytest.mark.parametrize(("frames", "foreign"), [(8, 5), (40, 0), (200, 60)])
def test_streams_are_of_the_drive_and_of_elsewhere_as_they_say(frames, foreign):
    made = events(frames, foreign)
    assert set(made) == ({"gap", "jump", "outside"} if foreign else {"gap", "jump"})
    for streams in made.values():
        for stream in streams:
            assert (stream.photos[~stream.outside] < frames).all()
            assert (stream.photos[stream.outside] >= frames).all()
            assert stream.photos.max() < frames + foreign
            assert 0 < stream.event <= len(stream.photos)
    if foreign > AWAY:
        assert {int(stream.outside.sum()) for stream in made["outside"]} == {AWAY}
        steps = np.diff(np.stack([stream.photos for stream in made["gap"]]), axis=1)
        assert (np.sort(steps, axis=1)[:, :-1] == 1).all()
        assert (steps.max(axis=1) > 20).all()


def belief(place, lost):
    places = np.eye(10)[place] * (1 - lost)
    return Belief(places, lost, places, places)


def test_events_are_measured_by_hand():
    stream = Stream(np.array([0, 1, 10, 11, 12, 13, 14, 2, 3, 4, 5]), 7, np.arange(11) // 2 % 7 >= 0)
    outside = np.array([0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0], bool)
    stream = Stream(stream.photos, 7, outside)
    # Right, wrong; outside: known for the last of the two that count; then lost, right, right, right.
    told = [(0, 0), (5, 0), (0, 0), (0, 0), (0, 0), (0, 0.1), (0, 0.9), (2, 0.8), (3, 0), (4, 0), (5, 0)]
    study = measured([stream], [[belief(*one) for one in told]], [np.array([i]) for i in range(6)])
    assert study.right == pytest.approx(5 / 6)
    assert study.lost == pytest.approx(1 / 6)
    assert (study.recovered_after, study.recovered_last) == (1, 1)
    assert study.outside_lost == 0.5
    never = measured([stream], [[belief(9, 0)] * 11], [np.array([i]) for i in range(6)])
    assert never.recovered_last == 4
    assert never.outside_lost == 0


def test_a_study_has_all_tables_and_centers_patches_on_their_cells(monkeypatch):
    pools: list[Pool] = []
    monkeypatch.setattr(sequences, "study_whole", lambda *given: pools.append(given[0]) or study_whole(*given))
    bench = SimpleNamespace(
        database=Photos(DRIVE, tuple(map(str, range(FRAMES)))),
        queries=SimpleNamespace(tokens=AGAIN),
        spec=HeadSpec(words=6),
        encoder=SimpleNamespace(id="fake@28"),
        truth=SimpleNamespace(name="made", title="Made", positives=POSITIVES),
    )
    facts = json.loads(json.dumps(study_drive(bench, gridded(world(12, seed=9))).to_dict(), allow_nan=False))
    assert all(photo.patches is not None and photo.cells is not None for photo in pools[0].photos)
    assert set(facts["events"]) == {"gap", "jump", "outside"}
    assert facts["change"]["fresh"][-1] is not None
    assert facts["seen"][-1] == "all"
    for table, (_, columns) in TABLES.items():
        rows = table_rows([facts], table)
        assert rows
        assert all(len(row) == len(columns) and row[0] == "made" for row in rows), table


def test_tables_are_in_percent():
    event = {"right": 0.5, "lost": 0.25, "recovered_after": 1.5, "recovered_last": 3, "outside_lost": None}
    drive = {"alone": 0.5, "online": 0.75, "verified": 0.8, "followed": 1.0, "lost": 0.125}
    change = {"fresh": [0.5, None, None, None], "changed": [0.25, None, None, None]}
    facts = [{"dataset": "made", "photos": 8, "drive": drive, "events": {"gap": event}, "change": change}]
    assert table_rows(facts, "drive") == [("made", "8", "50.0", "75.0", "80.0", "100.0 (lost 12.5)")]
    assert table_rows(facts, "events") == [("made", "a gap", "50.0", "25.0", "1.5, at most 3", "")]
    assert table_rows(facts, "change")[0] == ("made", "nothing", "50.0", "–", "–", "–")

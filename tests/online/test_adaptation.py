"""Online adaptation agrees with its plain form for every head; which photos count and what is forgotten."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.worlds import seen_again, world
from tfa.core.arrays import Spill
from tfa.core.files import BadFile, write_tensors
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.method.carriers import carrier_terms
from tfa.method.head import replica_scorer
from tfa.method.scorer import usual_scores
from tfa.online.adaptation import MIN_ROWS, Adaptation, AdaptedScorer, DescribedPhoto, ScoreWindow, digest_head
from tfa.pipeline import calibrate, fit, fit_second_order
from tfa.reference import second_order as plain
from tfa.reference.database import Pca
from tfa.types import HeadSpec
from tfa_bench.streams import describe_photos

MEMORY = Path("/proc/self/statm")
PLACES = world(images=40, seed=3)
STREAM = seen_again(world(images=90, seed=5), noise=0.4)


@pytest.fixture(scope="module")
def second():
    return fit_second_order(PLACES, carrier="partial", dtype="float64").scorer(0)


@pytest.fixture(scope="module")
def paper():
    return fit(PLACES, HeadSpec(words=4))


def rows_of(scorer, tokens, **given):
    adapted = AdaptedScorer(scorer, **given)
    return np.stack([adapted.step(photo) for photo in describe_photos(scorer, tokens)]), adapted


def test_a_stream_equals_the_plain_form(second):
    database, stream = (second.sides[0].describe(tokens, True, "float64").descriptors for tokens in (PLACES, STREAM))
    rows, adapted = rows_of(second, STREAM)
    expected = plain.online_scores(Pca.fit(database), stream, database)
    assert MIN_ROWS < adapted.counted <= len(STREAM)
    np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["second", "paper", "ensemble"])
def test_the_first_photo_is_answered_by_the_head_alone_bit_for_bit(second, paper, kind):
    scorer = {"second": second, "paper": paper.scorer(0), "ensemble": paper.scorer("ensemble")}[kind]
    rows, _ = rows_of(scorer, STREAM)
    own = scorer.scores(STREAM)
    assert np.array_equal(rows[0], own[0])
    assert not np.allclose(rows[MIN_ROWS + 1 :], own[MIN_ROWS + 1 :], atol=1e-4)
    alone, _ = rows_of(scorer, STREAM, adapts=False)
    assert np.array_equal(alone, own)


def test_later_photos_never_change_earlier_answers(second):
    other = STREAM.select(np.r_[:50, 89:49:-1])
    assert np.array_equal(rows_of(second, STREAM)[0][:50], rows_of(second, other)[0][:50])


def test_a_head_without_coordinates_adapts_its_scores_alone(paper):
    branch = paper.branches["hard", 0]
    scorer = replica_scorer([(1.0, branch, carrier_terms("original"))], paper.spec, "float32", Spill())
    own = scorer.scores(STREAM)
    rows, adapted = rows_of(scorer, STREAM)
    assert np.array_equal(rows[:MIN_ROWS], own[:MIN_ROWS])
    assert adapted.counted == adapted.adaptation.seen == len(STREAM)
    sigma = np.median(own[:-1].std(axis=1))
    usual = usual_scores(own[:-1] / sigma)
    np.testing.assert_allclose(rows[-1] - own[-1], sigma * (usual.mean() - usual), atol=1e-5)


def test_a_calibration_holds_until_photos_teach_more():
    head = fit_second_order(PLACES, carrier="partial")
    scorer = head.scorer(0)
    shift = np.full(len(scorer.sides[0].eigenvalues), 0.02)
    bias = np.linspace(-1, 1, len(PLACES))
    calibrated = replace(scorer, sides=(replace(scorer.sides[0], shift=shift),), bias=bias)
    rows, adapted = rows_of(calibrated, STREAM)
    assert np.array_equal(rows[0], calibrated.scores(STREAM)[0])
    np.testing.assert_array_equal(adapted.adaptation.start, shift)
    assert abs(np.corrcoef(rows[-1], bias)[0, 1]) < 0.6 < np.corrcoef(rows[0], bias)[0, 1]


def test_paper_calibrations_can_be_adapted(paper):
    calibrated = calibrate(paper, STREAM.select(slice(0, 20))).scorer(0)
    rows, _ = rows_of(calibrated, STREAM)
    assert np.array_equal(rows[0], calibrated.scores(STREAM)[0])
    assert np.isfinite(rows).all()


def test_a_camera_that_stands_still_teaches_once(second):
    still = STREAM.select(np.zeros(200, int))
    rows, adapted = rows_of(second, still)
    assert (adapted.counted, adapted.adaptation.seen) == (1, 200)
    assert adapted.moved == 0
    assert np.array_equal(rows[1], rows[199])


def test_a_blank_photo_and_one_that_is_not_finite_break_nothing(second):
    blank = Tokens(np.zeros((1, 12, 6)))
    photo = DescribedPhoto.of(second, blank)
    adapted = AdaptedScorer(second)
    assert np.isfinite(adapted.step(photo)).all()
    adapted.adaptation.observe(np.full(len(second.sides[0].eigenvalues), np.nan), np.ones(1), np.zeros(len(PLACES)))
    assert adapted.counted == 1
    with pytest.raises(BadSpec, match="tokens of 90"):
        DescribedPhoto.of(second, STREAM)


def test_images_that_are_not_to_be_found_have_no_column(second):
    columns = np.array([3, 5, 8, 30])
    rows, adapted = rows_of(second, STREAM, ids=[103, 105, 108, 130], columns=columns)
    assert rows.shape == (90, 4)
    np.testing.assert_allclose(rows[:20], rows_of(second, STREAM)[0][:20, columns], atol=1e-6)
    assert adapted.adaptation.window.bias().shape == (4,)
    adapted.set_images(second, [103, 130, 131], np.array([3, 30, 31]))
    bias = adapted.adaptation.window.bias()
    assert bias[2] == 0  # unknown: the mean


def test_it_survives_the_disk_and_goes_on_alike(second, tmp_path):
    photos = list(describe_photos(second, STREAM))
    one = AdaptedScorer(second)
    for photo in photos[:60]:
        one.step(photo)
    one.adaptation.save(tmp_path / "camera.safetensors", {"head": "x"})
    kept, about = Adaptation.load(tmp_path / "camera.safetensors")
    other = AdaptedScorer(second, adaptation=kept)
    assert about == {"head": "x"}
    assert kept.to_dict() == one.adaptation.to_dict()
    for photo in photos[60:]:
        assert np.array_equal(one.step(photo), other.step(photo))
    one = AdaptedScorer(second)
    assert np.array_equal(one.step(photos[0]), second.scores(STREAM.select([0]))[0])
    write_tensors(tmp_path / "other.safetensors", {"rows": np.zeros((1, 2))})
    with pytest.raises(BadFile, match="not an online adaptation"):
        Adaptation.load(tmp_path / "other.safetensors")
    tensors, metadata = one.adaptation.contents()
    facts = json.dumps({**json.loads(metadata["facts"]), "_weight": 10**400})
    write_tensors(tmp_path / "other.safetensors", tensors, {**metadata, "facts": facts})
    with pytest.raises(BadFile, match="too large"):
        Adaptation.load(tmp_path / "other.safetensors")
    write_tensors(tmp_path / "other.safetensors", {**tensors, "ids": np.zeros_like(tensors["ids"])}, metadata)
    with pytest.raises(BadFile, match="an image has several columns"):
        Adaptation.load(tmp_path / "other.safetensors")


def test_an_adaptation_is_of_the_sides_that_describe_photos(second, paper):
    assert digest_head(second) == digest_head(fit_second_order(PLACES, dtype="float64").scorer(0))
    assert digest_head(second) != digest_head(fit_second_order(STREAM, dtype="float64").scorer(0))
    assert digest_head(paper.scorer(0)) != digest_head(paper.scorer(1))


def test_a_window_forgets_the_oldest_and_knows_images_by_their_ids(monkeypatch):
    monkeypatch.setattr("tfa.online.adaptation.WINDOW_ROWS", 40)
    rows = np.random.default_rng(0).normal(size=(70, 5)).astype(np.float32)
    window = ScoreWindow()
    window.set_images([10, 11, 12, 13, 14])
    for row in rows:
        window.add(row)
    window.add(np.full(5, np.nan))
    assert window.seen == 70
    sigma = np.median(rows[30:].std(axis=1))
    usual = usual_scores(rows[30:] / sigma)
    np.testing.assert_allclose(window.bias(), sigma * (usual.mean() - usual), atol=1e-5)
    window.set_images([14, 10])
    assert window.bias().shape == (2,)
    with pytest.raises(BadSpec, match="5 scores for 2 images"):
        window.add(rows[0])
    window.set_images([20, 21])  # none of the images that were scored is left
    assert window.bias().tolist() == [0, 0]


@pytest.mark.skipif(not MEMORY.is_file(), reason="the memory of a process is read from /proc")
def test_an_edit_takes_no_memory_for_photos_that_are_not_seen_yet():
    window, before = ScoreWindow(), count_resident_bytes()
    window.set_images(np.arange(100_000))
    window.add(np.zeros(100_000))
    window.set_images(np.arange(1, 100_001))
    assert count_resident_bytes() - before < window._table.nbytes / 2
    assert np.isnan(window.rows[0]).nonzero()[0].tolist() == [99_999]


def count_resident_bytes():
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

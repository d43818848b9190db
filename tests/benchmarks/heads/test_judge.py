"""The judge: its evidence, its decisions and their wording, on synthetic worlds."""

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tests.worlds import seen_again, world
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.errors import FewPhotos
from tfa.maps import PlaceMap
from tfa.maps.state import NamedHead
from tfa.method.decisions import SecondOrderDecisions
from tfa.method.evidence import NO_ANSWER
from tfa.method.second_order_head import SCORE_FROM
from tfa.reference import second_order as reference
from tfa.types import BuildOptions
from tfa.verification.patches import prepare_photo_evidence
from tfa_bench.heads.judge import (
    OTHERS,
    TARGET_FROM,
    calibrate_judged,
    choose_judged,
    compute_evidence_roots,
    cross_fitted_answers,
    describe_judged,
    explain_judgment,
    fit_judged,
    select_on_described_target,
)

GRID = (3, 4)


def on_grid(tokens):
    return Tokens(tokens.patches, tokens.cls, grid=GRID)


def test_the_incumbent_stays_unless_a_challenger_is_clearly_ahead():
    rng = np.random.default_rng(0)
    incumbent = rng.uniform(1, 2, 50)
    noise = rng.normal(size=50)
    noise -= noise.mean()
    error = noise.std(ddof=1) / np.sqrt(50)
    roots = {"a": incumbent, "b": incumbent + noise + 1.9 * error}
    winner, seen = choose_judged(roots, "a", margin=2.0)
    assert winner == "a"
    assert seen["b"].difference == pytest.approx(1.9 * error)
    assert seen["b"].difference_error == pytest.approx(error)
    assert choose_judged({**roots, "c": incumbent + noise + 2.1 * error}, "a", margin=2.0)[0] == "c"
    assert choose_judged(roots, "a", margin=1.0)[0] == "b"


def test_of_equal_challengers_the_earlier_wins_and_missing_answers_do_not_count():
    incumbent = np.array([1.0, 1.2, np.nan, 1.1])
    better = np.array([2.0, 2.2, 9.0, 2.1])
    winner, seen = choose_judged({"a": incumbent, "b": better, "c": better.copy()}, "a", margin=1.0)
    assert winner == "b"
    assert seen["b"].value == pytest.approx(2.1)  # the third photo counts for none
    nothing, seen = choose_judged({"a": np.full(3, np.nan), "b": np.ones(3)}, "a", margin=1.0)
    assert (nothing, seen["b"].value) == ("a", 0.0)


def test_a_photo_is_compared_once_with_each_answer():
    calls = []

    def evidence(photo, images):
        calls.append((photo, tuple(images)))
        return np.array([float(photo + 10 * image) for image in images])

    answers = {"a": np.array([1, 2, NO_ANSWER]), "b": np.array([1, 3, NO_ANSWER])}
    roots = compute_evidence_roots(answers, evidence)
    assert sorted(calls) == [(0, (1,)), (1, (2, 3)), (2, ())]  # by several threads
    assert roots["a"][:2] == pytest.approx(np.sqrt([10, 21]))
    assert roots["b"][:2] == pytest.approx(np.sqrt([10, 31]))
    assert np.isnan(roots["a"][2])


def test_own_evidence_is_what_the_other_photos_lack():
    table = np.random.default_rng(0).uniform(0, 4, (30, 6))  # photo, image
    answers = {"hub": np.zeros(30, np.int64), "other": np.arange(30) % 6}
    roots = compute_evidence_roots(answers, lambda photo, images: table[photo, images], subtract_usual=True)
    spread = np.unique(np.linspace(0, 29, OTHERS + 1).round().astype(int))
    for row in (0, 7, 29):
        others = [p for p in spread if p != row][:OTHERS]
        image = row % 6
        expected = np.sqrt(table[row, image]) - np.sqrt(table[others, image]).mean()
        assert roots["other"][row] == pytest.approx(expected)


def test_cross_fitted_answers_learn_from_the_other_half():
    database, target = world(), seen_again(world(), seed=4)
    fitted = pipeline.fit_second_order(database, dtype="float64").fitted
    space = fitted.spaces[0]
    view = space.side.describe(target, True, "float64")
    head = fitted.decisions("partial", centring=True, score=True)
    kernel = head.kernel("second_order", 0)

    def learnt(half):
        own = view.coordinates[half]
        shift = own.sum(axis=0) / (len(own) + 8)
        level = np.zeros(len(target))
        bias = reference.score_bias(space.scores_of(own - shift, level[half], kernel) / 0.3)
        return lambda rows: (space.scores_of(view.coordinates[rows] - shift, level[rows], kernel) / 0.3 - bias).argmax(
            axis=1
        )

    expected = np.zeros(len(target), np.int64)
    halves = np.arange(len(target))[0::2], np.arange(len(target))[1::2]
    for judged, seen in (halves, halves[::-1]):
        expected[judged] = learnt(seen)(judged)
    assert np.array_equal(cross_fitted_answers(space, view, head, kernel, 0.3), expected)


def test_the_reason_says_it_in_words():
    head = SecondOrderDecisions(representation="second_order", carrier="partial", centring=True)
    assert describe_judged(head) == "second-order, partial whitening, centred on the target photos"
    other = SecondOrderDecisions(representation="soft", carrier="original")
    assert describe_judged(other) == "soft residuals, no whitening"
    _, seen = choose_judged({head.name: np.array([1.0, 3.0]), other.name: np.array([1.0, 1.0])}, head.name, 1.0)
    words = explain_judgment(head, seen, head.name, "2 photos")
    assert words.endswith("its first answers share 2.00 ± 1.00 of evidence with 2 photos, the next best 1.00")


def test_a_judged_head_names_every_candidate():
    database = on_grid(world(40))
    head = fit_judged(database)
    assert head.data_used == "database"
    assert set(head.evidence.candidates) >= {"second_order/tempered", "second_order/partial", "hard/original"}
    assert not any("full" in name for name in head.evidence.candidates)  # pseudo queries say nothing about it
    assert head.decisions.name in head.evidence.candidates
    assert head.evidence.to_dict()["photos"] == 40
    assert "evidence with 40 map images" in head.evidence.reasons["judge"]
    assert head.search(database, k=1)[0][:, 0].tolist() == list(range(40))


def test_a_residual_challenger_that_wins_is_fitted_whole(monkeypatch):
    monkeypatch.setattr("tfa_bench.heads.judge.choose_judged", lambda roots, *_: ("soft/partial", dict.fromkeys(roots)))
    monkeypatch.setattr("tfa_bench.heads.judge.explain_judgment", lambda *_: "because")
    database = on_grid(world(12))
    head = fit_judged(database)
    assert (head.decisions.representation, head.decisions.carrier) == ("soft", "partial")
    plain = pipeline.fit(database)
    used = [(1.0, plain.branches["soft", 0], head.decisions.kernel("soft", 0))]
    from tfa.core.arrays import Spill
    from tfa.method.head import replica_scorer

    expected = replica_scorer(used, plain.spec, plain.dtype, Spill()).scores(database)
    assert np.array_equal(head.scores(database), expected)


def test_without_a_grid_nothing_is_judged():
    head = fit_judged(world())
    assert head.decisions.name == "second_order/tempered"
    assert head.evidence.candidates == {}
    assert "not judged, how the patches lie is not known" in head.evidence.reasons["judge"]


@pytest.mark.slow
def test_target_photos_judge_every_calibration():
    database = on_grid(world(70))
    target = on_grid(seen_again(database))
    head = fit_judged(database, target)
    assert head.data_used == "target"
    names = set(head.evidence.candidates)
    assert {"second_order/full+centring+score", "second_order/partial", "second_order/original+score"} <= names
    assert "second_order/original+centring" not in names  # S_0 has no mean to take queries from
    assert head.evidence.incumbent == "second_order/partial+centring+score"
    assert "70 target photos" in head.evidence.reasons["judge"]


def test_few_target_photos_calibrate_without_a_judge():
    database = on_grid(world(30))
    few = on_grid(seen_again(database)).select(range(SCORE_FROM - 1))
    with pytest.warns(FewPhotos):
        head = fit_judged(database, few)
    assert (head.decisions.centring, head.decisions.score_calibrated) == (True, False)
    head = fit_judged(database, on_grid(seen_again(database)))
    assert (head.decisions.centring, head.decisions.score_calibrated) == (True, True)
    assert f"{TARGET_FROM} are enough" in head.evidence.reasons["judge"]


def test_the_judge_prefers_answers_that_bear_evidence():
    """Evidence that favours one carrier's answers makes it win."""
    database, target = world(70), seen_again(world(70), seed=9, noise=0.9)
    fitted = pipeline.fit_second_order(database).fitted
    space = fitted.spaces[0]
    view = space.side.describe(target, True, "float32")
    kernel = fitted.decisions("original").kernel("second_order", 0)
    favoured = cross_fitted_answers(space, view, fitted.decisions("original"), kernel, 1.0)

    def evidence(photo, images):
        return np.where(images == favoured[photo], 9.0, 0.1)

    decisions, seen = select_on_described_target(fitted, space, view, evidence)
    assert decisions.name == "second_order/original"
    assert seen.candidates["second_order/original"].value > seen.candidates[seen.incumbent].value


# --- maps have what the judge's incumbents are -----------------------------------------------------------------------


@pytest.fixture
def photographed(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    for place in range(14):
        photo(tmp_path / "town" / f"{place:02d}.png", place)
        photo(tmp_path / "camera" / f"{place:02d}.png", place, light=0.7)
    return tfa.encode(tmp_path / "town", FakeEncoder()), tfa.encode(tmp_path / "camera", FakeEncoder())


@pytest.mark.parametrize("storage", ["float32", "int7"])
def test_a_map_answers_as_a_judged_one_whose_incumbent_won(photographed, tmp_path, storage):
    database, camera = photographed
    judged = fit_judged(database.tokens, spec=SPEC)
    assert judged.decisions.name == judged.evidence.incumbent == "second_order/tempered"
    options = BuildOptions(storage=storage)
    expected = PlaceMap.from_head(judged, database, FakeEncoder(), map_spec=options)
    built = PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=options)
    every = {"k": 14, "calibration": "none"}
    for rerank in (False, True, None):
        assert built.query_tokens(camera.tokens, rerank=rerank, **every) == expected.query_tokens(
            camera.tokens, rerank=rerank, **every
        )
    assert built.info().verification == expected.info().verification
    scores = built.state.head.scorer.scores(camera.tokens)
    np.testing.assert_array_equal(scores, expected.state.head.scorer.scores(camera.tokens))
    if storage == "float32":
        np.testing.assert_allclose(scores, judged.scores(camera.tokens), rtol=1e-3)


def test_a_map_is_calibrated_as_a_judged_one_whose_incumbent_won(photographed, tmp_path):
    database, camera = photographed
    built = PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC)
    built.calibrate(tmp_path / "camera")
    state = built.state
    spaces = state.spaces.fitted(len(database.paths), SPEC, None)
    evidence = prepare_photo_evidence(state.compact, camera.tokens)
    judged = calibrate_judged(spaces, camera.tokens, evidence)
    assert judged.decisions.name == "second_order/partial+centring+score"
    assert built.state.chosen("target").decisions == judged.decisions.to_dict()
    expected = NamedHead.of("target", judged, 0, "int7", spaces=state.spaces).stored.scorer
    np.testing.assert_array_equal(
        built.state.chosen("target").stored.scorer.scores(camera.tokens), expected.scores(camera.tokens)
    )

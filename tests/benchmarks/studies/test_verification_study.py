"""The study of verification on fields whose geometry is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from studies import verification as arrangements
from studies import verification as verification_study
from studies.verification import (
    BUILT,
    VARIANTS,
    Pair,
    StoredPatch,
    Studied,
    Study,
    Variant,
    answers,
    of_factors,
    study_dataset,
    thinned,
)
from tests.benchmarks.fields import GRID, SHARED, SHIFT, town
from tests.fakes import FakeEncoder
from tests.online.test_sequence_filter import KnownEvidence
from tfa.core.arrays import l2_normalize
from tfa.errors import BadSpec
from tfa.method.described_queries import DescribedQueries
from tfa.types import HeadSpec
from tfa.verification import matching
from tfa.verification.reranking import UNVERIFIED, rerank
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.protocols import Fold, Split
from tfa_bench.records import Truth
from tfa_bench.run import Bench

PLACES = 7
DATABASE, QUERIES = town(PLACES)


def unit(tokens, image):
    return l2_normalize(np.asarray(tokens.patches[image], np.float32))


def pair_of(query, image):
    return Pair(unit(QUERIES, query), unit(DATABASE, image), GRID, GRID)


@pytest.fixture(scope="module")
def bench():
    names = [[f"{i:02}.png" for i in range(len(t))] for t in (DATABASE, QUERIES)]
    positives = tuple(np.array([2 * place]) for place in range(PLACES))
    truth = Truth("town", "Town", tuple(names[0]), tuple(names[1]), positives, {}, "by hand")
    photos = Photos(DATABASE), Photos(DescribedQueries(QUERIES))
    return Bench(None, truth, FakeEncoder(), *photos, "", HeadSpec(words=4))


@pytest.fixture(scope="module")
def studied(bench):
    return study_dataset(bench, head_card("soft-partial"), "tuning")


@pytest.mark.slow
def test_geometry_finds_what_patches_alone_do_not(studied):
    assert studied.recall.keys() == VARIANTS.keys()
    assert studied.queries == PLACES
    for name in ("none", "no-geometry"):
        assert studied.recall[name] == 0, name
    # A window of nine cells is wider than this small grid is apart, and so tells less.
    for name in (BUILT, "window-3", "window-5", "window-7", "similarity", "affine", "homography", "dimensions-full"):
        assert studied.recall[name] == 1, name
    assert studied.recall["window-9"] < 1


@pytest.mark.slow
def test_a_calibrated_head_is_evaluated_on_the_queries_of_its_first_split_only(bench):
    result = study_dataset(bench, head_card("tfa-c4+"), "confirmation", shared=Shared(spec=bench.spec))
    assert (result.head, result.half, result.queries) == ("tfa-c4+", "confirmation", PLACES - 4)
    assert result.recall[BUILT] == 1


@pytest.mark.slow
def test_the_default_is_the_verified_head(bench):
    head = head_card("tfa-v-always").fit(bench.database, Shared(spec=bench.spec))
    answered = head.scores(bench.queries, "0").argmax(axis=1)
    own = study_dataset(bench, head_card("tfa"), "tuning")
    assert own.recall[BUILT] == (answered == 2 * np.arange(PLACES)).mean()


@pytest.mark.parametrize(("query", "image"), [(0, 0), (0, 1), (3, 6), (2, 9)])
def test_as_built_is_the_evidence_of_the_map(query, image):
    pair = pair_of(query, image)
    assert arrangements.as_built(pair) == matching.measure_evidence(pair.query, pair.candidate[None], GRID, GRID)[0]
    one = max(arrangements.window_of(side)(pair) for side, _ in matching.BY_EVIDENCE)
    assert one == pytest.approx(arrangements.as_built(pair), rel=1e-5)


@pytest.mark.parametrize("half", [0, 1, 4])
def test_votes_of_a_window_are_those_of_a_plain_loop(half):
    pair = pair_of(1, 3)
    ours, theirs = pair.mutual
    weights = np.random.default_rng(0).random(len(ours))
    down, right = matching.compute_displacements(ours, theirs, GRID, GRID)
    sums = [
        weights[(abs(down - y) <= half) & (abs(right - x) <= half)].sum()
        for y in range(-GRID[0], GRID[0] + 1)
        for x in range(-GRID[1], GRID[1] + 1)
    ]
    assert arrangements.voted(pair, ours, theirs, half=half, weights=weights) == pytest.approx(max(sums))


def test_shared_patches_are_counted_and_weighted():
    pair = pair_of(4, 8)
    ours, theirs = pair.mutual
    moved = np.stack(matching.compute_displacements(ours, theirs, GRID, GRID), axis=1) == SHIFT
    assert moved.all(axis=1).sum() == SHARED
    true = moved.all(axis=1)
    votes = pair.distinctiveness[ours]
    narrow, wide = arrangements.window_of(3, 1.0)(pair), arrangements.window_of(9, 1.0)(pair)
    assert votes[true].sum() - 1e-4 <= narrow <= wide + 1e-9
    assert wide <= arrangements.without_geometry(pair) + 1e-4
    assert arrangements.without_geometry(pair) == pytest.approx(votes.sum())
    assert arrangements.one_way(pair) >= arrangements.window_of(5, 1.0)(pair) - 1e-4
    assert arrangements.counted(pair) >= arrangements.USUAL * SHARED
    similarities = np.sort(pair.similarities, axis=1)
    assert np.allclose(pair.distinctiveness, similarities[:, -1] - similarities[:, -2])
    alike = pair.similarities[ours, theirs][true].sum()
    assert arrangements.by_similarity(pair) >= arrangements.USUAL * alike - 1e-4
    assert votes[true].sum() - 1e-4 <= arrangements.similarity(pair) <= votes.sum() + 1e-4


@pytest.mark.parametrize("measure", [arrangements.similarity, arrangements.affine, arrangements.homography])
def test_a_turned_photo_is_explained_by_a_transformation_and_not_by_a_shift(measure):
    patches = unit(DATABASE, 0)
    turned = np.rot90(patches.reshape(*GRID, -1)).reshape(len(patches), -1)
    pair = Pair(patches, turned, GRID, GRID)
    assert measure(pair) == pytest.approx(pair.distinctiveness.sum(), rel=1e-5)  # every patch agrees
    assert arrangements.window_of(3)(pair) < pair.distinctiveness.sum() / 2
    assert measure(pair) == measure(Pair(patches, turned, GRID, GRID))  # the same draw each time


@pytest.mark.parametrize("measure", dict.fromkeys(v.measure for v in VARIANTS.values() if v.measure is not None))
def test_a_single_patch_and_patches_all_alike_are_measured_without_complaint(measure):
    one = l2_normalize(np.ones((1, 3), np.float32))
    assert measure(Pair(one, one, (1, 1), (1, 1))) <= 1.001
    alike = l2_normalize(np.ones((6, 3), np.float32))
    assert 0 <= measure(Pair(alike, alike, (2, 3), (2, 3))) <= 6.001


def test_a_magnified_photo_is_beyond_the_scales_allowed():
    small = Pair(*(np.eye(9, dtype=np.float32),) * 2, (3, 3), (3, 3))
    assert arrangements.similarity(small) == 9  # each of nine matches is one more than any other
    wide = np.zeros((27 * 27, 9), np.float32)
    wide[[27 * 12 * (i // 3) + 12 * (i % 3) for i in range(9)]] = np.eye(9)
    assert arrangements.similarity(Pair(np.eye(9, dtype=np.float32), wide, (3, 3), (27, 27))) < 9


def test_each_way_compares_its_own_candidates_and_matches_are_computed_once():
    compared, scores = [], np.arange(10.0)
    variants = {
        "none": Variant(factor="", title="", measure=None),
        "two": Variant(factor="", title="", candidates=2, measure=arrangements.without_geometry),
        "three": Variant(factor="", title="", candidates=3, measure=arrangements.without_geometry),
        "wide": Variant(factor="", title="", candidates=2, measure=arrangements.one_way),
        "narrow": Variant(factor="", title="", candidates=1, stored=StoredPatch(64)),
    }

    def pair(stored, image):
        compared.append((stored.dimensions, image))
        return pair_of(0, {7: 1}.get(image, 3))  # image 7 holds every patch of query 0

    found = answers(scores, pair, variants)
    assert {name: one.candidates for name, one in found.items()} == {
        "none": 0, "two": 2, "three": 3, "wide": 2, "narrow": 1,
    }  # fmt: skip
    assert found["none"].image == found["two"].image == found["narrow"].image == 9
    assert found["three"].image == 7
    assert sorted(compared) == [(64, 9), (128, 7), (128, 8), (128, 9)]
    assert answers(np.ones(10), pair, variants) == dict.fromkeys(variants, (-1, 0))


def test_as_built_the_candidates_are_those_of_rerank():
    rng = np.random.default_rng(0)
    variants = {"built": Variant(factor="", title="", candidates="auto", measure=lambda image: float(evidence[image]))}
    counts = []
    for _ in range(20):
        scores, evidence = rng.normal(size=120), rng.gamma(1.0, 0.15, size=120)
        found = answers(scores, lambda stored, image: image, variants)["built"]
        table = KnownEvidence(evidence[None])
        best = rerank(scores[None], 100, "auto", table)
        assert found == (best.indices[0, 0], (best.inliers != UNVERIFIED).sum())
        counts.append(found.candidates)
    assert len(set(counts)) > 3


def test_factors_are_chosen_by_name():
    assert of_factors(None) == VARIANTS
    assert list(of_factors(["candidates"]))[:3] == ["none", BUILT, "candidates-10"]
    assert {one.factor for one in of_factors(["candidates", "fusion"]).values()} == {"", "candidates", "fusion"}
    with pytest.raises(BadSpec, match="unknown factor 'colour'; use geometry, cells, matches"):
        of_factors(["colour"])


def test_queries_can_be_thinned():
    split = Split(0, (Fold(np.arange(3), np.arange(10, 20)), Fold(np.arange(3), np.arange(20, 24))))
    assert thinned(split, None) is split
    few = thinned(split, 5)
    assert [fold.evaluated.tolist() for fold in few.folds] == [[10, 14, 19], [20, 22, 23]]
    assert few.folds[0].calibration.tolist() == [0, 1, 2]


def test_halves_go_by_position_and_each_dataset_counts_once():
    def one(name, half, recall):
        return Studied(name, name, half, "tfa", 5, dict.fromkeys(VARIANTS, recall), 12.5, {BUILT: 960})

    assert [verification_study.half_of(i) for i in range(3)] == ["tuning", "confirmation", "tuning"]
    study = Study("tfa", "fake", (one("a", "tuning", 0.5), one("b", "confirmation", 0.1), one("c", "tuning", 1.0)))
    assert study.mean(BUILT, "tuning") == 0.75
    assert study.mean(BUILT, "confirmation") == 0.1
    facts = json.loads(json.dumps(study.to_dict(), allow_nan=False))
    assert [row["name"] for row in facts["variants"]] == list(VARIANTS)
    assert [row["name"] for row in facts["variants"] if row["default"]] == [BUILT]
    assert facts["variants"][1]["recall"] == {"a": 0.5, "b": 0.1, "c": 1.0}
    assert facts["datasets"][1] == {
        "dataset": "b", "title": "b", "half": "confirmation", "queries": 5, "candidates": 12.5,
    }  # fmt: skip
    alone = Study("tfa", "fake", (one("a", "tuning", 0.5),))
    assert alone.mean(BUILT, "confirmation") is None
    assert verification_study.joined([*study.datasets], "fake") == [study]
    with pytest.raises(BadSpec, match="is repeated"):
        verification_study.check_halves(["a", "b", "a"])

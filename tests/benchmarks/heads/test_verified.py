"""Reranking heads: order of candidates, caching, and when they equal the base head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.fields import town
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.maps.confidence import DatabaseScores
from tfa.method.described_queries import DescribedQueries
from tfa.search.gallery import top_k
from tfa.types import AUTO, HeadSpec, RerankSpec
from tfa.verification import patches, reranking
from tfa.verification.matching import ONE_WINDOW, measure_evidence
from tfa.verification.patches import CompactTokens
from tfa.verification.reranking import UNVERIFIED, rerank
from tfa_bench.heads.admission import VerificationEvidence
from tfa_bench.heads.catalogue import GROUPS, head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.tfa_heads import PatchPairs
from tfa_bench.heads.verified import VerifiedHead, lifted, verified
from tfa_bench.tables.table_specs import _kind

pytestmark = pytest.mark.slow

DATABASE, QUERIES = town(places=14)  # 28 images
SPEC = HeadSpec(words=4)


def fit(name: str, database: Tokens = DATABASE):
    return head_card(name).fit(Photos(database), Shared(spec=SPEC))


@pytest.fixture(scope="module")
def always():
    return fit("tfa-v-always")


def scores_between(count: int, images: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, images)).astype(np.float32)


def plain_order(row: np.ndarray, query: np.ndarray, database: list[np.ndarray]) -> list[int]:
    """Candidates by (fused score, index), as many as pay, then the others."""
    row = row.astype(np.float64)
    ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))
    score, roots = {}, []
    for image in ranked:
        votes = measure_evidence(query, database[image][None], DATABASE.grid, DATABASE.grid, ONE_WINDOW)
        z = (row[image] - row.mean()) / (row.std() + 1e-12)
        if len(roots) in (10, 15, 20, 25) and max(score.values()) > z + 4 * (np.median(roots) + 0.625):
            break
        score[image] = reranking.combine_scores(np.array([z]), votes, reranking.EARLIER_WEIGHT)[0]
        roots.append(np.sqrt(votes[0]))
    return sorted(score, key=lambda i: (-score[i], i)) + ranked[len(score) :]


def test_the_ranking_is_the_fused_one_and_then_the_old_one(always):
    base = always.base.scores(Photos(QUERIES), "1")
    ranked = top_k(always.scores(Photos(QUERIES), "1"), len(DATABASE))[0]
    compact = always.pairs.store.compaction.compact
    queries = [compact(QUERIES.patches[i]) for i in range(len(QUERIES))]
    levels = [patches.quantize_rows(compact(DATABASE.patches[i])) for i in range(len(DATABASE))]
    database = [patches.restore_rows(level) for level in levels]
    for row, query, order in zip(base, queries, ranked, strict=True):
        assert order.tolist() == plain_order(row, query, database)


def test_patches_that_lie_alike_overcome_patches_in_disorder(always):
    right = 2 * np.arange(len(QUERIES))
    assert (always.base.scores(Photos(QUERIES), "0").argmax(axis=1) == right).mean() < 0.5
    assert (always.scores(Photos(QUERIES), "0").argmax(axis=1) == right).all()


def own_scores(database):
    """What map images score with each other, which confidence needs."""
    return DatabaseScores(pipeline.fit(database).scorer(0))


def test_of_duplicates_the_first_is_ahead_also_where_it_alone_is_a_candidate():
    database = DATABASE.select(np.r_[np.arange(len(DATABASE)), 5])
    last = len(database) - 1
    for candidates in (2, 3, 4):  # neither, the first alone, both
        pairs = PatchPairs(database, RerankSpec(candidates=candidates))
        scores = scores_between(len(QUERIES), len(database))
        scores[:, last] = scores[:, 5] = np.sort(scores, axis=1)[:, -3]  # the third place, shared
        found, _ = verified(scores, pairs.of(QUERIES), candidates, own_scores(database))
        for row in top_k(found, len(database))[0].tolist():
            assert row.index(5) < row.index(last)


def test_lifted_images_keep_their_order_where_rounding_or_a_tie_would_merge_them():
    scores = np.array([1e9, 1e9 - 1, 5.0, 4.0, 1e9 - 2])
    row = lifted(scores, np.array([1, 4, 0]), np.array([np.nextafter(1.0, 2.0), 1.0, 1.0]))
    assert row[1] > row[4] > row[0] >= scores.max()
    assert row[[2, 3]].tolist() == [5.0, 4.0]
    assert top_k(row[None], 5)[0].tolist() == [[1, 4, 0, 2, 3]]


def test_a_row_of_equal_scores_stays_as_it_is():
    scores = np.full((len(QUERIES), len(DATABASE)), 0.1, np.float32)
    found, sure = verified(scores, PatchPairs(DATABASE).of(QUERIES), 20, own_scores(DATABASE))
    np.testing.assert_array_equal(found, scores)
    assert not sure.any()


def test_rows_do_not_depend_on_each_other(always):
    together = always.scores(Photos(QUERIES), "2")
    alone = [always.scores(Photos(QUERIES.select([i])), "2") for i in range(len(QUERIES))]
    np.testing.assert_array_equal(np.concatenate(alone), together)


def test_what_is_remembered_is_what_is_found_anew_and_no_pair_is_matched_twice(always, monkeypatch):
    fresh = always.scores(Photos(QUERIES), "0")
    matched, real = [], CompactTokens.match_each

    def watched(self, queries, grid, images, threads=None):
        matched.extend(map(len, images))
        return real(self, queries, grid, images, threads)

    monkeypatch.setattr(CompactTokens, "match_each", watched)
    photos = Photos(DescribedQueries(QUERIES))
    np.testing.assert_array_equal(always.scores(photos.select([3, 1]), "0"), fresh[[3, 1]])
    np.testing.assert_array_equal(always.scores(photos, "0"), fresh)
    once = sum(matched)
    counted = rerank(always.base.scores(photos, "0"), 28, AUTO, always.pairs.of(photos.tokens)).inliers != UNVERIFIED
    assert once == sum(matched) == counted.sum()
    np.testing.assert_array_equal(always.scores(photos.select([5]), "0"), fresh[[5]])
    assert sum(matched) == once
    always.scores(Photos(QUERIES), "0")
    assert sum(matched) == 2 * once  # not of a remembered set: nothing was kept


def test_heads_of_one_database_share_their_pairs():
    shared = Shared(spec=SPEC)
    heads = [head_card(name).fit(Photos(DATABASE), shared) for name in ("tfa-v-always", "tfa-c8-v")]
    assert heads[0].pairs is heads[1].pairs


def judged(share: float) -> VerificationEvidence:
    return VerificationEvidence(favours_candidates=share, photos=25, kind="photos")


def test_a_peer_is_verified_where_that_is_admitted():
    plain, head, right = fit("anyloc"), fit("anyloc-v"), 2 * np.arange(len(QUERIES))
    scores = plain.scores(Photos(QUERIES), "0")
    assert head.admission.photos == len(DATABASE)
    assert head.decisions["verification"]["used"] is head.admission.admitted
    refused, admitted = (replace(head, admission=judged(share)) for share in (0.7, 0.72))
    np.testing.assert_array_equal(refused.scores(Photos(QUERIES), "0"), scores)
    found = admitted.scores(Photos(QUERIES), "0").argmax(axis=1)
    assert (found == right).mean() > (scores.argmax(axis=1) == right).mean()


@pytest.mark.parametrize(("admission", "used"), [(judged(0.72), True), (judged(0.7), False), (None, False)])
def test_a_refused_head_is_the_head_it_stands_on_bit_for_bit(always, admission, used):
    head = VerifiedHead(always.base, always.pairs, False, admission)
    scores, base = (one.scores(Photos(QUERIES), "0") for one in (head, always.base))
    assert head.decisions["verification"]["used"] is used
    assert {key: head.decisions[key] for key in always.base.decisions} == always.base.decisions
    if used:
        np.testing.assert_array_equal(scores, always.scores(Photos(QUERIES), "0"))
        assert not np.array_equal(scores, base)
    else:
        np.testing.assert_array_equal(scores, base)
        assert scores.dtype == base.dtype


@pytest.mark.parametrize("name", ["tfa-v", "dual-v", "tfa-ensemble-v"])
def test_without_calibration_the_database_decides(name):
    head = fit(name)
    decision = head.decisions["verification"]
    assert head.data_used == "database"
    assert decision["photos"] == len(DATABASE)
    assert "self-tests" in decision["reason"]
    counts = {key: decision[key] for key in ("favours_candidates", "photos")}
    again = VerificationEvidence(**counts, kind="self-tests")
    assert decision["used"] is decision["admitted"] is again.admitted
    assert decision["reason"] == again.reason


@pytest.mark.parametrize("name", ["tfa-c64-v", "dual-c64-v", "tfa-c64+-ensemble-v"])
def test_calibration_photos_decide_where_there_are_any(name):
    head = fit(name)
    assert head.admission is None
    assert head.data_used == "database"
    calibrated = head.calibrate(Photos(QUERIES))
    assert calibrated.data_used == "target"
    assert calibrated.admission.photos == len(QUERIES)
    assert "calibration photos" in calibrated.admission.reason
    assert head.admission is None


def test_no_grid_is_said(always):
    blind = Tokens(np.asarray(QUERIES.patches))
    with pytest.raises(BadTokens, match=r"grid=\(rows, columns\)"):
        always.scores(Photos(blind), "0")
    with pytest.raises(BadTokens, match="needs the patch grid"):
        fit("tfa-v-always", Tokens(np.asarray(DATABASE.patches)))


@pytest.mark.parametrize("name", ["tfa-v", "tfa-c64-v", "tfa-c64-v-always", "tfa-c64+-ensemble-v", "dual-c64-v"])
def test_verified_heads_stand_beside_the_papers(name):
    card = head_card(name)
    assert card.note == "ours, beyond the paper"
    assert card.settings["verification"]["always"] is name.endswith("always")
    assert _kind(name) == "Ours, beyond the paper"


def test_the_group_holds_both_kinds_of_four_heads():
    assert len(GROUPS["verified"]) == 8
    assert {"tfa-v", "tfa-v-always", "tfa-c64+-v", "dual-c64-v-always"} <= set(GROUPS["verified"])


@pytest.mark.parametrize("name", ["tfa+-v", "anyloc-k32-v", "tfa-no-cls-v", "tfa-v-never", "-v", "tfa-v-v"])
def test_only_heads_of_the_family_are_verified(name):
    with pytest.raises(BadSpec, match="unknown head"):
        head_card(name)

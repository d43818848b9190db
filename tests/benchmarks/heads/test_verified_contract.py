"""A "+V" row measures the real map: a reranking head and a map of the same tokens agree."""

from __future__ import annotations

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.maps import PlaceMap
from tfa.method.described_queries import DescribedQueries
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, HeadSpec, RerankSpec
from tfa.verification.reranking import plan_rounds
from tfa_bench.heads.catalogue import head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.tfa_heads import PatchPairs
from tfa_bench.heads.verified import VerifiedHead
from tfa_bench.rank import ranked

pytestmark = pytest.mark.slow

SPEC = HeadSpec(words=6)
IMAGES = 26


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    """24 places and two of them again (the same file), and darker photos of 30 places."""
    folder = tmp_path_factory.mktemp("photos")
    for place in range(IMAGES - 2):
        photo(folder / "database" / f"{place:02d}.png", place)
    for copy in (24, 25):
        (folder / "database" / f"{copy}.png").write_bytes((folder / "database" / f"{copy - 20:02d}.png").read_bytes())
    for place in range(30):
        photo(folder / "queries" / f"{place:02d}.png", place, light=0.7)
    cache = TokenCache(folder / "cache")
    return [tfa.encode(folder / name, FakeEncoder(), cache=cache) for name in ("database", "queries")]


@pytest.mark.parametrize("candidates", [3, 20, 99, "auto"])
@pytest.mark.parametrize("calibrates", [False, True])
def test_a_verified_head_and_a_map_give_the_same_order_matches_and_confidence(encoded, candidates, calibrates):
    database, queries = encoded
    spec = RerankSpec(candidates=candidates)
    bench = head_card("tfa-c8-v-always" if calibrates else "tfa-v-always").fit(
        Photos(database.tokens), Shared(spec=SPEC)
    )
    photos = Photos(DescribedQueries(queries.tokens))
    if calibrates:
        bench = bench.calibrate(photos.select(slice(0, 8)))
    bench = VerifiedHead(bench.base, PatchPairs(database.tokens, spec, cells=True), always=True)
    kept = BuildOptions(storage="float32", rerank=spec)
    place_map = PlaceMap.from_head(bench.base.retriever, database, FakeEncoder(), map_spec=kept)

    answers = place_map.query_tokens(queries.tokens, k=IMAGES, rerank=True)
    scores, sure = bench.scores_and_confidence(photos, "0")
    order, _ = ranked(scores, IMAGES, np.dtype(np.int64))

    assert [[hit.id for hit in answer] for answer in answers] == order.tolist()
    np.testing.assert_allclose([answer[0].confidence for answer in answers], sure, rtol=1e-6)
    compared = bench.pairs.of(photos.tokens)
    for row, answer in enumerate(answers):
        verified = [hit for hit in answer if hit.inliers is not None]
        assert len(verified) in plan_rounds(candidates, IMAGES)
        images = np.array([hit.id for hit in verified])
        assert [hit.inliers for hit in verified] == compared.with_queries([row], [images])[0].inliers.tolist()

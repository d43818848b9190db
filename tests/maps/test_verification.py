"""Reranked answers: order of the fused score, and the decision of a build."""

import dataclasses
import json

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, reopened
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.maps import PlaceMap
from tfa.maps.confidence import SURE_CONFIDENCE
from tfa.photos.images import as_rgb
from tfa.types import BuildOptions, RerankSpec
from tfa.verification.matching import find_matches
from tfa.verification.reranking import combine_scores


def tokens_of(photos):
    return Tokens(*FakeEncoder().encode([as_rgb(path) for path in photos]), grid=(4, 4))


def admitting(place_map, admitted=True):
    """The map, as if verification had been judged so for every head."""
    heads = [
        dataclasses.replace(h, verification={**h.verification, "admitted": admitted}) for h in place_map.state.heads
    ]
    place_map.storage.replace_state(dataclasses.replace(place_map.state, heads=tuple(heads)))
    return place_map


# --- answers -----------------------------------------------------------------------------------------------------


class Watched:
    """Rows that note which of them are read."""

    def __init__(self, rows):
        self.rows, self.read, self.shape = rows, [], rows.shape

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, indices):
        self.read += list(indices)
        return self.rows[indices]


def test_nothing_is_read_of_images_that_are_no_candidates(place_map, dusk):
    compact = place_map.state.compact
    watched = Watched(compact.chunks[0])
    place_map.storage.replace_state(
        dataclasses.replace(place_map.state, compact=dataclasses.replace(compact, chunks=(watched,)))
    )
    place_map.query(dusk, rerank=False)
    assert watched.read == []
    candidates = {hit.id for hit in place_map.query(dusk, k=3, rerank=False)}
    place_map.query(dusk, rerank=True, candidates=3)
    assert set(watched.read) == candidates


def test_answers_are_ordered_by_the_fused_score_and_the_rest_follows(place_map, camera):
    tokens = tokens_of(sorted(camera.iterdir()))
    state, count = place_map.state, 6
    scores = state.head.scorer.scores(tokens)
    answers = place_map.query_tokens(tokens, k=99, rerank=True, candidates=count)
    compact = state.compact
    for row, answer in enumerate(answers):
        ranked = np.argsort(-scores[row], kind="stable")
        query = compact.compaction.compact(np.asarray(tokens.patches[row]))
        found = [find_matches(query, image[None], (4, 4), (4, 4))[0] for image in compact.rows(ranked[:count])]
        votes, counts = np.array([one.evidence for one in found]), np.array([one.count for one in found])
        own = scores[row].astype(np.float64)
        z = (own - own.mean()) / own.std()
        standing = combine_scores(z[ranked[:count]], votes)
        order = np.argsort(-standing, kind="stable")
        assert [hit.id for hit in answer] == [*ranked[:count][order], *ranked[count:]]
        assert [hit.inliers for hit in answer] == [*counts[order], *[None] * (14 - count)]
        np.testing.assert_array_equal([hit.score for hit in answer], scores[row, [hit.id for hit in answer]])
        assert all(0 < hit.confidence < 1 for hit in answer)


def test_fewer_hits_than_candidates_are_the_first_of_them(place_map, dusk):
    every = place_map.query(dusk, k=99, rerank=True, candidates=20)
    assert len(every) == 14
    assert all(hit.inliers is not None for hit in every)  # 20 candidates are all 14 images
    few = place_map.query(dusk, k=2, rerank=True, candidates=20)
    assert [hit.id for hit in few] == [hit.id for hit in every[:2]]
    # The products behind a confidence differ in the last bit between numbers of hits.
    assert [hit.confidence for hit in few] == pytest.approx([hit.confidence for hit in every[:2]], rel=1e-12)
    assert every[0].id == 5
    assert json.loads(json.dumps(every[0].to_dict()))["inliers"] == every[0].inliers


def test_a_map_verifies_as_many_candidates_as_pay(place_map, camera, dusk):
    photos = sorted(camera.iterdir())
    tokens, compact = tokens_of(photos), place_map.state.compact
    scores = place_map.state.head.scorer.scores(tokens).astype(np.float64)
    answers = place_map.query_tokens(tokens, k=99, rerank=True)
    assert compact.spec.candidates == "auto"
    for row, answer in enumerate(answers):
        ranked = np.argsort(-scores[row], kind="stable")
        z = (scores[row] - scores[row].mean()) / scores[row].std()
        roots = np.sqrt(compact.evidence(compact.query(tokens.select([row]))[0], (4, 4), ranked))
        pays = (z[ranked] + 5 * roots)[:10].max() <= z[ranked[10]] + 5 * (np.median(roots[:10]) + 0.625)
        assert sum(hit.inliers is not None for hit in answer) == (14 if pays else 10)
        assert {hit.id for hit in answer[:10]} == set(ranked[:10].tolist()) or pays
    assert answers[5].hits == place_map.query(photos[5], k=99, rerank=True, candidates="auto").hits
    assert [answer.hits for answer in place_map.query_many(photos, k=12, rerank=True)] == [a[:12] for a in answers]
    place_map.remove(list(range(7, 14)))
    assert [hit.inliers is None for hit in place_map.query(dusk, k=99, rerank=True)] == [False] * 7


def test_only_a_verified_and_confident_hit_is_sure(place_map, dusk):
    for hit in place_map.query(dusk, k=99, rerank=True):
        assert hit.sure == hit.to_dict()["sure"]
        assert hit.confidence >= SURE_CONFIDENCE or not hit.sure
    assert not any(hit.sure for hit in place_map.query(dusk, k=99, rerank=False))


@pytest.mark.parametrize("admitted", [True, False])
def test_a_map_verifies_by_itself_if_that_was_admitted(place_map, dusk, admitted):
    admitting(place_map, admitted)
    assert [hit.inliers is not None for hit in place_map.query(dusk)] == [admitted] * 5
    assert place_map.query_many([dusk])[0].hits == place_map.query(dusk, rerank=admitted).hits
    assert place_map.query_many([dusk], rerank=True)[0].hits[0].inliers is not None
    assert place_map.query_many([dusk], rerank=False)[0].hits[0].inliers is None
    assert place_map.query_tokens(tokens_of([dusk]), rerank=True, candidates=1)[0][1].inliers is None


def test_a_map_without_compact_tokens_says_how_to_get_them(town, dusk, cache):
    plain = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(rerank=False))
    assert plain.info().to_dict()["verification"] is None
    assert plain.query(dusk)[0].inliers is None
    for ask in (plain.query, lambda photo, rerank: plain.query_tokens(tokens_of([photo]), rerank=rerank)):
        with pytest.raises(BadSpec, match="build it with --rerank"):
            ask(dusk, rerank=True)
    with pytest.raises(BadSpec, match="candidates=0 is out of range: must be between 1 and 1000"):
        plain.query(dusk, candidates=0)
    with pytest.raises(BadSpec, match="candidates='many' is unknown; use auto or a number"):
        plain.query(dusk, candidates="many")


def test_photos_of_the_same_content_tie_when_verified_too(town, cache):
    (town / "99.png").write_bytes((town / "02.png").read_bytes())
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC)
    first, second = built.query(town / "02.png", k=2, rerank=True)
    assert (first.id, second.id) == (2, 14)
    assert (first.score, first.inliers) == (second.score, second.inliers)
    built.remove([2])
    assert built.query(town / "02.png", k=1, rerank=True)[0].id == 14


def test_tokens_whose_grid_is_not_known(place_map):
    admitting(place_map)
    patches, cls = np.random.default_rng(0).random((2, 6, 12)), np.ones((2, 6))
    assert place_map.query_tokens(Tokens(patches, cls))[0][0].inliers is None
    with pytest.raises(BadTokens, match="pass it"):
        place_map.query_tokens(Tokens(patches, cls), rerank=True)
    assert place_map.query_tokens(Tokens(patches, cls, grid=(2, 3)))[0][0].inliers is not None
    alike = Tokens(np.random.default_rng(0).random((1, 16, 12)), cls[:1])  # as many as the map's: its grid is meant
    assert place_map.query_tokens(alike)[0][0].inliers is not None


def test_an_emptied_map_has_nothing_to_verify(place_map, dusk):
    place_map.remove(list(range(14)))
    assert place_map.query(dusk, rerank=True).hits == []


def test_an_ensemble_is_verified(town, dusk, cache):
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(ensemble=True))
    assert built.query(dusk, k=1, rerank=True)[0].id == 5


# --- building ----------------------------------------------------------------------------------------------------


def test_the_decision_is_kept_with_its_numbers(place_map, saved):
    for opened in (place_map, reopened(saved)):
        told = json.loads(json.dumps(opened.info().to_dict()["verification"]))
        assert told["spec"] == RerankSpec().to_dict()
        assert (told["grid"], told["bytes_per_image"], told["photos"]) == ([4, 4], 16 * 12, 14)
        assert told["admitted"] is told["cells"] is True
        assert told["usual_evidence"] > 0
        assert told["reason"] == "on: the map stores patches"


def test_settings_of_verification_are_kept(town, dusk, cache, tmp_path):
    spec = RerankSpec(candidates=3, dimensions=5, max_pseudo=4)
    built = PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(rerank=spec))
    built.save(tmp_path / "m.tfa")
    opened = reopened(tmp_path / "m.tfa")
    assert opened.state.compact.spec == spec
    assert opened.info().to_dict()["verification"]["photos"] == 4
    assert opened.info().to_dict()["verification"]["bytes_per_image"] == 16 * 5
    assert [hit.inliers is None for hit in opened.query(dusk, rerank=True)] == [False] * 3 + [True] * 2


def test_tokens_without_a_grid_build_a_map_without_verification(town, cache):
    encoded = tfa.encode(town, FakeEncoder())
    head = tfa.fit(encoded.tokens, SPEC)
    patches = [np.asarray(patch) for patch in encoded.tokens.patches]
    ragged = [patches[0][:9], *patches[1:]]
    for given, why in ((patches, "patch grid of the images is unknown"), (ragged, "differ in their number of patches")):
        bare = dataclasses.replace(encoded, tokens=Tokens(given, encoded.tokens.cls))
        made = PlaceMap.from_head(head, bare, FakeEncoder(), map_spec=BuildOptions())
        assert any("without reranking" in note and why in note for note in made.notes)
        assert made.state.compact is None
    assert PlaceMap.from_head(head, encoded, FakeEncoder()).state.compact is None
    assert PlaceMap.from_head(head, encoded, FakeEncoder(), map_spec=BuildOptions()).state.compact is not None

"""Contributions of patches and words to a score: sums, plain formulas and maps."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import FakeEncoder, random_image
from tests.worlds import seen_again, world
from tfa.core.arrays import backend_for
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadTokens, UnknownImage
from tfa.explain.shares import ResidualPieces, attribute
from tfa.explain.why import explain_score
from tfa.maps import PlaceMap
from tfa.method.head import assemble
from tfa.method.scorer import GLOBAL
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache
from tfa.pipeline import fit
from tfa.reference import database as reference
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

SPEC = HeadSpec(words=8)


@pytest.fixture(scope="module")
def fitted():
    return fit(world(), SPEC)


def head_of(fitted, carrier, assignment, admit=False):
    decisions = dataclasses.replace(
        fitted.decisions, carrier=carrier, assignment=assignment, admit_cls=admit, c=0.4, beta=0.3
    )
    return assemble(fitted, decisions, fitted.evidence, backend_for("cpu"))


def local_score(found):
    return sum(one.contribution for one in found.terms if one.query is not None)


@pytest.mark.parametrize("replica", [0, "ensemble"])
@pytest.mark.parametrize("admit", [True, False])
@pytest.mark.parametrize("assignment", ["hard", "soft"])
@pytest.mark.parametrize("carrier", ["original", "partial", "adaptive"])
def test_patches_and_words_add_up_to_every_part(fitted, carrier, assignment, admit, replica):
    tokens, queries = world(), seen_again(world())
    scorer = head_of(fitted, carrier, assignment, admit).scorer(replica)
    for query, row in ((0, 0), (3, 7)):
        asked = queries.select([query])
        found = attribute(scorer, asked, tokens.select([row]), row)
        assert found.score == pytest.approx(float(scorer.scores(asked)[0, row]), rel=1e-5, abs=1e-6)
        for one in found.terms:
            if one.term.side == GLOBAL:
                assert one.query is None
                continue
            for table in (one.query, one.image):
                assert table.sum() == pytest.approx(one.contribution, rel=1e-9, abs=1e-12)
            # Nothing but float32 rounding is left to be shared out.
            assert np.abs(one.residue).max() < 1e-5 * max(abs(one.contribution), one.term.weight)
        for of in ("query", "image"):
            assert found.patches(of).sum() == pytest.approx(local_score(found), rel=1e-6, abs=1e-9)
            assert sum(w.sum() for w in found.words(of).values()) == pytest.approx(
                local_score(found), rel=1e-6, abs=1e-9
            )
        assert any(one.term.side == GLOBAL and one.contribution != 0 for one in found.terms) == admit


@pytest.mark.parametrize("carrier", ["partial", "adaptive"])
def test_patches_of_a_centred_head_add_up_too(fitted, carrier):
    tokens, queries = world(), seen_again(world())
    scorer = head_of(fitted, carrier, "soft").scorer(0)
    shift = 0.05 * np.random.default_rng(0).normal(size=len(scorer.sides[0].eigenvalues))
    scorer = dataclasses.replace(scorer, sides=(dataclasses.replace(scorer.sides[0], shift=shift),))
    found = attribute(scorer, queries.select([3]), tokens.select([7]), 7)
    assert found.score == pytest.approx(float(scorer.scores(queries.select([3]))[0, 7]), rel=1e-5, abs=1e-6)
    assert max(np.abs(one.residue).max() for one in found.terms) < 1e-5
    assert found.patches("query").sum() == pytest.approx(local_score(found), rel=1e-6)


@pytest.mark.parametrize("assignment", ["hard", "soft"])
def test_words_of_shaped_residuals_are_those_of_the_plain_formula(assignment):
    tokens, queries = world(), seen_again(world())
    scorer = head_of(fit(tokens, SPEC, dtype="float64"), "partial", assignment).scorer(0)
    centers = scorer.sides[0].centers.astype(np.float64)

    def plain(patches):
        return reference.residual_descriptor(patches, centers, assignment, 0.01)[0]

    pca = reference.Pca.fit(np.stack([plain(p) for p in tokens.patches]))
    v, other = plain(queries.patches[2]), plain(tokens.patches[5])
    scaled = pca.basis * pca.eigenvalues**-0.25
    ours, theirs = (v - pca.mean) @ scaled, (other - pca.mean) @ scaled
    direction = scaled @ (theirs / np.linalg.norm(theirs)) / np.linalg.norm(ours)
    expected = ((v - pca.mean) * direction).reshape(centers.shape).sum(axis=1)
    found = attribute(scorer, queries.select([2]), tokens.select([5]), 5)
    np.testing.assert_allclose(found.words("query")[0], expected, atol=1e-6)


def test_a_patch_of_the_original_residuals_contributes_its_own_residual():
    tokens, queries = world(), seen_again(world())
    scorer = head_of(fit(tokens, SPEC, dtype="float64"), "original", "hard").scorer(0)
    centers = scorer.sides[0].centers.astype(np.float64)
    query = np.asarray(queries.patches[1], np.float64)
    other = reference.residual_descriptor(tokens.patches[4], centers, "hard", 0.01)[0].reshape(centers.shape)
    unit = query / np.linalg.norm(query, axis=1, keepdims=True)
    word = (unit @ centers.T).argmax(axis=1)
    blocks = {k: (unit[word == k] - centers[k]).sum(axis=0) for k in set(word.tolist())}
    expected = [
        (unit[i] - centers[k]) @ other[k] / np.linalg.norm(blocks[k]) / np.sqrt(len(blocks)) for i, k in enumerate(word)
    ]
    found = attribute(scorer, queries.select([1]), tokens.select([4]), 4)
    np.testing.assert_allclose(found.patches("query"), expected, atol=1e-6)
    # One kernel of blocks: a word weighs the same from either side.
    np.testing.assert_allclose(found.words("query")[0], found.words("image")[0], atol=1e-6)


def test_patches_that_equal_their_word_carry_nothing(fitted):
    scorer = head_of(fitted, "original", "hard").scorer(0)
    side = scorer.sides[0]
    unit_centers = side.centers / np.linalg.norm(side.centers, axis=1, keepdims=True)
    pieces = ResidualPieces.of(unit_centers[:3], dataclasses.replace(side, centers=unit_centers), "float32")
    assert not pieces.scale.any()
    assert not pieces.table(np.ones(side.centers.shape)).any()
    np.testing.assert_allclose(pieces.share.sum(axis=0), 1)


# --- a map -------------------------------------------------------------------------------------------------------


@pytest.fixture
def town(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for number in range(8):
        random_image(number).save(tmp_path / "photos" / f"{number}.png")
    random_image(3).save(tmp_path / "photos" / "twin.png")
    return PlaceMap.build(
        tmp_path / "photos",
        encoder=FakeEncoder(),
        spec=HeadSpec(words=4),
        map_spec=BuildOptions(head="paper", storage="float16"),
        options=EncoderOptions(cache=TokenCache()),
    )


def asked(path):
    return Tokens(*FakeEncoder().encode([as_rgb(path)]), grid=(4, 4))


def test_a_map_tells_why(town):
    photo = Path(town.images[3].path)
    for record in town.images:
        told = explain_score(town, asked(photo), record.id)
        hit = next(hit for hit in town.query(photo, k=99) if hit.id == record.id)
        assert told["score"] == pytest.approx(hit.score, rel=1e-4, abs=1e-5)
        parts = {part["name"]: part["contribution"] for part in told["terms"]}
        assert sum(parts.values()) == pytest.approx(told["score"])
        local = sum(value for name, value in parts.items() if "words" in name)
        for heat in (told["query_heat"], told["image_heat"]):
            assert np.shape(heat) == (4, 4)
            assert np.sum(heat) == pytest.approx(local, rel=1e-6)
        words = told["words"]
        assert len(words) == 4  # all there are
        assert sum(word["contribution"] for word in words) == pytest.approx(local, rel=1e-6)
        assert sorted(p for word in words for p in word["query_patches"]) == list(range(16))
        assert [abs(w["contribution"]) for w in words] == sorted((abs(w["contribution"]) for w in words), reverse=True)
    same = explain_score(town, asked(photo), 3)
    assert same["matches"]
    assert all(match[:2] == match[2:] for match in same["matches"])
    assert explain_score(town, asked(photo), town.images[-1].id)["score"] == same["score"]  # the twin


def test_an_added_image_is_explained_and_a_removed_one_is_not(town, tmp_path):
    random_image(50).save(tmp_path / "later.png")
    [fresh] = town.add(tmp_path / "later.png").added
    told = explain_score(town, asked(tmp_path / "later.png"), fresh)
    assert told["score"] == pytest.approx(town.query(tmp_path / "later.png", k=1)[0].score, rel=1e-4)
    town.remove([fresh])
    with pytest.raises(UnknownImage, match=f"image {fresh} is not in the map"):
        explain_score(town, asked(tmp_path / "later.png"), fresh)
    with pytest.raises(UnknownImage, match="image 99 is not in the map"):
        explain_score(town, asked(tmp_path / "later.png"), 99)


def test_a_photo_that_is_gone_is_a_clear_error(town, tmp_path):
    tokens = asked(town.images[0].path)
    Path(town.images[0].path).unlink()
    assert explain_score(town, tokens, 0)["score"] > 0  # the cache still has it
    town.cache = TokenCache(tmp_path / "another")
    with pytest.raises(BadMap, match=r"0\.png.*restore them, or explain another image"):
        explain_score(town, tokens, 0)
    assert explain_score(town, tokens, 1)["grid"] == [4, 4]  # encoded again from its file


def test_one_photo_is_explained_at_a_time(town):
    with pytest.raises(BadTokens, match="tokens of 2 photos"):
        explain_score(town, Tokens(np.ones((2, 16, 12)), np.ones((2, 6))), 0)

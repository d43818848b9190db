"""Second-order maps are built, edited, saved and calibrated without the map photos."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import tfa
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, hits, photo, reopened, scores
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec
from tfa.maps import PlaceMap
from tfa.method.carriers import CARRIER_KERNELS, SIGMAS
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import EncodedImages
from tfa.search.gallery import ScaledRows
from tfa.types import BuildOptions

# What rounding costs a score at most, as a share of the spread of a photo's scores.
CLOSE = {"float32": 1e-5, "float16": 5e-3, "int7": 0.15}


def built(town, head="second-order", **kept):
    return PlaceMap.build(town, head=head, encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(**kept))


def tokens_of(paths):
    return Tokens(*FakeEncoder().encode([as_rgb(path) for path in paths]), grid=(4, 4))


@pytest.fixture
def second_order(town, cache, tmp_path):
    made = built(town)
    made.save(tmp_path / "town.tfa")
    return made


def test_second_order_is_the_default_and_says_why(town, cache):
    made = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC)
    info = made.info().to_dict()
    assert (info["head"], info["storage"]) == ("second-order", "int7")
    assert (info["decisions"]["representation"], info["decisions"]["carrier"]) == ("second_order", "tempered")
    assert set(info["evidence"]) == {"strengths"}
    assert made.state.vocabularies is None
    rows = {row["name"]: row for row in info["decided"]}
    assert list(rows) == ["representation", "carrier", "centering", "scores", "reranking"]
    assert rows["carrier"]["reason"] == "default: two thirds plain scores, one third whitened scores"
    assert all(row["reason"] for row in rows.values())
    assert [name for name, row in rows.items() if row["margin"] is not None] == []


@pytest.mark.parametrize(
    ("kept", "count"), [({}, 1), ({"ensemble": True}, 3), ({"carrier": "partial"}, 1), ({"carrier": "adaptive"}, 3)]
)
def test_constructions_that_no_answer_needs_are_not_fitted(town, cache, kept, count):
    made = built(town, **kept)
    assert len(made.state.spaces.strengths.rho) == count
    assert {len(made.info().decisions[name]) for name in SIGMAS} == {count}


def test_other_kinds_of_heads(town, cache):
    plain = built(town, "second-order", carrier="blend").info().to_dict()
    assert (plain["head"], plain["decisions"]["carrier"]) == ("second-order", "blend")
    assert plain["reasons"]["carrier"].startswith("set when the head was fitted: ")
    assert built(town, "second-order").info().to_dict()["decisions"]["carrier"] == "tempered"
    paper = built(town, "paper")
    assert paper.info().to_dict()["decisions"]["assignment"] in ("hard", "soft")
    assert paper.state.spaces is None
    with pytest.raises(BadSpec, match="second-order, paper or paper-dual"):
        built(town, "best")
    with pytest.raises(BadSpec, match="carrier='half'"):
        built(town, "second-order", carrier="half")


@pytest.mark.parametrize("storage", ["float32", "float16", "int7"])
@pytest.mark.parametrize("carrier", CARRIER_KERNELS)
def test_scores_are_those_of_the_head(town, cache, camera, tmp_path, carrier, storage):
    photos = sorted(camera.iterdir())
    head = tfa.fit_second_order(tfa.encode(town, FakeEncoder()).tokens, carrier, spec=SPEC)
    expected = head.scores(tokens_of(photos))
    made = built(town, "second-order", carrier=carrier, storage=storage)
    made.save(tmp_path / "m.tfa")
    found = scores(made, photos)
    np.testing.assert_array_equal(scores(reopened(tmp_path / "m.tfa"), photos), found)
    np.testing.assert_allclose(found, expected, atol=CLOSE[storage] * expected.std(axis=1).mean())


def test_heads_share_one_gallery(second_order, camera):
    second_order.calibrate(camera)
    [space] = second_order.state.spaces.spaces
    for head in second_order.state.heads:
        assert head.stored.scorer.sides[0].axes is space.side.axes
        for term in head.stored.scorer.terms:
            rows = term.gallery.chunks[0]
            if term.gamma != "mean":
                assert (rows.base if isinstance(rows, ScaledRows) else rows) is space.halves.chunks[0]


def test_a_calibration_needs_neither_photos_nor_cache(second_order, town, camera, cache, tmp_path, dusk):
    opened = reopened(tmp_path / "town.tfa")
    shutil.rmtree(town)
    shutil.rmtree(tmp_path / "cache")
    report = opened.calibrate(camera)
    made = report.decisions
    assert (made["representation"], made["carrier"]) == ("second_order", "partial")
    assert (made["centring"], made["score_calibrated"]) == (True, True)
    assert report.reasons["score"] == "default from 8 photos on; 20 used"
    [entry] = opened.info().to_dict()["calibrations"]
    assert entry["data_used"] == "target"
    assert entry["differences"][-2:] == ["queries are centered on the photos", "scores are calibrated"]
    assert entry["verification"]["photos"] == 20
    assert opened.query(dusk, k=1)[0].id == 5
    again = reopened(tmp_path / "town.tfa")
    assert hits(again, dusk) == hits(opened, dusk)
    assert hits(again, dusk, "none") == hits(second_order, dusk)


def test_the_caller_may_decide_whether_scores_are_calibrated(second_order, camera):
    assert second_order.calibrate(camera, "plain", score=False).decisions["score_calibrated"] is False
    assert second_order.state.chosen("plain").stored.scorer.calibrators is None
    assert second_order.calibrate([camera / "00.png", camera / "01.png"], "few", score=True).decisions[
        "score_calibrated"
    ]
    assert second_order.info().calibrations[0].calibration["score"] is False


def test_a_calibration_from_the_map_is_that_of_the_head(town, cache, camera):
    made = built(town, "second-order", storage="float32")
    made.calibrate(camera)
    head = tfa.fit_second_order(tfa.encode(town, FakeEncoder()).tokens, spec=SPEC)
    target = tfa.encode(camera, FakeEncoder()).tokens
    expected = tfa.calibrate(head, target)
    photos = sorted(camera.iterdir())
    np.testing.assert_allclose(scores(made, photos), expected.scores(tokens_of(photos)), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize("storage", ["float32", "int7"])
def test_edits_and_calibrations_in_either_order(town, cache, camera, dusk, tmp_path, storage, ensemble):
    more = [photo(tmp_path / "more" / f"{place}.png", place) for place in (20, 21)]
    maps = []
    for order in ("add first", "calibrate first"):
        made = built(town, storage=storage, ensemble=ensemble)
        made.save(tmp_path / f"{order}.tfa")
        edits = [lambda made=made: made.add(more), lambda made=made: made.calibrate(camera)]
        for edit in edits if order == "add first" else edits[::-1]:
            edit()
        made.remove([3])
        assert hits(reopened(tmp_path / f"{order}.tfa"), dusk) == hits(made, dusk)
        maps.append(made)
    assert hits(maps[0], dusk) == hits(maps[1], dusk)
    assert hits(maps[0], dusk, "none") == hits(maps[1], dusk, "none")
    assert len(maps[0].state.spaces) == len(maps[0].state.compact) == 16
    assert maps[0].query(tmp_path / "more" / "20.png", k=1)[0].id == 14


def test_refit_keeps_the_kind(town, cache, camera, tmp_path):
    made = built(town, "second-order", carrier="tempered")
    made.save(tmp_path / "m.tfa")
    made.add(photo(tmp_path / "more.png", 30))
    digest = made.state.head_digest("none")
    made.refit()
    again = reopened(tmp_path / "m.tfa")
    assert again.info().to_dict()["head"] == "second-order"
    assert again.info().to_dict()["decisions"]["carrier"] == "tempered"
    assert again.state.head_digest("none") != digest
    assert len(again.state.spaces.spaces[0].pseudo) == 15
    fresh = PlaceMap.build(
        [town, tmp_path / "more.png"], encoder=FakeEncoder(), spec=SPEC, map_spec=made.state.map_spec
    )
    np.testing.assert_array_equal(scores(again, [tmp_path / "more.png"]), scores(fresh, [tmp_path / "more.png"]))


def test_additions_are_joined(second_order, tmp_path, cache, dusk, camera):
    second_order.calibrate(camera)
    for place in range(30, 50):
        second_order.add(photo(tmp_path / "later" / f"{place}.png", place))
    opened = reopened(tmp_path / "town.tfa")
    assert len(opened.state.segments) < 20
    assert len(opened.state.spaces) == 34
    for calibration in ("target", "none"):
        assert hits(opened, dusk, calibration) == hits(second_order, dusk, calibration)


def test_a_calibration_is_adopted_without_tokens(second_order, tmp_path, cache, camera, dusk):
    other = reopened(tmp_path / "town.tfa")
    other.storage.path = None
    other.calibrate(camera, "night")
    second_order.add(photo(tmp_path / "new.png", 60))
    shutil.rmtree(tmp_path / "cache")
    second_order.adopt_calibration(other, "night")
    assert len(second_order.state.chosen("night").stored.scorer.bias) == 15
    assert hits(reopened(tmp_path / "town.tfa"), dusk) == hits(second_order, dusk)
    assert second_order.query(tmp_path / "new.png", k=1)[0].id == 14


@pytest.mark.parametrize("storage", ["float16", "int7"])
def test_copies_of_a_photo_tie_to_the_last_bit(town, cache, camera, dusk, tmp_path, storage):
    shutil.copy(town / "05.png", town / "99.png")
    made = built(town, storage=storage)
    made.calibrate(camera)
    shutil.copy(town / "05.png", tmp_path / "later.png")
    made.add(tmp_path / "later.png")
    for calibration in ("none", "target"):
        found = {hit.id: hit.score for hit in made.query(dusk, k=99, calibration=calibration, rerank=False)}
        assert found[5] == found[14] == found[15]
        assert made.query(dusk, k=1, calibration=calibration)[0].id == 5


# --- awkward photos ----------------------------------------------------------------------------------------------


def map_of(patches, grid=None, **kept):
    """A map of tokens, without photos."""
    tokens = Tokens(patches, grid=grid)
    names = [f"/nowhere/{number}.png" for number in range(len(tokens))]
    encoded = EncodedImages([Path(n) for n in names], names, tokens, [])
    head = tfa.fit_second_order(tokens, "tempered", spec=SPEC)
    return PlaceMap.from_head(
        head, encoded, FakeEncoder(), map_spec=BuildOptions(rerank=grid is not None, **kept)
    ), tokens


@pytest.mark.parametrize("storage", ["float32", "int7"])
@pytest.mark.parametrize(
    ("case", "shape"),
    [("usual", (6, 16, 12)), ("one patch", (5, 1, 12)), ("two images", (2, 16, 12)), ("few channels", (7, 9, 3))],
)
def test_small_worlds(case, shape, storage, tmp_path):
    patches = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    made, tokens = map_of(patches, grid=(int(shape[1] ** 0.5),) * 2, storage=storage)
    made.save(tmp_path / "m.tfa")
    found = made.query_tokens(tokens, k=1)
    assert np.isfinite([hit.score for [hit] in found]).all()
    if case != "one patch":  # which does not vary, so that all images look alike
        assert [hit.id for [hit] in found] == list(range(shape[0]))
    assert reopened(tmp_path / "m.tfa").query_tokens(tokens, k=1) == found


@pytest.mark.parametrize("storage", ["float32", "int7"])
def test_identical_photos_have_no_direction(storage, tmp_path):
    one = np.random.default_rng(1).normal(size=(1, 16, 12)).astype(np.float32)
    made, tokens = map_of(np.repeat(one, 5, axis=0), grid=(4, 4), storage=storage)
    made.save(tmp_path / "m.tfa")
    assert made.state.spaces.spaces[0].halves.width == 0
    opened = reopened(tmp_path / "m.tfa")
    [found] = opened.query_tokens(tokens.select([0]), k=5)
    assert [hit.id for hit in found] == [0, 1, 2, 3, 4]
    assert len({hit.score for hit in found}) == 1


def test_a_blank_photo_is_one_of_the_map(tmp_path):
    patches = np.random.default_rng(2).normal(size=(6, 16, 12)).astype(np.float32)
    patches[3] = 1.0
    made, tokens = map_of(patches, grid=(4, 4))
    [found] = made.query_tokens(tokens.select([3]), k=1)
    assert found[0].id == 3


def test_ragged_patches_are_not_reranked(town, cache):
    rng = np.random.default_rng(3)
    made, tokens = map_of([rng.normal(size=(4 + number, 12)).astype(np.float32) for number in range(6)])
    assert made.state.compact is None
    assert made.info().decisions["carrier"] == "tempered"
    assert [hit.id for [hit] in made.query_tokens(tokens, k=1)] == list(range(6))

"""Second-order descriptors of two encoder blocks: against the plain formula, and in maps, exports and stores."""

import numpy as np
import pytest

from tests.exports.conftest import scores_of
from tests.exports.test_exports import asked, session
from tests.fakes import FakeEncoder, random_image
from tests.maps.store.stores import new_url
from tfa import pipeline
from tfa.core.arrays import backend_for
from tfa.core.files import hash_json
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.explain.why import explain_score
from tfa.exports.onnx_head import write_onnx_head
from tfa.exports.vectors import compile_map
from tfa.maps import PlaceMap
from tfa.maps.building import Sharding, build_sharded
from tfa.method import second_order_space
from tfa.method.device_scorer import DeviceScorer
from tfa.method.second_order import average_cells, cell_bands, describe_second_order, fit_directions
from tfa.photos.token_cache import TokenCache
from tfa.reference import second_order as reference
from tfa.types import BuildOptions, EncoderOptions

GRID = (3, 4)


class TwoDepths(FakeEncoder):
    """The fake encoder, and next to its tokens those of an earlier block."""

    def __init__(self) -> None:
        super().__init__()
        self.id, self.depths, self.channels = "fake@28/l1+2", 2, 24
        self.fingerprint = self.model = hash_json(["two depths"])

    def encode(self, images):
        patches, cls = super().encode(images)
        return np.concatenate([np.sqrt(patches[..., ::-1]), patches], axis=2), cls


def joined(images=30, seed=0, dtype=np.float64):
    """Tokens of two blocks with 5 channels each."""
    rng = np.random.default_rng(seed)
    patches = rng.normal(size=(images, 12, 10)) + rng.normal(size=(images, 1, 10))
    return Tokens(patches.astype(dtype), grid=GRID, depths=2)


# --- descriptors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(1, 1), (1, 5), (2, 2), (4, 3)])
def test_cells_are_averaged_as_in_the_plain_loop(grid):
    patches = np.random.default_rng(0).normal(size=(2, grid[0] * grid[1], 3))
    unit = patches / np.linalg.norm(patches, axis=2, keepdims=True)
    found = average_cells(unit, cell_bands(grid, "float64"))
    for one, expected in zip(found, patches, strict=True):
        np.testing.assert_allclose(one, reference.averaged(expected, grid), atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-5)])
def test_directions_and_descriptors_equal_the_plain_formula(dtype, tolerance):
    tokens = joined()
    [directions] = fit_directions(tokens, 10**6, constructions=1, dtype=dtype)
    parts = [reference.depths(one, GRID) for one in tokens.patches]
    chosen = reference.images_of_construction(len(tokens), 0)
    for depth in range(2):
        patches = np.concatenate([parts[i][depth] for i in chosen])
        spread = np.cov(patches.T, bias=True)
        expected = np.linalg.eigh(spread)[0][::-1]
        np.testing.assert_allclose(np.diag(directions[depth] @ spread @ directions[depth].T), expected, atol=tolerance)
    [found] = describe_second_order(tokens, [directions], dtype=dtype)
    for row, patches in zip(found, tokens.patches, strict=True):
        np.testing.assert_allclose(row, reference.descriptor_of_depths(patches, directions, GRID), atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_a_descriptor_does_not_depend_on_the_others():
    tokens = joined(dtype=np.float32)
    [directions] = fit_directions(tokens, 10**6, constructions=1)
    [together] = describe_second_order(tokens, [directions])
    [alone] = describe_second_order(tokens.select([7]), [directions])
    np.testing.assert_array_equal(alone[0], together[7])


def test_tokens_need_their_grid():
    with pytest.raises(BadTokens, match="need their grid"):
        fit_directions(Tokens(joined().patches, depths=2), 10**6)


def test_a_token_that_is_not_finite_is_named():
    patches = np.array(joined().patches)
    patches[3, 0, 7] = np.nan
    tokens = Tokens(patches, names=[f"photo{i}" for i in range(30)], grid=GRID, depths=2)
    with pytest.raises(BadTokens, match="photo3"):
        fit_directions(tokens, 10**6)


def test_heads_with_a_vocabulary_refuse_two_depths():
    with pytest.raises(BadSpec, match="only second-order heads"):
        pipeline.fit(joined())


def test_a_wide_pca_uses_a_sample(monkeypatch):
    tokens = joined(60)
    exact = pipeline.fit_second_order(tokens).scores(tokens)
    monkeypatch.setattr(second_order_space, "MAX_COVARIANCE", 20)
    monkeypatch.setattr(second_order_space, "SAMPLE", 55)
    sampled = pipeline.fit_second_order(tokens).scores(tokens)
    assert np.corrcoef(exact.ravel(), sampled.ravel())[0, 1] > 0.99
    assert (exact != sampled).any()


def test_scores_on_a_device_equal_those_of_numpy():
    tokens = joined(dtype=np.float32)
    head = pipeline.fit_second_order(tokens)
    expected, scorer = head.scores(tokens), DeviceScorer(head.scorer(0), backend_for("torch"))
    np.testing.assert_allclose(scorer.scores(tokens), expected, atol=3e-5 * np.abs(expected).max())


# --- maps -----------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    for number in range(20):
        random_image(number).save(tmp_path / f"{number:02}.png")
    return sorted(tmp_path.glob("*.png"))


@pytest.fixture
def town(photos, tmp_path):
    return PlaceMap.build(
        photos, encoder=TwoDepths(), map_spec=BuildOptions(storage="float32"),
        options=EncoderOptions(cache=TokenCache(tmp_path / "tokens")),
    )  # fmt: skip


def queries():
    return Tokens(*TwoDepths().encode([random_image(number, (64, 48)) for number in range(8)]), grid=(4, 4))


def test_a_saved_map_answers_as_before(town, photos, tmp_path):
    town.save(tmp_path / "map.tfa")
    again = PlaceMap.load(tmp_path / "map.tfa", encoder=TwoDepths())
    again.cache = town.cache
    assert [hit.score for hit in again.query(photos[3]).hits] == [hit.score for hit in town.query(photos[3]).hits]
    assert again.query(photos[3]).hits[0].id == 3
    (tmp_path / "night").mkdir()
    for number in range(8):
        random_image(200 + number).save(tmp_path / "night" / f"{number}.png")
    again.calibrate(tmp_path / "night", name="night")
    random_image(40).save(tmp_path / "new.png")
    again.add([tmp_path / "new.png"])
    assert again.query(tmp_path / "new.png", calibration="night").hits[0].image.endswith("new.png")


def test_reranking_uses_the_later_block(town, photos, tmp_path):
    one = PlaceMap.build(photos, encoder=FakeEncoder(), options=EncoderOptions(cache=TokenCache(tmp_path / "tokens")))
    two, image = town.state.compact, random_image(5, (60, 50))
    assert two is not None
    expected = one.state.compact.query(Tokens(*FakeEncoder().encode([image]), grid=(4, 4)))
    found = two.query(Tokens(*TwoDepths().encode([image]), grid=(4, 4)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_exported_head_and_the_explanation_have_the_scores_of_the_map(town, tmp_path):
    tokens, compiled = queries(), compile_map(town)
    expected = scores_of(town, tokens)
    write_onnx_head(tmp_path / "head.onnx", compiled)
    psi = asked(session(tmp_path / "head.onnx"), tokens)
    close = 1e-4 * float(np.abs(expected).max())
    np.testing.assert_allclose(psi @ compiled.vectors.T + compiled.bias, expected, atol=close)
    one = Tokens(tokens.patches[:1], tokens.cls[:1], grid=(4, 4))
    for column, record in enumerate(town.images):
        told = explain_score(town, one, record.id)
        assert told["score"] == pytest.approx(float(expected[0, column]), abs=close)


def test_a_store_is_built_from_the_axes_of_the_sample(photos, monkeypatch, tmp_path):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tfa.maps.building.sharded.MAX_COVARIANCE", 100)
    url = new_url("memory://depths{n}")
    build_sharded(
        photos, url, encoder=TwoDepths, map_spec=BuildOptions(rerank=False), sharding=Sharding(shard_size=6, sample=16)
    )
    town = PlaceMap.load(url, encoder=TwoDepths())
    assert [town.query(photo).hits[0].image for photo in photos] == [str(photo) for photo in photos]


def test_other_heads_are_refused_before_photos_are_encoded(photos):
    encoder = TwoDepths()
    with pytest.raises(BadSpec, match="--head paper uses one depth; name one block of fake@28/l1"):
        PlaceMap.build(photos, head="paper", encoder=encoder)
    assert encoder.encoded == 0


def test_depths_of_an_encoder_must_be_those_of_the_options(photos):
    with pytest.raises(BadSpec, match=r"map.depths=2, but fake@28 reads 1"):
        PlaceMap.build(photos, encoder=FakeEncoder(), map_spec=BuildOptions(depths=2))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(), None),
        (BuildOptions(rerank=False), "auto"),
        (BuildOptions(rerank=False, depths=1), 1),
        (BuildOptions(depths=2), 2),
        (BuildOptions(rerank=False, head="paper"), None),
    ],
)
def test_maps_without_reranking_use_two_depths(options, expected):
    assert options.chosen_depths == expected

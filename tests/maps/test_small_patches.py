"""Maps with small patches: size, files, and evidence close to that of full patches."""

import json

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.golden.regenerate import HERE
from tests.maps.conftest import SPEC, reopened
from tfa.core.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.types import BuildOptions, RerankSpec
from tfa.verification.patches import CompactTokens, restore_rows

SMALL = RerankSpec(patches="small")
GRID = (23, 23)  # of the default encoder
PLACES, CHANNELS = 6, 160


@pytest.fixture(scope="module")
def world():
    """Places of patches that are unevenly spread over 160 channels, and each seen again three cells to the right."""
    rng = np.random.default_rng(0)
    spread = np.geomspace(1, 0.05, CHANNELS)
    common = rng.normal(size=(40, CHANNELS)) * spread  # what patches of all places are like: sky, road, walls
    fields = common[rng.integers(0, 40, (PLACES, *GRID))] + 0.7 * rng.normal(size=(PLACES, *GRID, CHANNELS)) * spread
    fresh = common[rng.integers(0, 40, (PLACES, 23, 3))] + 0.7 * rng.normal(size=(PLACES, 23, 3, CHANNELS)) * spread
    moved = np.concatenate([fresh, fields[:, :, :-3]], axis=2) + 0.5 * rng.normal(size=fields.shape) * spread
    return tuple(Tokens(x.reshape(PLACES, 529, CHANNELS).astype(np.float16), grid=GRID) for x in (fields, moved))


def evidence(compact, photos):
    return np.array([compact.evidence(compact.query(photos)[i], GRID, np.arange(PLACES)) for i in range(PLACES)])


def test_an_image_of_the_default_encoder_takes_at_most_16_kb(world):
    compact = CompactTokens.fit(world[0], SMALL)
    assert compact.bytes_per_image == 529 * 30 == 15_870
    assert compact.bytes_per_image <= 16_384
    assert compact.chunks[0].nbytes == PLACES * compact.bytes_per_image
    assert CompactTokens.fit(world[0]).bytes_per_image == 529 * 128


def test_evidence_is_close_to_that_of_full_patches(world):
    known, photos = world
    full, small = (evidence(CompactTokens.fit(known, spec), photos) for spec in (RerankSpec(), SMALL))
    own = np.eye(PLACES, dtype=bool)
    assert (small.argmax(axis=1) == np.arange(PLACES)).all()
    np.testing.assert_allclose(np.sqrt(small[own]), np.sqrt(full[own]), rtol=0.15)
    assert small[own].min() > 3 * small[~own].max()
    coarse = evidence(CompactTokens.fit(known, RerankSpec(dimensions=8, patches="small")), photos)
    error = lambda found: np.abs(np.sqrt(found[own]) - np.sqrt(full[own])).mean()  # noqa: E731
    assert error(small) < error(coarse)  # fewer numbers are further off


def test_images_are_kept_alike_alone_and_in_company(world):
    known = world[0]
    whole = CompactTokens.fit(known, SMALL)
    grown = CompactTokens.of(known.select([0, 1]), whole.compaction, SMALL).grown(known.select([2, 3, 4, 5]))
    np.testing.assert_array_equal(grown.rows([5, 0, 2]), whole.rows([5, 0, 2]))
    assert grown.chunks[1].dtype == np.uint8
    again = CompactTokens.from_tensors(
        json.loads(json.dumps(grown.to_dict())),
        grown.compaction_tensors(),
        [grown.patch_tensors(0, 2), grown.patch_tensors(2, 6)],
    )
    assert (again.spec, again.bytes_per_image) == (SMALL, whole.bytes_per_image)
    np.testing.assert_array_equal(again.rows(range(PLACES)), whole.rows(range(PLACES)))
    np.testing.assert_array_equal(again.query(world[1]), whole.query(world[1]))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda head, tokens: head.pop("deviations"), "deviations"),
        (lambda head, tokens: head.update(deviations=head["deviations"][1:]), "deviations must be 120"),
        (
            lambda head, tokens: tokens.update(patches=tokens["patches"].view(np.int8)),
            "uint8 of 529 patches × 30 bytes",
        ),
        (lambda head, tokens: tokens.update(patches=tokens["patches"][..., 1:]), "529 patches × 30 bytes"),
    ],
)
def test_files_that_do_not_fit_are_refused(world, change, complaint):
    compact = CompactTokens.fit(world[0], SMALL)
    head, tokens = compact.compaction_tensors(), compact.patch_tensors(0, PLACES)
    change(head, tokens)
    with pytest.raises((ValueError, KeyError), match=complaint):
        CompactTokens.from_tensors(compact.to_dict(), head, [tokens])


# --- in a map ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_map(town, cache):
    return PlaceMap.build(town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(rerank=SMALL))


def test_a_saved_map_answers_as_the_one_built(small_map, dusk, tmp_path):
    small_map.save(tmp_path / "m.tfa")
    opened = reopened(tmp_path / "m.tfa")
    told = opened.info().to_dict()["verification"]
    assert (told["spec"]["patches"], told["bytes_per_image"]) == ("small", 16 * 3)
    assert isinstance(opened.state.compact.chunks[0], np.memmap)
    hits = opened.query(dusk, rerank=True).hits
    assert hits == small_map.query(dusk, rerank=True).hits
    assert hits[0].id == 5
    assert hits[0].inliers is not None


def test_edits_and_refits_keep_patches_small(small_map, dusk, tmp_path):
    small_map.save(tmp_path / "m.tfa")
    editor = reopened(tmp_path / "m.tfa")
    editor.add(dusk)
    assert reopened(tmp_path / "m.tfa").state.compact.chunks[1].shape == (1, 16, 3)
    editor.refit()
    again = reopened(tmp_path / "m.tfa")
    assert again.state.compact.spec == SMALL
    assert again.state.compact.bytes_per_image == 16 * 3


def test_a_map_that_lost_its_deviations_is_damaged(small_map, tmp_path):
    small_map.save(tmp_path / "m.tfa")
    header = json.loads((tmp_path / "m.tfa" / "map.json").read_text("utf-8"))
    assert header["verification"]["spec"]["patches"] == "small"
    header["verification"]["spec"]["patches"] = "full"
    from tfa.maps.folder.format import compute_digest

    header["digest"] = compute_digest(header)
    (tmp_path / "m.tfa" / "map.json").write_text(json.dumps(header), "utf-8")
    with pytest.raises(BadMap, match="int8 of 16 patches × 12 bytes"):
        reopened(tmp_path / "m.tfa")


@pytest.mark.parametrize("name", ["judged", "paper"])
def test_maps_written_before_there_were_small_patches_are_full(name):
    header = json.loads((HERE / name / "map.json").read_text("utf-8"))
    assert "patches" not in header["verification"]["spec"]
    compact = PlaceMap.load(HERE / name).state.compact
    assert compact.spec.patches == "full"
    rows = np.concatenate([np.asarray(chunk) for chunk in compact.chunks])
    assert rows.dtype == np.int8
    np.testing.assert_array_equal(compact.rows(range(len(compact))), restore_rows(rows))

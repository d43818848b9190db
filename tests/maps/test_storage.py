"""Maps of integers: small files, exact products, the same places."""

import os

import numpy as np
import pytest

from studies.speed.synthetic import SyntheticEncoder, synthetic_head, synthetic_state
from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo, reopened
from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec
from tfa.maps import PlaceMap
from tfa.maps.storage import MemoryStorage
from tfa.photos.images import as_rgb
from tfa.search.quantized import QuantizedRows
from tfa.types import BuildOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def queries(tmp_path):
    return Tokens(*FakeEncoder().encode([as_rgb(photo(tmp_path / f"q{i}.png", i, 0.8)) for i in range(20)]))


def built(town, storage="int7", **kept):
    return PlaceMap.build(
        town, head="paper", encoder=FakeEncoder(), spec=SPEC, map_spec=BuildOptions(storage=storage, **kept)
    )


@pytest.mark.parametrize("ensemble", [False, True])
def test_integers_give_the_places_of_floats(town, cache, queries, ensemble):
    whole, small = built(town, "float32", ensemble=ensemble), built(town, ensemble=ensemble)
    expected = whole.state.head.scorer.scores(queries)
    found = small.state.head.scorer.scores(queries)
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())
    np.testing.assert_array_equal(found[:14].argmax(axis=1), expected[:14].argmax(axis=1))


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_map_of_integers_survives_the_disk_and_edits(town, cache, queries, tmp_path, ensemble):
    made = built(town, ensemble=ensemble)
    made.save(tmp_path / "m.tfa")
    opened = reopened(tmp_path / "m.tfa", cache)
    scorer = opened.state.head.scorer
    assert all(isinstance(part.gallery.chunks[0], QuantizedRows) for part in scorer.terms)
    np.testing.assert_array_equal(scorer.scores(queries), made.state.head.scorer.scores(queries))
    for number in range(18):  # more than there are segments
        opened.add([photo(tmp_path / f"n{number}.png", 100 + number)])
    opened.remove([3])
    again = reopened(tmp_path / "m.tfa", cache)
    np.testing.assert_array_equal(again.state.head.scorer.scores(queries), opened.state.head.scorer.scores(queries))
    assert again.query(tmp_path / "n17.png", k=1)[0].id == 31
    assert again.info().to_dict()["storage"] == "int7"
    again.refit()
    assert again.state.head.storage == "int7"
    assert len(again) == 31


def test_a_calibration_of_a_map_of_integers(town, cache, camera, tmp_path, queries):
    made = built(town)
    made.save(tmp_path / "m.tfa")
    made.calibrate(camera, "night")
    made.add([photo(tmp_path / "more.png", 70)])
    again = reopened(tmp_path / "m.tfa", cache)
    scores = [one.state.chosen("night").stored.scorer.scores(queries) for one in (made, again)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert again.query(tmp_path / "more.png", k=1)[0].id == 14


def test_what_a_photo_is_asked_with_does_not_matter(town, cache, queries):
    scorer = built(town).state.head.scorer
    together = scorer.scores(queries)
    alone = np.concatenate([scorer.scores(queries.select([i])) for i in range(len(queries))])
    np.testing.assert_array_equal(alone, together)


def test_a_map_of_integers_is_smaller(town, cache, tmp_path):
    sizes = {}
    for storage in ("float32", "float16", "int7"):
        built(town, storage, rerank=False).save(tmp_path / f"{storage}.tfa")
        head, gallery = (next((tmp_path / f"{storage}.tfa").glob(f"{name}-*")) for name in ("head", "gallery"))
        sizes[storage] = head.stat().st_size + gallery.stat().st_size
    assert sizes["int7"] < sizes["float16"] < sizes["float32"]


def test_rows_of_another_width_are_refused(town, cache, tmp_path):
    made = built(town)
    made.save(tmp_path / "m.tfa")
    head = made.state.head
    layout, tensors = head.layout(), head.head_tensors()
    cut = {name: array[:, 1:] if name.endswith("anchors") else array for name, array in tensors.items()}
    with pytest.raises(ValueError, match="bytes per row"):
        type(head).from_tensors(layout, cut, [head.gallery_tensors(0, 14)])
    os.truncate(next((tmp_path / "m.tfa").glob("head-*")), 200)
    with pytest.raises(BadMap):
        PlaceMap.load(tmp_path / "m.tfa")


def test_an_unknown_storage_is_told_the_known_ones(town, cache):
    with pytest.raises(BadSpec, match="float16, float32 or int7"):
        built(town, "int8")


# --- large maps -----------------------------------------------------------------------------------------------------

PATCHES = np.random.default_rng(0).standard_normal((9, 16)).astype(np.float16)


def large(carrier, storage, images=600):
    encoder = SyntheticEncoder(PATCHES, (3, 3))
    head = synthetic_head(images, carrier, words=8, channels=16, storage=storage)
    return PlaceMap(MemoryStorage(synthetic_state(head, encoder)), encoder=encoder)


def made_queries(count=20):
    return Tokens(np.random.default_rng(1).standard_normal((count, 9, 16)), grid=(3, 3))


@pytest.mark.parametrize("storage", ["float32", "float16", "int7"])
@pytest.mark.parametrize(
    "carrier", [*(pytest.param(c, marks=pytest.mark.slow) for c in ("original", "partial")), "adaptive"]
)
def test_a_prepared_map_gives_the_same_answers(carrier, storage):
    place_map, queries = large(carrier, storage), made_queries()
    place_map.remove([5, 17])
    before = place_map.query_tokens(queries, k=10)
    place_map.prepare()
    after = place_map.query_tokens(queries, k=10)
    assert [[hit.id for hit in hits] for hits in after] == [[hit.id for hit in hits] for hits in before]
    if storage == "int7":
        assert after == before
    for was, now in zip(before, after, strict=True):
        assert [hit.score for hit in now] == pytest.approx([hit.score for hit in was], abs=1e-5)
        assert [hit.confidence for hit in now] == pytest.approx([hit.confidence for hit in was], abs=0.02)
    assert [place_map.query_tokens(queries.select([i]), k=10)[0] for i in range(20)] == after


def test_a_prepared_map_stays_so_when_it_grows(tmp_path):
    place_map = large("adaptive", "float16")
    place_map.prepare()
    place_map.save(tmp_path / "m.tfa")
    place_map.add([photo(tmp_path / "new.png", 1)])
    hit = place_map.query(tmp_path / "new.png", k=1)[0]
    assert hit.id == 600
    assert place_map.searchable("none").searcher.rows.galleries[0].chunks[-1].dtype == np.float16

"""Our own engines keep the contract; so does a map that is searched through them."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from tests.search.engine_contract import EngineContract
from tfa.errors import BadSpec
from tfa.search.bounded import BoundedEngine
from tfa.search.engine import find_engine
from tfa.search.exact import ExactEngine, WeightedGalleries
from tfa.search.gallery import Gallery
from tfa.search.quantised_rows import rounded
from tfa.search.reduced import ReducedEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin" / "src" / "tfa_example_plugin" / "engine.py"


def example_engine():
    spec = spec_from_file_location("example_engine", EXAMPLE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DictEngine


class TestExact(EngineContract):
    create = staticmethod(ExactEngine.create)


class TestBounded(EngineContract):
    create = staticmethod(BoundedEngine.create)


class TestReduced(EngineContract):
    create = staticmethod(ReducedEngine.create)


class TestExample(EngineContract):
    """The engine of the example distribution keeps the contract too."""

    @staticmethod
    def create(vectors, bias, ids, payload=None):
        return example_engine().create(vectors, bias, ids, payload)


def test_engines_are_found_by_name():
    assert find_engine("exact") is ExactEngine
    assert find_engine("bounded") is BoundedEngine
    assert find_engine("reduced") is ReducedEngine
    with pytest.raises(BadSpec, match="did you mean bounded"):
        find_engine("bouned")


def test_terms_and_their_direct_sum_give_the_same_scores():
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((40, 6)).astype(np.float32), rng.standard_normal((40, 3)).astype(np.float32)
    weights = (0.7, 2.5)
    rows = WeightedGalleries(weights, (Gallery.of(first), Gallery.of(second)), rng.normal(size=40))
    flat = np.concatenate([first * np.sqrt(0.7), second * np.sqrt(2.5)], axis=1).astype(np.float32)
    queries = rng.standard_normal((5, 9)).astype(np.float32)
    held, plain = ExactEngine(rows, np.arange(40)), ExactEngine.create(flat, rows.bias, np.arange(40))
    np.testing.assert_allclose(held.scores(queries), plain.scores(queries), atol=1e-5)
    np.testing.assert_array_equal(held.search(queries, 4).ids, plain.search(queries, 4).ids)


@pytest.mark.parametrize("store", [np.asarray, lambda r: r.astype(np.float16), rounded], ids=["f32", "f16", "int8"])
def test_a_gallery_reads_the_rows_it_is_asked_for_from_any_chunk(store):
    rng = np.random.default_rng(1)
    pieces = [store(rng.standard_normal((n, 8)).astype(np.float32)) for n in (3, 1, 4)]
    whole = np.concatenate([np.asarray(piece, np.float32) for piece in pieces])
    gallery = Gallery.of(*pieces[:2]).appended(pieces[2])
    assert len(gallery) == 8
    assert gallery.width == 8
    np.testing.assert_array_equal(gallery.take([7, 0, 3, 3]), whole[[7, 0, 3, 3]])
    assert gallery.between(0, 3) is pieces[0]
    np.testing.assert_array_equal(np.asarray(gallery.between(2, 6), np.float32), whole[2:6])
    assert gallery.between(8, 9) is None
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    np.testing.assert_allclose(gallery.inner(queries), queries @ whole.T, atol=2e-3)
    known = [(pieces[0], np.full((5, 3), 9.0, np.float32))]
    assert (gallery.inner(queries, known)[:, :3] == 9).all()

"""A map that scores on another device gives the answers of the CPU, and says where it computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import SPEC, photo
from tfa.maps import PlaceMap
from tfa.method.device_scorer import DeviceSearch
from tfa.types import BuildOptions, EncoderOptions


@pytest.mark.parametrize("storage", ["int7", "float16"])
@pytest.mark.parametrize("head", ["paper", "second-order"])
def test_answers_are_those_of_the_cpu(town, cache, tmp_path, head, storage):
    kept = BuildOptions(head=head, storage=storage)
    options = EncoderOptions(cache=cache)
    cpu = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=kept, options=options)
    cpu.save(tmp_path / "town.tfa")
    other = PlaceMap.load(tmp_path / "town.tfa", encoder=FakeEncoder())
    other.storage.use_device("torch")
    assert isinstance(other.searchable(None).searcher, DeviceSearch)
    for place in (2, 9):
        dusk = photo(tmp_path / "dusk.png", place, light=0.8)
        ours, theirs = other.query(dusk, k=5), cpu.query(dusk, k=5)
        assert ours.hits[0].id == place
        np.testing.assert_allclose([h.score for h in ours.hits], [h.score for h in theirs.hits], rtol=2e-2)
    other.add([photo(tmp_path / "more" / "20.png", 20)])
    assert other.query(tmp_path / "more" / "20.png", k=1).hits[0].id == 14
    assert isinstance(other.searchable(None).searcher, DeviceSearch)  # also after an edit


def test_a_device_other_than_the_default_is_noted(town, cache):
    plain = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, options=EncoderOptions(cache=cache))
    assert not any("encoder on" in note for note in plain.notes)
    chosen = EncoderOptions(cache=cache, device="torch")
    noted = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, options=chosen)
    assert "encoder on cpu, fit on torch" in noted.notes
    assert "encoder on cpu, fit on torch" in noted.info().notes
    assert noted.note_devices("scores", "cuda") == ["encoder on cpu, scores on cuda"]


def test_few_dimensions_are_searched_on_the_cpu(town, cache):
    kept, options = BuildOptions(dims=4), EncoderOptions(cache=cache, device="torch")
    reduced = PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=kept, options=options)
    assert reduced.searchable(None).on_device is None

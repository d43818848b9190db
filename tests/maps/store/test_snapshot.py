"""A copy of a map in a store, in the same store or another, answers as the map did."""

from __future__ import annotations

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tests.maps.store.stores import STORES, new_name, new_url, place_of
from tfa.errors import BadSpec, StoreConflict
from tfa.maps import PlaceMap
from tfa.maps.store.publish import Publisher
from tfa.maps.store.republish import copy_map


def told(hits):
    return [(hit.id, hit.image, hit.score, hit.confidence, hit.inliers) for hit in hits]


@pytest.mark.parametrize("kind", STORES)
def test_a_copy_answers_as_the_map_and_goes_its_own_way(town, camera, dusk, kind, request, tmp_path):
    town.remove([3])
    [new] = town.add([photo(tmp_path / "@7@8@.png", 40)], session="night").added
    town.calibrate(camera, "night")
    to = f"{place_of(kind, request)}/{new_name()}"
    copy_header, here = copy_map(town.storage, to), told(town.query(dusk, k=20))
    copy = PlaceMap.load(to, encoder=FakeEncoder())
    assert told(copy.query(dusk, k=20)) == here
    assert {hit.inliers for hit in copy.query(dusk, k=2)} != {None}  # patches came along
    assert (copy_header.active, copy_header.count) == ("night", len(town))
    assert any(
        f"copy of version {town.storage.view.header.version} of" in note for note in copy.info().to_dict()["notes"]
    )
    town.remove([new])
    assert new in [hit.id for hit in copy.query(dusk, k=20)]
    assert [head.name for head in copy.state.heads] == [head.name for head in town.state.heads]
    copy_map(copy.storage, town.storage.url)  # the other way round: the map is as it was
    restored = PlaceMap.load(town.storage.url, encoder=FakeEncoder())
    assert new in [hit.id for hit in restored.query(dusk, k=20)]
    for one in (copy, restored):
        one.close()


def test_a_map_is_not_copied_while_it_is_built_nor_onto_itself(town, url):
    with Publisher(town.storage.store, town.name, url).claim(), pytest.raises(StoreConflict, match="is being built by"):
        copy_map(town.storage, new_url("memory://test{n}"))
    with pytest.raises(BadSpec, match="onto itself"):
        copy_map(town.storage, url)


def test_a_copy_that_fails_leaves_nothing(town, dusk, monkeypatch):
    to = new_url("memory://test{n}", "copy")
    monkeypatch.setattr(Publisher, "finish", lambda *_, **__: (_ for _ in ()).throw(StoreConflict("the power is out")))
    with pytest.raises(StoreConflict, match="power"):
        copy_map(town.storage, to)
    monkeypatch.undo()
    copy_map(town.storage, to)
    copy = PlaceMap.load(to, encoder=FakeEncoder())
    assert copy.storage.view.header.version == 1
    assert told(copy.query(dusk)) == told(town.query(dusk))

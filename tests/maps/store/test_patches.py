"""Patches of a map in a store: batched reads, bounded cache, small patches, a separate store."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.building.builders import build
from tests.maps.conftest import SPEC
from tests.maps.store.conftest import PLACES, told
from tests.maps.store.stores import memory_store, new_url
from tfa.errors import BadMap, BadSpec
from tfa.maps import PlaceMap
from tfa.maps.store import rows
from tfa.types import BuildOptions, RerankSpec
from tfa.verification.patches import CachedPatches


class Counting:
    """A source of patches of 10 bytes that writes down what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def rows(self, ids):
        self.asked.append(list(ids))
        return np.repeat(np.array(ids, np.int8)[:, None], 10, axis=1).reshape(-1, 2, 5)


def test_those_used_last_are_kept_up_to_so_many_bytes():
    source = Counting()
    cache = CachedPatches(source, 30)
    assert cache.rows([2, 1, 2])[:, 0, 0].tolist() == [2, 1, 2]
    cache.rows([3])
    cache.rows([1])  # so that 2 was not used for longest
    cache.rows([4, 3])
    assert source.asked == [[1, 2], [3], [4]]
    assert cache.facts() == {"images": 3, "bytes": 30, "most_bytes": 30}
    cache.rows([1, 2])
    assert source.asked[-1] == [2]
    nothing = CachedPatches(source, 0)
    assert nothing.rows([5, 6])[1, 1, 4] == 6
    assert nothing.facts() == {"images": 0, "bytes": 0, "most_bytes": 0}


def test_a_query_reads_patches_once_and_the_map_says_what_it_keeps(town, url, dusk, monkeypatch):
    opened = PlaceMap.load(url, encoder=FakeEncoder(), patch_cache=1_000)
    reads, store = [], memory_store(url)
    read = store.read_pieces
    monkeypatch.setattr(store, "read_pieces", lambda *given: reads.append(given) or read(*given))
    first = told(opened.query(dusk, k=3, rerank=True, candidates=5))
    assert len(reads) == 1
    cache = opened.info().to_dict()["verification"]["cache"]
    assert cache["most_bytes"] == 1_000
    assert 0 < cache["bytes"] <= 1_000
    assert (
        told(PlaceMap.load(url, encoder=FakeEncoder(), patch_cache=0).query(dusk, k=3, rerank=True, candidates=5))
        == first
    )
    with pytest.raises(BadSpec, match="patch_cache=-1 is out of range"):
        PlaceMap.load(url, patch_cache=-1)


def test_small_patches_answer_as_in_a_folder(small, url, dusk, tmp_path):
    kept = BuildOptions(head="second-order", rerank=RerankSpec(patches="small"))
    folder = PlaceMap.build(tmp_path / "town", encoder=FakeEncoder(), spec=SPEC, map_spec=kept)
    store = folder.publish(url, dims=64)
    both = [one.query(dusk, k=3, rerank=True) for one in (folder, store)]
    assert [(hit.id, hit.score, hit.inliers) for hit in both[0]] == [
        (hit.id, hit.score, hit.inliers) for hit in both[1]
    ]
    facts = store.info().to_dict()["verification"]
    assert facts["bytes_per_image"] == folder.info().to_dict()["verification"]["bytes_per_image"] < 16 * 12


def test_damage_names_the_image(town, url, dusk):
    memory_store(url).put("town/v1/patches/5", b"short")
    with pytest.raises(BadMap, match="the patches of image 5 are damaged in the store"):
        PlaceMap.load(url, encoder=FakeEncoder()).query(dusk, rerank=True, candidates=PLACES)


def test_patches_may_lie_in_another_store_and_go_with_their_version(small, url, tmp_path, dusk, monkeypatch):
    monkeypatch.setattr(rows, "_ELSEWHERE", ("memory",))
    at = new_url("memory://bucket{n}", "patches")
    kept = memory_store(at)
    built = [build(tmp_path / "town", url, patches_at=at).header for _ in range(3)]
    store = PlaceMap.load(url, encoder=FakeEncoder())
    assert store.info().to_dict()["verification"]["at"] == at
    [added] = store.add([dusk]).added
    assert added in [hit.id for hit in store.query(dusk, k=2, rerank=True)]
    folders = {key.rpartition("/")[0] + "/" for key in kept.keys("")}
    assert folders == {one.patches["folder"] for one in built[1:]}  # this version's, and those of the one before
    assert f"{built[2].patches['folder']}{added}" in kept.keys("")
    assert not any(key.endswith("patches/0") for key in memory_store(url).keys(""))
    monkeypatch.undo()
    with pytest.raises(BadSpec, match=r"build.patches_at=memory://… cannot hold patches"):
        build(tmp_path / "town", url, patches_at=at)

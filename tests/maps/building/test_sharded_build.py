"""A sharded build does not depend on workers or order, and equals the ordinary build and the formulas."""

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.maps.building.builders import SPEC, LoggedEncoder, Published, build, counted, same
from tests.maps.conftest import photo
from tfa.core.tokens import Tokens
from tfa.errors import BadImage, BadSpec, NoImages, TfaError
from tfa.maps import PlaceMap
from tfa.maps.building import list_photos
from tfa.maps.building.executors import Executor, ProcessExecutor, SerialExecutor
from tfa.maps.folder import writer
from tfa.maps.store import publish, versions
from tfa.maps.store.publish import Publisher
from tfa.maps.store.rows import SpaceRows, read_patches, read_ranks
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache
from tfa.reference.second_order import descriptor
from tfa.search.reduced import Moments
from tfa.types import BuildOptions, EncoderOptions, RerankSpec
from tfa.verification.patches import CompactTokens


class Backwards(SerialExecutor):
    """Done in another order."""

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        return map(work, reversed(items))


class Weighed(SerialExecutor):
    """Writes down how much memory each item took beyond what was held before it, by pass."""

    def __init__(self) -> None:
        self.peaks: dict[str, list[int]] = {}

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        own = self.peaks.setdefault(getattr(work, "kind", type(work).__name__), [])
        for item in items:
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            result = work(item)
            own.append(tracemalloc.get_traced_memory()[1] - held)
            yield result


def test_the_memory_of_a_worker_is_that_of_one_shard_however_many_there_are(fleet, url):
    def peaks(shard_size: int) -> list[int]:
        with Weighed() as executor:
            build(fleet, f"{url}_{shard_size}", executor=executor, shard_size=shard_size, sample=16)
        return executor.peaks["descriptors"]

    peaks(75)  # what is loaded once is loaded
    tracemalloc.start()
    try:
        [whole], shards = peaks(75), peaks(5)
    finally:
        tracemalloc.stop()
    assert len(shards) == 15
    assert max(shards) < 0.7 * whole  # most of it is the same for one photo: reading and writing files
    assert max(shards[8:]) < 1.2 * max(shards[:8])


def test_every_photo_is_encoded_once_and_gets_the_id_of_its_place_in_the_list(fleet, url, encoded):
    report = build(fleet, url)
    found = Published(url)
    assert found.names == [f"{n:03d}.png" for n in range(75)]
    assert found.ids.tolist() == list(range(75))
    assert counted(encoded) == 75
    assert found.header.count == found.header.next_id == report.header.count == 75
    assert len(found.state.images) == 32
    assert [record.id for record in found.state.images] == sorted(
        own for own, one in zip(found.ids, found.payload, strict=True)
        if one["path"] in {record.path for record in found.state.images}
    )  # fmt: skip
    assert {one.name for one in report.passes} >= {"sample", "descriptors", "covariance", "rows", "vectors", "entries"}


@pytest.mark.slow
def test_three_processes_and_another_order_make_the_same_map(fleet, url, tmp_path, encoded):
    build(fleet, url)
    for name, executor in {"backwards": Backwards(), "processes": ProcessExecutor(3)}.items():
        other = f"sqlite://{tmp_path}/{name}.db/places"
        with executor:
            build(fleet, other, executor=executor)
        same(Published(url), Published(other))
    assert counted(encoded) == 3 * 75


def test_a_sample_of_all_photos_is_the_ordinary_build(fleet, url):
    build(fleet, url, sample=100)
    ordinary = PlaceMap.build(fleet, encoder=FakeEncoder(), spec=SPEC, options=EncoderOptions())
    found, spaces = Published(url), ordinary.state.spaces
    assert spaces is not None
    assert list(found.full) == SpaceRows.of(spaces, 0, 75).to_bytes()
    assert found.state.database.decisions == ordinary.state.database.decisions
    assert [one["digest"] for one in found.payload] == [record.digest for record in ordinary.state.images]
    assert [one["path"] for one in found.payload] == [record.path for record in ordinary.state.images]


def test_a_sample_of_some_has_the_space_of_all_by_the_plain_formulas(fleet, url):
    build(fleet, url, map_spec=BuildOptions(head="second-order", carrier="partial"))
    found = Published(url)
    side = found.state.head.scorer.sides[0]
    photos = [as_rgb(path) for path in sorted(fleet.iterdir())]
    tokens = FakeEncoder().encode(photos)[0].astype(np.float64)
    v = np.stack([descriptor(one, side.patch_directions.astype(np.float64)) for one in tokens])
    mean = v.mean(axis=0)
    np.testing.assert_allclose(side.mean, mean, atol=1e-6)
    values, vectors = np.linalg.eigh((v - mean).T @ (v - mean) / len(v))
    rank = len(side.eigenvalues)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    np.testing.assert_allclose(side.eigenvalues, values, rtol=1e-3, atol=1e-9)
    scaled = (v - mean) @ vectors * values**-0.25
    lengths = np.linalg.norm(scaled, axis=1)
    halves = scaled / lengths[:, None]
    rows = SpaceRows.of_bytes(found.full, read_ranks(found.state.head.scorer))
    np.testing.assert_allclose(rows.lengths[0], lengths, rtol=1e-4)
    kept, step = np.asarray(rows.halves[0], np.float64), rows.halves[0].step
    signs = np.sign((kept * halves).sum(axis=0))
    assert (np.abs(kept - halves * signs) <= 0.51 * step[:, None] + 1e-4).all()
    # the reduction: scores of the leading directions of Σ Ψ Ψᵀ, and moments of what is stored
    leading = np.linalg.eigh(kept.T @ kept)[1][:, ::-1][:, :23]
    np.testing.assert_allclose(found.vectors @ found.vectors.T, (kept @ leading) @ (kept @ leading).T, atol=1e-5)
    moments = Moments.of(found.vectors)
    np.testing.assert_allclose(found.moments.first, moments.first, atol=1e-5)
    np.testing.assert_allclose(found.moments.second, moments.second, atol=1e-5)


def test_sample_images_have_the_same_rows_in_the_skeleton_as_in_the_store(fleet, url):
    build(fleet, url)
    found = Published(url)
    own = SpaceRows.of(found.state.spaces, 0, len(found.state.images)).to_bytes()
    by_id = dict(zip(found.ids.tolist(), found.full, strict=True))
    assert [by_id[record.id] for record in found.state.images] == own


@pytest.mark.parametrize(("sample", "kept"), [(32, "full"), (100, "small")])
def test_patches_of_every_image_are_in_the_store_and_the_map_answers(fleet, url, sample, kept):
    (fleet / "013.png").write_bytes(b"no picture")  # so that shards begin elsewhere
    map_spec = BuildOptions(rerank=RerankSpec(patches=kept))
    build(fleet, url, options=EncoderOptions(skip_bad=True), sample=sample, map_spec=map_spec)
    found = Published(url)
    patches = read_patches(found.store, found.header.patches)
    assert patches is not None
    images = [as_rgb(one["path"]) for one in found.payload]
    tokens = Tokens(*FakeEncoder().encode(images), grid=(4, 4))
    own = CompactTokens.of(tokens, patches.compaction, patches.spec)
    assert (patches.source.rows(found.ids) == own.chunks[0]).all()
    opened = PlaceMap.load(url, encoder=FakeEncoder())
    for number in (0, 12, 14, 73):
        [hit] = opened.query(fleet / f"{number:03d}.png", k=1)
        assert hit.image == str(fleet / f"{number:03d}.png")


@pytest.mark.parametrize(("sample", "maps"), [(32, 2), (100, 1)])
def test_each_map_of_a_build_is_written_once_and_never_read_back_from_the_store(
    fleet, url, sample, maps, monkeypatch, tmp_path
):
    """A sample of some photos is two maps: as it was fitted, and in the space of all photos."""
    written, put, read = [], [], []
    watch(monkeypatch, writer, "write_new", written)
    watch(monkeypatch, publish, "put_skeleton", put)
    watch(monkeypatch, versions, "read_skeleton", read)
    work = tmp_path / "work"
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "begin", stop)
        with pytest.raises(TfaError, match="power"):
            build(fleet, url, sample=sample, work=work)
    names = ["sample.tfa", "skeleton.tfa"][:maps]
    assert [path.name for path in written] == names
    assert not list(work.glob("*/sample.tfa/tokens-*"))  # patches are in the results of shards
    build(fleet, url, sample=sample, work=work)  # uses the maps of the run that was stopped
    assert [path.name for path in written] == names
    assert (len(put), read) == (1, [])
    build(fleet, other := f"sqlite://{tmp_path}/plain.db/places", sample=sample)
    same(Published(url), Published(other))
    patches = [read_patches(one.store, one.header.patches) for one in (Published(url), Published(other))]
    assert (patches[0].source.rows(range(75)) == patches[1].source.rows(range(75))).all()


def watch(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, calls: list) -> None:
    """Note the first argument of each call of a module's function."""
    real = getattr(module, name)

    def noted(first: Any, *more: Any, **named: Any) -> Any:
        calls.append(first)
        return real(first, *more, **named)

    monkeypatch.setattr(module, name, noted)


def stop(*_: Any) -> None:
    raise TfaError("the power went out")


def test_a_published_map_is_used_without_reading_it_back(fleet, url, monkeypatch):
    read: list = []
    watch(monkeypatch, versions, "read_skeleton", read)
    ordinary = PlaceMap.build(fleet, encoder=FakeEncoder(), spec=SPEC)
    published = ordinary.publish(url)
    query = fleet / "007.png"
    answers = published.query(query)
    assert read == []
    assert PlaceMap.load(url, encoder=FakeEncoder()).query(query) == answers
    assert len(read) == 1


def test_broken_photos_are_left_out_and_listed_wherever_they_are(fleet, url):
    (fleet / "004.png").write_bytes(b"no picture")  # of the sample
    for number in range(50, 60):  # a whole shard, some of it of the sample
        (fleet / f"{number:03d}.png").write_bytes(b"no picture")
    with pytest.raises(BadImage, match=r"0\d\d\.png"):
        build(fleet, url)
    report = build(fleet, url, options=EncoderOptions(skip_bad=True))
    found = Published(url)
    assert found.names == [f"{n:03d}.png" for n in range(75) if n != 4 and n not in range(50, 60)]
    assert found.ids.tolist() == list(range(64))
    assert len(report.skipped) == 11


def test_what_a_store_cannot_hold_is_refused_before_any_work(fleet, url, encoded):
    for kept in (BuildOptions(head="paper"), BuildOptions(ensemble=True), BuildOptions(storage="float16")):
        with pytest.raises(BadSpec, match="in a folder"):
            build(fleet, url, map_spec=kept)
    photo(fleet.parent / "one" / "0.png", 0)
    with pytest.raises(NoImages, match="at least 2"):
        build(fleet.parent / "one", url)
    assert counted(encoded) == 0


def test_tokens_come_from_the_cache_if_one_is_given(fleet, url, encoded, tmp_path):
    cache = TokenCache(tmp_path / "tokens")
    cache.encode(sorted(fleet.iterdir()), LoggedEncoder())
    build(list_photos(fleet), url, options=EncoderOptions(cache=cache))
    assert counted(encoded) == 75
    assert Published(url).header.count == 75


def test_executors_are_of_one_kind():
    assert {kind.__name__ for kind in Executor.__subclasses__()} >= {"SerialExecutor", "ProcessExecutor"}
    with ProcessExecutor(2) as pool:
        assert sorted(pool.map(abs, range(-20, 0))) == list(range(1, 21))
    with pytest.raises(BadSpec, match="at least 1"):
        ProcessExecutor(0)

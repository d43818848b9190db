"""The token cache: nothing is encoded twice, and cached tokens equal the encoder's."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import tfa.photos.token_cache
from tests.fakes import FakeEncoder, random_image
from tests.photos.conftest import shards
from tests.waiting import PATIENCE
from tfa.core.files import map_tensors
from tfa.errors import BadTokens
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.mark.parametrize("global_token", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_cached_tokens_are_the_encoders_own(photos: list[Path], global_token: bool, batch_size: int) -> None:
    encoder = FakeEncoder(global_token=global_token)
    patches, cls = encoder.encode([as_rgb(path) for path in photos])
    for _ in range(2):  # fresh, then from disk
        found = TokenCache().encode(photos, encoder, batch_size=batch_size)
        assert found.paths == photos
        assert found.skipped == []
        assert found.tokens.names == [str(path) for path in photos]
        np.testing.assert_array_equal(found.tokens.load(0, 10), patches)
        if cls is None:
            assert found.tokens.cls is None
        else:
            np.testing.assert_array_equal(found.tokens.cls, cls)
    assert encoder.encoded == 20  # ten here, ten by the cache, none from disk


def test_layout_on_disk(photos: list[Path], tmp_path: Path) -> None:
    encoder = FakeEncoder()
    found = TokenCache().encode(photos, encoder, batch_size=2)
    files = shards(tmp_path)
    assert len(files) == 3  # 4 + 4 + 2
    assert {file.parent.name for file in files} == {encoder.fingerprint[:32]}
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        arrays, metadata = map_tensors(file)
        tensors |= arrays
        assert metadata == {"encoder": "fake@28", "fingerprint": encoder.fingerprint, "grid": "4x4"}
    assert {name.split(".")[1] for name in tensors} == {"patches", "cls"}
    assert tensors[f"{found.digests[0]}.patches"].shape == (16, 12)
    assert tensors[f"{found.digests[0]}.cls"].shape == (6,)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float16)}


def test_nothing_is_loaded_until_touched(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = FakeEncoder(global_token=False)
    cache = TokenCache()
    digests = cache.encode(photos, encoder).digests
    mapped = []
    real = np.memmap
    monkeypatch.setattr(np, "memmap", lambda path, *rest: mapped.append(path) or real(path, *rest))
    tokens = cache.tokens(encoder.fingerprint, digests)
    assert tokens.shapes.tolist() == [[16, 12]] * 10
    assert mapped == []
    assert not tokens.patches[3].flags.writeable
    assert len(mapped) == 1
    assert len(tokens.patches[2:5]) == 3


def test_the_key_is_the_content_and_the_encoder(photos: list[Path], tmp_path: Path) -> None:
    cache, encoder = TokenCache(), FakeEncoder()
    cache.encode(photos, encoder)
    moved = tmp_path / "moved.jpg"
    photos[3].rename(moved)
    cache.encode([moved], encoder)
    assert encoder.encoded == 10
    random_image(99).save(photos[4])  # same name, another picture
    found = cache.encode([photos[4]], encoder)
    assert encoder.encoded == 11
    np.testing.assert_array_equal(found.tokens.load(0, 1), encoder.encode([random_image(99)])[0])
    other = FakeEncoder(salt="other weights")
    cache.encode([moved], other)
    assert other.encoded == 1


def test_pictures_stored_twice_are_encoded_once(photos: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.png"
    copy.write_bytes(photos[1].read_bytes())
    paths = [photos[1], photos[0], copy, photos[1], photos[2]]
    encoder = FakeEncoder()
    found = TokenCache().encode(paths, encoder)
    assert encoder.encoded == 3
    assert found.paths == paths
    assert len(found.tokens) == 5
    for index in (2, 3):
        np.testing.assert_array_equal(found.tokens.patches[index], found.tokens.patches[0])


def test_missing_and_tokens_by_digest(photos: list[Path]) -> None:
    cache, encoder = TokenCache(), FakeEncoder()
    digests = cache.encode(photos[:3], encoder).digests
    asked = [digests[2], "f" * 64, digests[0]]
    assert cache.missing(encoder.fingerprint, asked) == [1]
    assert cache.missing("another encoder", digests) == [0, 1, 2]
    with pytest.raises(BadTokens, match=r"1 of 3 images are not in the token cache .* the first is two"):
        cache.tokens(encoder.fingerprint, asked, names=["one", "two", "three"])
    tokens = cache.tokens(encoder.fingerprint, [digests[2], digests[0]])
    np.testing.assert_array_equal(tokens.load(0, 2), encoder.encode([as_rgb(photos[i]) for i in (2, 0)])[0])


def test_two_caches_see_each_others_work(photos: list[Path]) -> None:
    one, two, encoder = TokenCache(), TokenCache(), FakeEncoder()
    assert two.missing(encoder.fingerprint, ["x"]) == [0]
    digests = one.encode(photos, encoder).digests
    assert two.missing(encoder.fingerprint, digests) == []


def test_the_next_batch_is_decoded_while_the_encoder_works(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = threading.Semaphore(0)
    real = tfa.photos.token_cache.as_rgb
    monkeypatch.setattr(tfa.photos.token_cache, "as_rgb", lambda *given, **by: opened.release() or real(*given, **by))

    class Waiting(FakeEncoder):
        def encode(self, images):
            if self.encoded == 0:  # two were opened for this batch; two more are while it runs
                assert all(opened.acquire(timeout=PATIENCE) for _ in range(4))
            return super().encode(images)

    TokenCache().encode(photos, Waiting(), batch_size=2)


def test_progress_counts_every_image(photos: list[Path]) -> None:
    class Listener:
        def __init__(self) -> None:
            self.totals: dict[str, list[int]] = {}

        def task(self, label: str, total: int, unit: str = ""):
            from contextlib import nullcontext
            from types import SimpleNamespace

            counts = self.totals.setdefault(label, [total, 0])
            return nullcontext(SimpleNamespace(advance=lambda n=1: counts.__setitem__(1, counts[1] + n)))

    listener = Listener()
    TokenCache().encode(photos, FakeEncoder(), batch_size=3, progress=listener)
    assert listener.totals == {"reading": [10, 10], "encoding": [10, 10]}

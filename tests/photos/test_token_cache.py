"""The token cache: nothing encoded twice, nothing lost by a kill, nothing believed that is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import tfa.photos.token_cache
from tests.fakes import FakeEncoder, random_image
from tfa.base.files import map_tensors, read_tensor_header, write_tensors
from tfa.errors import BadImage, BadTokens, NoImages
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tfa.photos.token_cache, "SHARD_IMAGES", 4)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(10):
        random_image(index).save(folder / f"{index}.png")
    return sorted(folder.iterdir())


def shards(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache/tokens").rglob("*.safetensors"))


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


def test_resuming_after_the_encoder_gave_up(photos: list[Path]) -> None:
    cache = TokenCache()
    with pytest.raises(RuntimeError, match="gave up"):
        cache.encode(photos, FakeEncoder(fail_after=6), batch_size=2)
    encoder = FakeEncoder()
    found = cache.encode(photos, encoder, batch_size=2)
    assert encoder.encoded == 4  # six were safe
    np.testing.assert_array_equal(found.tokens.load(0, 10), FakeEncoder().encode([as_rgb(p) for p in photos])[0])


@pytest.mark.kill
def test_resuming_after_a_kill(photos: list[Path], tmp_path: Path) -> None:
    """SIGKILL while the seventh image is encoded: the shard of the first four is there, whole."""
    code = f"""
        import os, signal
        import tfa.photos.token_cache
        from pathlib import Path
        from tests.fakes import FakeEncoder

        class Killed(FakeEncoder):
            def encode(self, images):
                if self.encoded + len(images) > 6:
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().encode(images)

        tfa.photos.token_cache.SHARD_IMAGES = 4
        paths = sorted(Path({str(photos[0].parent)!r}).iterdir())
        tfa.photos.token_cache.TokenCache().encode(paths, Killed(), batch_size=1)
    """
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    encoder = FakeEncoder()
    found = TokenCache().encode(photos, encoder)
    assert encoder.encoded == 6
    assert len(found.tokens) == 10


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_truncated_shard_is_encoded_again(photos: list[Path], tmp_path: Path, left: int) -> None:
    TokenCache().encode(photos, FakeEncoder(), batch_size=2)
    victim = shards(tmp_path)[0]
    victim.write_bytes(victim.read_bytes()[:left])
    encoder = FakeEncoder()
    found = TokenCache().encode(photos, encoder, batch_size=2)
    assert encoder.encoded in (2, 4)
    np.testing.assert_array_equal(found.tokens.load(0, 10), FakeEncoder().encode([as_rgb(p) for p in photos])[0])
    assert len(shards(tmp_path)) == 3  # the damaged one was replaced
    read_tensor_header(victim)


def test_alien_files_are_passed_over(photos: list[Path], tmp_path: Path) -> None:
    encoder = FakeEncoder()
    folder = tmp_path / "cache/tokens" / encoder.fingerprint[:32]
    mine = {"fingerprint": encoder.fingerprint}
    digest = "0" * 64
    write_tensors(folder / "a.safetensors", {f"{digest}.patches": np.ones((16, 12), np.float16)}, {"fingerprint": "x"})
    write_tensors(folder / "b.safetensors", {f"{digest}.patches": np.ones((16, 12), np.float32)}, mine)
    write_tensors(folder / "c.safetensors", {f"{digest}.patches": np.ones(16, np.float16)}, mine)
    (folder / "d.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]")
    (folder / "e.safetensors").mkdir()
    (folder / ".f.safetensors.1.tmp").write_bytes(b"half")
    cache = TokenCache()
    assert cache.missing(encoder.fingerprint, [digest]) == [0]
    assert len(cache.encode(photos, encoder).tokens) == 10


def test_leftovers_of_killed_writers_are_removed_when_old(photos: list[Path], tmp_path: Path) -> None:
    encoder = FakeEncoder()
    folder = tmp_path / "cache/tokens" / encoder.fingerprint[:32]
    folder.mkdir(parents=True)
    old, fresh = folder / ".a.safetensors.x.tmp", folder / ".b.safetensors.y.tmp"
    old.touch()
    fresh.touch()
    os.utime(old, (1, 1))
    TokenCache().encode(photos[:1], encoder)
    assert not old.exists()
    assert fresh.exists()  # another process may be writing it


def test_a_broken_image_stops_the_run_but_costs_nothing_done(photos: list[Path]) -> None:
    photos[6].write_bytes(photos[6].read_bytes()[:200])
    cache, encoder = TokenCache(), FakeEncoder()
    with pytest.raises(BadImage, match="--skip-bad") as caught:
        cache.encode(photos, encoder, batch_size=2)
    assert str(photos[6]) in str(caught.value)
    assert encoder.encoded == 6
    cache.encode(photos[:6], encoder)
    assert encoder.encoded == 6


def test_broken_images_are_skipped_and_listed(photos: list[Path], tmp_path: Path) -> None:
    photos[2].write_bytes(b"no picture")
    copy = tmp_path / "copy.png"
    copy.write_bytes(b"no picture")
    paths = [*photos, copy, tmp_path / "absent.png"]
    found = TokenCache().encode(paths, FakeEncoder(), skip_bad=True, batch_size=3)
    assert found.paths == photos[:2] + photos[3:]
    assert [path for path, _ in found.skipped] == [photos[2], copy, tmp_path / "absent.png"]
    assert "not an image" in found.skipped[0][1]
    assert len(found.tokens) == len(found.digests) == 9
    with pytest.raises(BadImage, match=r"absent\.png cannot be read.*--skip-bad"):
        TokenCache().encode(paths[-1:], FakeEncoder())


def test_nothing_left_to_encode_is_an_error(photos: list[Path]) -> None:
    photos[0].write_bytes(b"no picture")
    with pytest.raises(NoImages, match="all 1 images are broken"):
        TokenCache().encode(photos[:1], FakeEncoder(), skip_bad=True)
    with pytest.raises(NoImages, match="no image was given"):
        TokenCache().encode([], FakeEncoder())


def test_an_image_that_changes_while_being_read_is_not_kept(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfa.photos.token_cache, "sha256_of_file", lambda path: "0" * 64)
    with pytest.raises(BadImage, match="changed while it was being read"):
        TokenCache().encode(photos[:1], FakeEncoder())


def test_tokens_that_float16_cannot_hold_are_refused(photos: list[Path]) -> None:
    class Loud(FakeEncoder):
        def encode(self, images):
            patches, cls = super().encode(images)
            patches[1, 3, 2] = np.inf
            return patches, cls

    with pytest.raises(BadTokens, match=r"1\.png: fake@28"):
        TokenCache().encode(photos, Loud())


def test_an_encoder_that_breaks_its_promise_is_refused(photos: list[Path]) -> None:
    encoder = FakeEncoder()
    encoder.grid = (5, 5)
    with pytest.raises(BadTokens, match=r"\(8, 16, 12\), its attributes promise \(8, 25, 12\)"):
        TokenCache().encode(photos, encoder)


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
                assert all(opened.acquire(timeout=10) for _ in range(4))
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

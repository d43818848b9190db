"""The token cache after kills, damage and unreadable photos: finished work is reused, wrong data is not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import FakeEncoder
from tests.photos.conftest import shards
from tests.waiting import child_environment
from tfa.core.files import read_tensor_header, write_tensors
from tfa.errors import BadImage, BadTokens, NoImages
from tfa.photos.images import HashedPhoto, as_rgb
from tfa.photos.token_cache import TokenCache

pytestmark = pytest.mark.usefixtures("small_shards")


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
    environment = child_environment(Path(__file__).parents[2])
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
    with pytest.raises(NoImages, match="no images given"):
        TokenCache().encode([], FakeEncoder())


def test_an_image_that_changes_while_being_read_is_not_kept(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashedPhoto, "read", classmethod(lambda cls, path: (cls(path, "0" * 64, (0, 0)), b"")))
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
    with pytest.raises(BadTokens, match=r"\(8, 16, 12\), expected \(8, 25, 12\)"):
        TokenCache().encode(photos, encoder)

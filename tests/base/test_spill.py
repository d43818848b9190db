"""Arrays spilled to disk: contents are preserved, and no file or descriptor leaks."""

import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tfa import pipeline
from tfa.core.arrays import Spill, release
from tfa.core.tokens import Tokens
from tfa.types import HeadSpec

DESCRIPTORS = Path("/proc/self/fd")
counted = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="only Linux lists the open files of a process")


def open_files() -> int:
    gc.collect()
    return len(list(DESCRIPTORS.iterdir()))


def test_a_spilled_array_is_the_array_and_outlives_its_spill():
    spill = Spill(spill_bytes=100)
    small, large = spill.keep(np.arange(5.0)), spill.keep(np.arange(100.0).reshape(10, 10))
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    del spill
    release(large)
    release(small)
    np.testing.assert_array_equal(large, np.arange(100.0).reshape(10, 10))


def test_released_pages_keep_what_was_written():
    array = Spill(spill_bytes=0).empty((1000, 1000), np.float32)
    array[:] = 7
    release(array)
    assert (array == 7).all()
    array[3] = 8
    release(array[2:5])
    assert (array[3] == 8).all()


@counted
def test_a_spilled_array_leaves_no_file_open():
    before = open_files()
    spill = Spill(spill_bytes=0)
    arrays = [spill.empty((100,), np.float32) for _ in range(30)]
    assert open_files() <= before + 31  # the mapping's own, as long as the array lives, and the folder's
    folder = Path(str(arrays[0].filename)).parent
    del arrays, spill
    assert open_files() == before
    assert not folder.exists()


def tokens_of_a_grid(seed: int, images: int = 40) -> Tokens:
    patches = np.random.default_rng(seed).normal(size=(images, 6, 16)).astype(np.float32)
    return Tokens(patches, grid=(2, 3))


FITS = {
    "paper": lambda tokens: pipeline.fit(tokens, HeadSpec(words=4)),
    "second-order": lambda tokens: pipeline.fit_second_order(tokens),
    "calibrated": lambda tokens: pipeline.calibrate(pipeline.fit(tokens, HeadSpec(words=4)), tokens_of_a_grid(1, 12)),
    "second-order, calibrated": lambda tokens: pipeline.calibrate(
        pipeline.fit_second_order(tokens), tokens_of_a_grid(1, 12)
    ),
}


@pytest.mark.slow
@counted
@pytest.mark.parametrize("kind", FITS)
def test_a_fit_leaves_no_file_open(monkeypatch, kind):
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 10,))
    tokens = tokens_of_a_grid(0)
    FITS[kind](tokens)  # what libraries open once is open now
    before = open_files()
    head = FITS[kind](tokens)
    assert open_files() > before  # the arrays of a head that lives are spilled here
    del head
    assert open_files() == before


def test_what_a_killed_process_spilled_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, foreign = tmp_path / "tfa-spill-left", tmp_path / "tfa-spill-foreign"
    for folder, name in ((left, "a.bin"), (foreign, "thesis.txt")):
        folder.mkdir()
        (folder / name).write_bytes(b"x")
        os.utime(folder, (0, 0))
    Spill(0).empty((4,), np.float32)
    assert not left.exists()
    assert foreign.exists()

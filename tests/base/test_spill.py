"""Spilled arrays: what was written stays, and no file or descriptor outlives its array."""

import gc
from pathlib import Path

import numpy as np
import pytest

from tfa.base.config import HeadSpec
from tfa.base.spill import Spill, release
from tfa.base.tokens import Tokens
from tfa.pipeline import fit

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
    assert open_files() <= before + 30  # the mapping's own, as long as the array lives
    folder = Path(str(arrays[0].filename)).parent
    del arrays, spill
    assert open_files() == before
    assert not folder.exists()


@counted
def test_a_fit_leaves_no_file_open(monkeypatch):
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 10,))
    tokens = Tokens(np.random.default_rng(0).normal(size=(40, 6, 16)).astype(np.float32))
    fit(tokens, HeadSpec(words=4))  # what libraries open once is open now
    before = open_files()
    head = fit(tokens, HeadSpec(words=4))
    assert open_files() > before  # the arrays of a head that lives are spilled here
    del head
    assert open_files() == before

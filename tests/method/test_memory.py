"""Fitting holds one branch at a time: its peak is bounded, whatever the number of branches."""

import tracemalloc

import numpy as np
import pytest

from tfa.core.arrays import Spill
from tfa.core.tokens import Tokens
from tfa.method import branch as branches
from tfa.method import pseudo_queries as pseudo_scores
from tfa.method import spectrum as geometry
from tfa.pipeline import fit
from tfa.types import HeadSpec


@pytest.mark.slow
def test_peak_memory_of_a_fit_is_bounded(monkeypatch):
    images, patches, channels, words = 240, 30, 128, 64
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 20,))  # spill from 1 MiB, as large maps do
    rng = np.random.default_rng(0)
    tokens = Tokens(rng.normal(size=(images, patches, channels)).astype(np.float32))
    descriptors = images * words * channels * 4
    square = images * images * 8
    sampled = images * patches * channels * 4
    tracemalloc.start()
    fit(tokens, HeadSpec(words=words))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Two float32 copies of one descriptor matrix, four float64 Gram matrices and the sampled patches;
    # 4 MiB for python's own objects. Six descriptor matrices in memory would take three times the bound.
    assert peak < 2 * descriptors + 4 * square + sampled + (4 << 20)


@pytest.mark.slow
def test_memory_of_a_sampled_fit_does_not_grow_with_the_map(monkeypatch):
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 14,))
    for module, name in ((geometry, "IMAGE_BLOCK"), (pseudo_scores, "_GALLERY_BLOCK"), (branches, "_ROW_BLOCK")):
        monkeypatch.setattr(module, name, 32)  # as small beside these maps as they are beside large ones
    monkeypatch.setattr(branches, "_BLOCK_BYTES", 1 << 16)
    spec = HeadSpec(words=8, max_pca=100, pca_sample=60, max_pseudo=60, max_patches=400)
    rng = np.random.default_rng(0)
    peaks = {}
    for images in (300, 1200):
        tokens = Tokens(rng.normal(size=(images, 6, 16)).astype(np.float32))
        tracemalloc.start()
        fit(tokens, spec)
        _, peaks[images] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # 900 images more: a float64 row of products or coordinates of each would be 480 bytes in each of six branches,
    # a descriptor 512. What stays are block norms (six rows of 32 bytes), scores' bias and bookkeeping.
    assert peaks[1200] - peaks[300] < 900 * 1500

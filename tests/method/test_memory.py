"""Fitting keeps one branch in memory at a time, and calibrating one block of rows, so their peaks are bounded."""

import tracemalloc

import numpy as np
import pytest

from tfa import pipeline
from tfa.core.arrays import Spill, backend_for
from tfa.core.progress import SilentProgress
from tfa.core.tokens import Tokens
from tfa.method import branch as branches
from tfa.method import evidence, target
from tfa.method import pseudo_queries as pseudo_scores
from tfa.method import spectrum as geometry
from tfa.method.evidence import relation_terms
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


def shrink_blocks(monkeypatch):
    """Make every block as small beside these maps as it is beside large ones."""
    for module, name in ((geometry, "IMAGE_BLOCK"), (pseudo_scores, "_GALLERY_BLOCK"), (branches, "_ROW_BLOCK")):
        monkeypatch.setattr(module, name, 32)
    monkeypatch.setattr(target, "IMAGE_BLOCK", 32)
    monkeypatch.setattr(branches, "_BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(geometry, "LARGE", 20)
    monkeypatch.setattr(Spill.__init__, "__defaults__", (1 << 12,))


def calibrated(images, photos, **settings):
    """Calibrate a map of random images on photos of them; return the head and the peak of the calibration."""
    rng = np.random.default_rng(0)
    patches = rng.normal(size=(images, 6, 8))
    again = patches[rng.integers(0, images, photos)] + rng.normal(0.3, 0.6, (photos, 6, 8))
    database, seen = (Tokens(one.astype(np.float32), one.mean(axis=1).astype(np.float32)) for one in (patches, again))
    backend = backend_for("cpu")
    fitted = pipeline.fit_database(database, HeadSpec(words=6, **settings), None, backend, "float32", SilentProgress())
    tracemalloc.start()
    head = pipeline.calibrate(fitted, seen)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return head, peak


@pytest.mark.slow
@pytest.mark.parametrize("photos", [30, 90])
def test_blocks_and_subsamples_change_no_decision(monkeypatch, photos):
    monkeypatch.setattr(evidence, "_LARGEST", 8)
    monkeypatch.setattr(evidence, "DRAWS", 12)  # 12 · 8² < 30²: each subsample has a view of its own
    small, _ = calibrated(70, photos)
    shrink_blocks(monkeypatch)
    blockwise, _ = calibrated(70, photos)
    with monkeypatch.context() as patch:
        patch.setattr(target, "sampled_terms", lambda view, count, rows: relation_terms(view(np.arange(count)), rows))
        whole, _ = calibrated(70, photos)
    for other in (blockwise, whole):
        assert_close(other.decisions.to_dict(), small.decisions.to_dict())
        assert_close(other.evidence.to_dict(), small.evidence.to_dict())


def assert_close(one, other):
    """Compare nested numbers; text holds rounded ones."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            assert_close(a, b)
    else:
        assert one == (pytest.approx(other, abs=1e-10) if isinstance(one, float) else other)


@pytest.mark.slow
def test_memory_of_a_calibration_is_linear_in_its_photos(monkeypatch):
    shrink_blocks(monkeypatch)
    monkeypatch.setattr(evidence, "_LARGEST", 16)
    monkeypatch.setattr(evidence, "_RESAMPLES", 10)
    peaks = {images: calibrated(images, images, max_pseudo=60)[1] for images in (300, 900)}
    # One float64 matrix of all photos with all images would add 900² · 8 − 300² · 8 = 5.8 MB, and there were thirty.
    assert peaks[900] - peaks[300] < 600 * 4000

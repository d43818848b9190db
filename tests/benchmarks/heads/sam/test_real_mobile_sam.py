"""MobileSAM with its real weights: fetched once; where they cannot be, these tests are skipped and say so."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw
from safetensors import safe_open

from tests.benchmarks.heads.sam import layouts
from tfa.errors import WeightsMissing
from tfa_bench.heads.peers.mobile_sam import PACKAGE, get_mobile_sam
from tfa_bench.heads.peers.sam import MaskSettings, read_mobile_sam

pytestmark = pytest.mark.encoder


@pytest.fixture(scope="module")
def weights():
    try:
        return get_mobile_sam()
    except WeightsMissing as error:
        pytest.skip(f"no weights to be had: {error}")


def test_the_file_holds_what_the_table_says(weights):
    with safe_open(weights, "numpy") as file:
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == layouts.mobile_sam()  # noqa: SIM118


def test_a_plain_rectangle_is_a_mask(weights):
    picture = Image.new("RGB", (240, 180), (90, 120, 160))
    ImageDraw.Draw(picture).rectangle((70, 50, 169, 129), (200, 60, 40))
    segmenter = read_mobile_sam(weights, prompting=MaskSettings(points_per_side=3))
    assert segmenter.sha256 == PACKAGE.weights
    masks = segmenter.segment(picture)
    wanted = np.asarray(picture)[..., 0] > 145
    overlaps = (masks & wanted).sum(axis=(1, 2)) / (masks | wanted).sum(axis=(1, 2))
    assert overlaps.max() > 0.9
    assert 1 <= len(masks) <= 6  # one rectangle and its background, not noise

"""A small rendered town, and a ViT-S with random weights under its true key names, made once for all tests."""

import numpy as np
import pytest

from tfa.core.files import write_tensors
from tfa.demo.countryside import outside_photos
from tfa.demo.town import render_town
from tfa.encoders import find_encoder_card
from tfa.encoders.packaged_weights import expected_shapes


@pytest.fixture(scope="session")
def town(tmp_path_factory):
    return render_town(tmp_path_factory.mktemp("town"), references=20, queries=10, size=(240, 180))


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    outside_photos(folder, 8, (240, 180), seed=5)
    return folder


@pytest.fixture(scope="session")
def random_weights(tmp_path_factory):
    """What the command line is given in place of a download: a real architecture that has learnt nothing."""
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in expected_shapes(find_encoder_card("dinov2-s14")).items():
        scale = 1.0 if name.endswith(("norm1.weight", "norm2.weight", "lambda1", "norm.weight")) else 0.03
        tensors[name] = (scale * (1 if scale == 1.0 else rng.normal(size=shape)) * np.ones(shape)).astype(np.float32)
    path = tmp_path_factory.mktemp("weights") / "random-vit-s.safetensors"
    write_tensors(path, tensors)
    return path

"""The script rounding.py: what it rounds, compares and prints."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from studies import rounding
from tests.cli.conftest import write_drive
from tests.encoders.conftest import tiny_cards  # noqa: F401  # a fixture for every test here
from tests.encoders.tiny import TINY, random_weights
from tests.fakes import random_image
from tfa.encoders import load_encoder


@pytest.fixture
def weights(tmp_path):
    save_file(random_weights(TINY["tiny-v2"]), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


def test_every_result_is_rounded_and_the_encoder_is_left_as_it_was(weights):
    encoder = load_encoder("tiny-v2", weights=weights)
    images = [random_image(1), random_image(2)]
    exact, _ = encoder.encode(images)
    errors = []
    for name in rounding.FORMATS:
        one = rounding.RoundedEncoder(encoder, name)
        found, _ = one.encode(images)
        assert one.fingerprint != encoder.fingerprint
        errors.append(np.abs(found.astype(np.float32) - exact.astype(np.float32)).mean())
    np.testing.assert_array_equal(encoder.encode(images)[0], exact)
    assert 0 < 3 * errors[0] < errors[1]  # bfloat16 has three bits fewer
    with rounding.Rounded(torch.bfloat16):
        assert float(torch.ones(()) + 2**-9) == 1.0


def test_queries_and_all_photos_are_compared_with_float32(script, weights, tmp_path):
    town = write_drive(tmp_path / "town", 12)
    file = tmp_path / "rounding.json"
    options = ("--encoder", "tiny-v2", "--weights", weights, "--heads", "second-order", "--out", file, "--quiet")
    done = script(rounding.main, f"--dataset=town={town}", *options)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [(row["encoder"], row["rounded"]) for row in rows] == [
        ("float32", ""), ("float16", "queries"), ("float16", "all photos"),
        ("bfloat16", "queries"), ("bfloat16", "all photos"),
    ]  # fmt: skip
    assert rows[0]["changed"] == 0
    assert all(0 <= row["recall"] <= 1 and row["decisions"] == [] for row in rows)
    assert "all photos" in done.stdout

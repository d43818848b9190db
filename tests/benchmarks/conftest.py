"""A tiny encoded dataset for the tests of benchmark runs."""

import json

import pytest

from tests.benchmarks.rigged import EXTRA, PLACES
from tests.fakes import FakeEncoder, random_image
from tfa.photos.token_cache import TokenCache
from tfa_bench.datasets.load import load_dataset
from tfa_bench.run import prepare


@pytest.fixture
def dataset(tmp_path):
    """Ten places, seen again a little brighter; two further database images."""
    root = tmp_path / "town"
    for name in ("database", "queries"):
        (root / name).mkdir(parents=True)
    for place in range(PLACES + EXTRA):
        random_image(place).save(root / "database" / f"d{place:02}.png")
    for place in range(PLACES):
        picture = random_image(place).point(lambda value: min(value + 4, 255))
        picture.save(root / "queries" / f"q{place:02}.png")
    positives = {f"q{place:02}.png": [f"d{place:02}.png"] for place in range(PLACES)}
    (root / "positives.json").write_text(json.dumps(positives))
    return load_dataset("town", root)


@pytest.fixture
def bench(dataset, tmp_path):
    return prepare(dataset, FakeEncoder(), cache=TokenCache(tmp_path / "cache"))

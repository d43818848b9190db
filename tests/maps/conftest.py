"""A small map of synthetic photos under the fake encoder, and a separate cache for every test."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tfa import pipeline
from tfa.core.tokens import Tokens
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

SPEC = HeadSpec(words=6)


def photo(path: Path, place: int, light: float = 1.0) -> Path:
    """A picture of coloured blocks: the place decides the blocks, the light how bright they are."""
    rng = np.random.default_rng(place)
    blocks = np.kron(rng.integers(0, 256, (6, 8, 3)), np.ones((8, 8, 1)))
    noise = np.random.default_rng(place + 1000).normal(0, 6, blocks.shape) * (light != 1.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((blocks * light + noise).clip(0, 255).astype(np.uint8)).save(path)
    return path


@pytest.fixture
def town(tmp_path):
    """Folder of 14 reference photos."""
    for place in range(14):
        photo(tmp_path / "town" / f"{place:02d}.png", place)
    return tmp_path / "town"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    return TokenCache()


@pytest.fixture
def place_map(town, cache):
    """Of the paper's head, its rows in floats."""
    kept, options = BuildOptions(head="paper", storage="float16"), EncoderOptions(cache=cache)
    return PlaceMap.build(town, encoder=FakeEncoder(), spec=SPEC, map_spec=kept, options=options)


@pytest.fixture
def saved(place_map, tmp_path):
    place_map.save(tmp_path / "town.tfa")
    return tmp_path / "town.tfa"


def reopened(path, cache=None):
    opened = PlaceMap.load(path, encoder=FakeEncoder())
    opened.cache = cache
    return opened


@pytest.fixture
def camera(tmp_path):
    """Folder of 20 photos of a darker camera, six of them of places the map does not know."""
    for place in range(20):
        photo(tmp_path / "camera" / f"{place:02d}.png", place, light=0.7)
    return tmp_path / "camera"


@pytest.fixture
def dusk(tmp_path):
    """A query."""
    return photo(tmp_path / "dusk.png", 5, light=0.8)


def hits(place_map, query, calibration=None):
    return [hit.to_dict() for hit in place_map.query(query, k=99, calibration=calibration)]


def scores(place_map, photos, calibration=None):
    tokens = Tokens(*FakeEncoder().encode([as_rgb(p) for p in photos]))
    return place_map.state.chosen(calibration).stored.scorer.scores(tokens)


def mixture_with_cls(monkeypatch):
    """Whatever the evidence says, mix both assignments and admit the global token."""
    decide = pipeline.decide_from_target

    def forced(*given):
        decisions, evidence = decide(*given)
        strengths = {"hard": {"c": 0.4, "beta": 0.1}, "soft": {"c": 0.7, "beta": 0.3}}
        choices = {"route": "mixture", "soft_weight": 0.6, "strengths": strengths, "carrier": "adaptive"}
        return dataclasses.replace(decisions, admit_cls=True, local_weight=0.75, **choices), evidence

    monkeypatch.setattr(pipeline, "decide_from_target", forced)


KILLED = """
import os, sys
from pathlib import Path
from tests.fakes import FakeEncoder
from tfa.maps import PlaceMap
real = os.replace
def die(source, target, **folders):
    if Path(target).name == "map.json":
        os.kill(os.getpid(), 9)
    real(source, target, **folders)
opened = PlaceMap.load(sys.argv[1], encoder=FakeEncoder())
os.replace = die
"""


def killed_before_the_header(path, edit, *arguments):
    """Run an edit of the map `opened` in a process that is killed as it replaces the header; its exit code."""
    code = [sys.executable, "-c", KILLED + edit, str(path), *map(str, arguments)]
    return subprocess.run(code, check=False).returncode

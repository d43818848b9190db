"""Targets: saved maps, token cache shards and camera states of a service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tests.fakes import FakeEncoder, random_image
from tests.faults.files.targets import PADDED_JSON, TENSOR_HEADER, Layer, Target, files_below
from tests.golden.regenerate import HERE, queries
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.online.adaptation import Adaptation
from tfa.photos import token_cache
from tfa.photos.token_cache import TokenCache


def judged(name: str, folder: Path) -> Target:
    return _map(name, folder, "judged")


def paper(name: str, folder: Path) -> Target:
    return _map(name, folder, "paper")


def _map(name: str, folder: Path, golden: str) -> Target:
    shutil.copytree(HERE / golden, folder, dirs_exist_ok=True)
    files, asked = files_below(folder, "*"), queries()

    def read(folder: Path, victim: str, changed: bool) -> None:
        """With checksums any damage is found; without them the map answers, or says that it is damaged."""
        try:
            PlaceMap.load(folder, checksum=True)
            assert not changed or victim == "map.json", "the damage was not noticed"  # blanks in JSON mean nothing
        except BadMap:
            assert changed
        place_map = PlaceMap.load(folder)
        json.dumps(place_map.info().to_dict(), allow_nan=False)
        for calibration in ("none", "night"):
            for hits in place_map.query_tokens(asked, k=3, calibration=calibration):
                json.dumps([hit.to_dict() for hit in hits], allow_nan=False)

    return Target(name, files, read, _layers(files), same_size=True)


def _layers(files: dict[str, bytes]) -> dict[str, Layer]:
    return {file: PADDED_JSON if file.endswith(".json") else TENSOR_HEADER for file in files}


def shards(name: str, folder: Path) -> Target:
    photos, encoder = folder / "photos", FakeEncoder()
    photos.mkdir(exist_ok=True)
    paths = [photos / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        random_image(number).save(path)
    for start in (0, 3):
        encoded = TokenCache(folder / "cache").encode(paths[start : start + 3], encoder)
    digests = TokenCache(folder / "cache").encode(paths, encoder).digests
    assert encoded.digests
    files = files_below(folder, "cache/*/*.safetensors")

    def read(folder: Path, victim: str, changed: bool) -> None:
        cache = TokenCache(folder / "cache")
        token_cache.list_shelves(cache)
        there = set(range(len(paths))) - set(cache.missing(encoder.fingerprint, digests))
        tokens = cache.tokens(encoder.fingerprint, [digests[index] for index in sorted(there)], grid=encoder.grid)
        for batch in tokens.batches():
            assert np.isfinite(batch.patches).all()

    return Target(name, files, read, _layers(files))


def adaptation(name: str, folder: Path) -> Target:
    rng, learnt = np.random.default_rng(0), Adaptation()
    learnt.window.set_images(range(20))
    for _ in range(40):
        learnt.observe(rng.normal(size=12), np.ones(12), rng.normal(size=20))
    learnt.save(folder / "session.safetensors", {"map": "town", "head": "none"})
    files = files_below(folder, "*.safetensors")

    def read(folder: Path, victim: str, changed: bool) -> None:
        loaded, _ = Adaptation.load(folder / victim)
        json.dumps(loaded.to_dict())

    return Target(name, files, read, _layers(files))

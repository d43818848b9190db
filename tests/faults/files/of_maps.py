"""Targets: saved maps, token cache shards and camera states of a service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tests.fakes import FakeEncoder, random_image
from tests.faults.files.targets import PADDED_JSON, PLAIN_JSON, TENSOR_HEADER, Layer, Target, files_below
from tests.golden.regenerate import HERE, queries
from tfa.core.files import hash_json, parse_json
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


def signed(name: str, folder: Path) -> Target:
    """A map whose header is signed again after the damage and states the sizes of the files, as an attacker's does."""
    shutil.copytree(HERE / "judged", folder, dirs_exist_ok=True)
    files, tokens = files_below(folder, "*"), queries()

    def read(folder: Path, victim: str, changed: bool) -> None:
        path = folder / "map.json"
        try:
            try:
                header = parse_json(path.read_bytes())
            except ValueError as error:
                raise BadMap(f"not JSON: {error}") from None
            if not isinstance(header, dict):
                raise BadMap("not an object")
            if victim != path.name:
                (entry,) = (one for one in header["files"] if one["name"] == victim)
                entry["bytes"] = (folder / victim).stat().st_size
            header.pop("digest", None)
            path.write_bytes(json.dumps({**header, "digest": hash_json(header)}).encode())
            place_map = PlaceMap.load(folder)
            json.dumps(place_map.info().to_dict(), allow_nan=False)
            for calibration in ("none", "night"):
                for hits in place_map.query_tokens(tokens, k=3, calibration=calibration):
                    json.dumps([hit.to_dict() for hit in hits], allow_nan=False)
        finally:
            path.write_bytes(files[path.name])

    layers = {file: PLAIN_JSON if file.endswith(".json") else TENSOR_HEADER for file in files}
    return Target(name, files, read, layers)


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

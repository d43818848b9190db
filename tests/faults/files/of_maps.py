"""Targets: saved maps, token cache shards and camera states of a service."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.fakes import FakeEncoder, random_image
from tests.faults.files.targets import PADDED_JSON, PLAIN_JSON, TENSOR_HEADER, Layer, Target, files_below
from tests.golden.regenerate import HERE, queries
from tests.search.memory_store import MemoryStore
from tfa.core.files import hash_json, parse_json
from tfa.core.tokens import Tokens
from tfa.errors import BadMap
from tfa.maps import PlaceMap
from tfa.maps.loop_closer import LoopCloser
from tfa.maps.upkeep import Confirmed, format_time
from tfa.online.adaptation import Adaptation
from tfa.photos import token_cache
from tfa.photos.token_cache import TokenCache
from tfa.search import store as stores
from tfa.search.store import MapLocation
from tfa.service.cameras import CameraKey, MapCameras
from tfa.types import QueryOptions

PAYLOAD, FULL = "town/payload", "town/full"  # of an image in a store


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


def stored(name: str, folder: Path) -> Target:
    """Documents and an image of a map in a store. Its skeleton is a map folder, which the other targets damage."""
    stores._BUILT_IN["memory"] = "tests.search.memory_store:MemoryStore.connect"
    url = f"memory://{folder.resolve().as_posix().replace('/', '-')}"
    PlaceMap.load(HERE / "second_order").publish(f"{url}/town", dims=8).close()
    store, tokens = MemoryStore.connect(url), queries()
    files = {key: store.read(key) or b"" for key in store.keys("town/") if "/skeleton/" not in key}
    (collection,) = map(store.open, store.names())
    image = collection.fetch([0])
    payload = {**image.payload[0], "path": "photos/0.png"}  # the same in every checkout
    files |= {PAYLOAD: json.dumps(payload).encode(), FULL: image.full[0]}
    for key, content in files.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(content)

    def put(victim: str, content: bytes) -> None:
        if victim == PAYLOAD:
            try:
                payload = parse_json(content)
            except ValueError as error:
                raise BadMap(f"a database refuses it: {error}") from None
            if not isinstance(payload, dict):
                raise BadMap("a database refuses it: not an object")
            collection.write(replace(image, payload=[payload]))
        elif victim == FULL:
            collection.write(replace(image, full=[content]))
        else:
            store.put(victim, content)

    def read(folder: Path, victim: str, changed: bool) -> None:
        put(victim, (folder / victim).read_bytes())
        try:
            place_map = PlaceMap.load(MapLocation(f"{url}/town"))
            json.dumps(place_map.info().to_dict(), allow_nan=False)
            json.dumps([one.to_dict() for one in place_map.records()], allow_nan=False)
            for hits in place_map.query_tokens(tokens, k=3):
                json.dumps([hit.to_dict() for hit in hits], allow_nan=False)
        finally:
            put(victim, files[victim])

    layers = {"header": PLAIN_JSON, "payload": PLAIN_JSON}
    layers |= dict.fromkeys(("reduction", "moments", "compaction"), TENSOR_HEADER)
    named = {key: key.rpartition("/")[2] for key in files}
    return Target(name, files, read, {key: layers[end] for key, end in named.items() if end in layers})


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


def cameras(name: str, folder: Path) -> Target:
    """A camera file of a service, whose head and name fit the map."""
    shutil.copytree(HERE / "second_order", folder, dirs_exist_ok=True)
    place_map, tokens, key = PlaceMap.load(folder), queries(), CameraKey("", "cam0")
    keeper = MapCameras(place_map, 5)
    for row in range(3):
        keeper.answer(key, tokens.select([row]), QueryOptions())
    keeper.close()
    files = files_below(folder, key.file_name)

    def read(folder: Path, victim: str, changed: bool) -> None:
        """The service logs a damaged file and removes it later."""
        loaded = MapCameras(place_map, 5)
        loaded._keeper.shutdown()
        json.dumps([one.to_dict() for one in loaded.list_all()], allow_nan=False)

    return Target(name, files, read, _layers(files))


def confirmations(name: str, folder: Path) -> Target:
    images = PlaceMap.load(HERE / "second_order").images
    Confirmed().watched(images, 100).write(folder)
    files = files_below(folder, "*.safetensors")

    def read(folder: Path, victim: str, changed: bool) -> None:
        confirmed = Confirmed.read(folder)
        for time in (*confirmed.since.values(), *confirmed.last.values()):
            format_time(time)

    return Target(name, files, read, _layers(files))


def loops(name: str, folder: Path) -> Target:
    encoder = FakeEncoder()
    closer = LoopCloser(encoder, 5)
    frames = [Tokens(*encoder.encode([random_image(number)]), grid=encoder.grid) for number in range(34)]
    for frame in frames[:33]:
        closer.step(frame)
    closer.save(folder / "loops.safetensors")
    files = files_below(folder, "*.safetensors")

    def read(folder: Path, victim: str, changed: bool) -> None:
        LoopCloser.load(folder / victim, encoder).step(frames[33])

    return Target(name, files, read, _layers(files))

"""Golden maps by format version, and a reader that is not changed.

    python -m tests.golden.versions NAME      writes a map of NEW, once, when the format gets a new version

Every release must read the maps in `maps/` and answer as written in their `.json`. The reader below uses no code of
the package. It stands for a released reader: it must accept every map that a later release writes with the same
`format_version`. If it cannot, raise the version; do not edit the reader for an old version.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.core.files import write_json
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec, RerankSpec

HERE = Path(__file__).parent / "maps"
NEW = {
    "version_3": BuildOptions(dims=8, rerank=False),
    "version_4": BuildOptions(),
    "version_4_reduced": BuildOptions(dims=8, rerank=RerankSpec(patches="small")),
}
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "<i1", "U8": "<u1"}
READS = (2, 3, 4)  # format versions of the reader
ROLES = {"head", "gallery", "images", "vocabularies", "space", "coordinates", "compaction", "tokens"}


def write_map(folder: Path, name: str) -> Path:
    """Write a map with an addition, a removal, a session, positions and a calibration below `folder`."""
    towns = [photo(folder / "photos" / f"@{place}@{2 * place}@.png", place) for place in range(9)]
    camera = [photo(folder / "camera" / f"{place}.png", place, light=0.7) for place in range(16)]
    options = EncoderOptions(cache=TokenCache(folder / "cache"))
    built = PlaceMap.build(
        towns[:8], encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=NEW[name], options=options
    )
    built.save(folder / name)
    built.add([towns[8], photo(folder / "photos" / "plain.png", 9)], session="night, rain")
    built.remove([4])
    built.calibrate(camera, "dusk")
    return folder / name


def make_answers(place_map: PlaceMap, tokens: object) -> list[dict[str, Any]]:
    """Return the hits of the golden queries: each head, one session, reranked if the map stores patches."""
    ways: list[dict[str, Any]] = [
        {"calibration": "none", "rerank": False},
        {"calibration": "dusk", "rerank": False},
        {"calibration": "none", "rerank": True},
        {"calibration": "none", "rerank": False, "sessions": ("night, rain",)},
    ]
    ways = [way for way in ways if not way["rerank"] or place_map.state.compact is not None]
    return [
        {"way": str(way), "hits": [[[hit.id, hit.score, hit.inliers] for hit in answer] for answer in answers]}
        for way in ways
        for answers in [place_map.query_tokens(tokens, k=9, min_confidence=0.0, **way)]
    ]


def read_tensors(content: bytes) -> dict[str, np.ndarray]:
    (length,) = struct.unpack("<Q", content[:8])
    entries, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    assert entries.pop("__metadata__")["format"] == "tfa-place-map"
    return {
        name: np.frombuffer(data[slice(*one["data_offsets"])], DTYPES[one["dtype"]]).reshape(one["shape"])
        for name, one in entries.items()
    }


def read_pinned(folder: Path) -> list[dict[str, Any]]:
    """Read a map as a released reader does, check every sum, and return the records of its images."""
    about = json.loads((folder / "map.json").read_text("utf-8"))
    assert about["format"] == "tfa-place-map"
    assert about["format_version"] in READS, f"{about['format_version']} is new: add a golden map and a reader for it"
    digest = about.pop("digest")
    canonical = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == digest
    records, rows, cells = list[dict[str, Any]](), dict[tuple[str, str | None], int](), 0
    for entry in about["files"]:
        content = (folder / entry["name"]).read_bytes()
        assert entry["role"] in ROLES
        assert len(content) == entry["bytes"]
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert zlib.crc32(content) == entry.get("crc32", zlib.crc32(content))
        if entry["role"] == "images":
            records += json.loads(content)
            continue
        arrays, key = read_tensors(content), (entry["role"], entry["head"])
        if entry["role"] == "gallery":
            rows[key] = rows.get(key, 0) + len(arrays["bias"])
        elif entry["role"] == "coordinates":
            rows[key] = rows.get(key, 0) + len(arrays["space0"])
        elif entry["role"] == "compaction":
            cells = len(arrays["cells"]) if "cells" in arrays else 0
        elif entry["role"] == "tokens":
            rows[key] = rows.get(key, 0) + len(arrays["patches"])
            for patches, crc in zip(arrays["patches"], arrays.get("patches.crc32", ()), strict=False):
                assert zlib.crc32(patches.tobytes()) == crc
    verification = about["verification"]
    assert bool(cells) == bool(verification and verification.get("cells"))
    assert not cells or cells == np.prod(verification["grid"])
    assert set(rows.values()) == {len(records)} == {sum(about["segments"])}
    ids = [record["id"] for record in records]
    assert len(set(ids)) == len(ids)
    assert max(ids) < about["next_id"]
    assert about["heads"][0]["name"] == "none"
    assert about["active"] in [head["name"] for head in about["heads"]]
    return [record for record in records if record["id"] not in about["removed"]]


def main(name: str) -> None:
    from tests.golden.regenerate import queries

    if (HERE / name).exists():
        sys.exit(f"{name} exists: a golden map is never written again")
    with tempfile.TemporaryDirectory(prefix="tfa-golden-") as temporary:
        written = write_map(Path(temporary).resolve(), name)
        shutil.copytree(written, HERE / name)
    write_json(HERE / f"{name}.json", make_answers(PlaceMap.load(HERE / name), queries()))


if __name__ == "__main__":
    main(sys.argv[1])

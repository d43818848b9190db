"""Write golden arrays, queries and photos again, and the golden maps that are missing. Only on purpose.

    python -m tests.golden.regenerate [MAP ...]     all files, or those of some new maps only

Maps that exist are never written again: every later release must read them. Add a map of another version by a new name.
Each map has ten photos under the fake encoder, one of them added and one removed, and a calibration. A changed file
belongs in the changelog: "Changed numbers" for arrays and answers, the format page for the map.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.fakes import FakeEncoder
from tests.golden.arrays import computed
from tests.maps.conftest import photo
from tfa.core.files import write_json, write_tensors
from tfa.maps import PlaceMap
from tfa.photos.images import as_rgb
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

HERE = Path(__file__).parent
MAPS = {
    "paper": BuildOptions(head="paper", storage="float16"),
    "paper_dual": BuildOptions(head="paper-dual"),  # with source words from a file
    "second_order": BuildOptions(),
}
OLD_MAPS = ("judged",)  # of a kind that is not made any more: their files and answers stay as they are


def answers(place_map: PlaceMap, tokens: object) -> dict[str, list]:
    """Hits of the golden queries, without and with the calibration, as the head ranks them and verified."""
    ways = {"none": ("none", False), "night": ("night", False), "verified": ("none", True)}
    return {
        name: [
            [{key: hit.to_dict()[key] for key in ("id", "score", "confidence", "inliers")} for hit in hits]
            for hits in place_map.query_tokens(tokens, k=9, calibration=calibration, rerank=rerank)
        ]
        for name, (calibration, rerank) in ways.items()
    }


def main(names: Sequence[str]) -> None:
    names, everything = [name for name in names or MAPS if not (HERE / name).exists()], not names
    with tempfile.TemporaryDirectory(prefix="tfa-golden-") as temporary:
        root = Path(temporary).resolve()
        photos = [photo(root / "photos" / f"{place}.png", place) for place in range(10)]
        camera = [photo(root / "camera" / f"{place}.png", place, light=0.7) for place in range(16)]
        options = EncoderOptions(cache=TokenCache(root / "cache"))
        np.save(root / "words.npy", np.eye(FakeEncoder().channels)[:4])
        for name in names:
            kind = MAPS[name]
            kind = replace(kind, vocabulary=root / "words.npy") if kind.head == "paper-dual" else kind
            built = PlaceMap.build(
                photos[:9], encoder=FakeEncoder(), spec=HeadSpec(words=4), map_spec=kind, options=options
            )
            built.save(root / name)
            built.add([photos[9]])
            built.remove([4])
            built.calibrate(camera, "night")
            shutil.copytree(root / name, HERE / name)
        if everything:
            _write_shared(root, camera)
    known = json.loads((HERE / "answers.json").read_text("utf-8"))
    made = {name: answers(PlaceMap.load(HERE / name), queries()) for name in names}
    write_json(HERE / "answers.json", {**known, **made})


def _write_shared(root: Path, camera: list[Path]) -> None:
    """Write what does not belong to a map: arrays, decisions, queries and photos."""
    arrays, decisions = computed()
    write_tensors(HERE / "arrays.safetensors", arrays)
    write_json(HERE / "decisions.json", decisions)
    patches, cls = FakeEncoder().encode([as_rgb(path) for path in camera[:3]])
    assert cls is not None
    write_tensors(HERE / "queries.safetensors", {"patches": patches, "cls": cls})
    shutil.copytree(root / "photos", HERE / "photos", dirs_exist_ok=True)


def queries() -> object:
    from tfa.core.files import map_tensors
    from tfa.core.tokens import Tokens

    arrays, _ = map_tensors(HERE / "queries.safetensors")
    return Tokens(arrays["patches"], arrays["cls"], grid=(4, 4))


if __name__ == "__main__":
    main(sys.argv[1:])

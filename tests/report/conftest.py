"""A map with a repeated street, an odd photo and a copy, under the fake encoder."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fakes import FakeEncoder
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import EncoderOptions, HeadSpec


def photo(path: Path, seed: int, other: int | None = None, share: float = 0.0) -> Path:
    """Coloured blocks of a place, mixed with a share of another place's."""
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(float)
    if other is not None:
        blocks += share * (np.random.default_rng(other).integers(0, 256, (6, 8, 3)) - blocks)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.kron(blocks, np.ones((8, 8, 1))).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="session")
def town(tmp_path_factory):
    """Twelve places, place 3 twice more with a touch of another, and a byte-for-byte copy of place 5."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFA_CACHE", str(folder / "cache"))
        for place in range(12):
            photo(folder / "photos" / f"{place:02d}.png", place)
        photo(folder / "photos" / "03a.png", 3, 50, 0.01)
        photo(folder / "photos" / "03b.png", 3, 51, 0.01)
        (folder / "photos" / "05copy.png").write_bytes((folder / "photos" / "05.png").read_bytes())
        built = PlaceMap.build(
            folder / "photos",
            head="paper",
            encoder=FakeEncoder(),
            spec=HeadSpec(words=6),
            options=EncoderOptions(cache=TokenCache(folder / "tokens")),
        )
    built.save(folder / "town.tfa")
    return built

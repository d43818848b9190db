"""A small world of made-up photos and maps of them, made once; every test works on copies."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder
from tests.maps.conftest import photo
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

KINDS = {
    "paper": BuildOptions(head="paper", storage="float16"),
    "judged": BuildOptions(head="judged"),
    "second-order": BuildOptions(head="second-order", rerank=False),
}
FIRST = 8  # photos of a map


@dataclass(frozen=True)
class World:
    """`town/00.png` … are in the maps, `more/` may be added, `camera/` may calibrate."""

    folder: Path

    @property
    def cache(self) -> TokenCache:
        return TokenCache(self.folder / "cache")

    @property
    def town(self) -> list[Path]:
        return sorted((self.folder / "town").iterdir())

    @property
    def more(self) -> list[Path]:
        return sorted((self.folder / "more").iterdir())

    @property
    def camera(self) -> Path:
        return self.folder / "camera"

    def built(self, kind: str, count: int = FIRST) -> PlaceMap:
        """A new map of the first photos, not saved."""
        return PlaceMap.build(
            self.town[:count],
            encoder=FakeEncoder(),
            spec=HeadSpec(words=4),
            map_spec=KINDS[kind],
            options=EncoderOptions(cache=self.cache),
        )

    def map(self, kind: str, into: Path) -> Path:
        """A copy of a saved map. The kinds are those above; "other" is a map of five photos of the paper's head."""
        path = into / "town.tfa"
        shutil.copytree(self.folder / f"{kind}.tfa", path)
        return path

    def opened(self, path: Path) -> PlaceMap:
        opened = PlaceMap.load(path, encoder=FakeEncoder())
        opened.cache = self.cache
        return opened


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"))
    for place in range(FIRST):
        photo(made.folder / "town" / f"{place:02d}.png", place)
        photo(made.folder / "camera" / f"{place:02d}.png", place, light=0.7)
    for place in range(4):
        photo(made.folder / "more" / f"{place:02d}.png", 50 + place)
    made.cache.encode([*made.town, *made.more, *sorted(made.camera.iterdir())], FakeEncoder())
    for kind in KINDS:
        made.built(kind).save(made.folder / f"{kind}.tfa")
    made.built("paper", 5).save(made.folder / "other.tfa")
    return made

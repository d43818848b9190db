"""Made-up photos and maps of them under a quick encoder, for parts that measure everything but recognition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfa.bench.load_test.clients import synthetic_photo
from tfa.bench.load_test.run import ENCODER, random_weights_file
from tfa.core.files import make_folder
from tfa.core.tokens import Tokens
from tfa.encoders import load_encoder
from tfa.maps import PlaceMap
from tfa.photos.token_cache import TokenCache
from tfa.types import BuildOptions, EncoderOptions, HeadSpec

IMAGES = 60
DIMS = 64


@dataclass(frozen=True)
class SmallTown:
    """Photos below a folder; `name` tells the photos of one map from those of another, in every path."""

    folder: Path

    @property
    def weights(self) -> Path:
        file = self.folder / "random.safetensors"
        if not file.exists():
            make_folder(self.folder)
            random_weights_file(self.folder)
        return file

    @property
    def options(self) -> EncoderOptions:
        return EncoderOptions(weights=self.weights, cache=TokenCache(self.folder / "cache"))

    def photo(self, name: str, seed: int, light: float = 1.0) -> Path:
        file = self.folder / name / f"{seed:05d}.jpg"
        if not file.exists():
            make_folder(file.parent)
            file.write_bytes(synthetic_photo(seed, light))
        return file

    def map(self, name: str, first: int = 0, images: int = IMAGES) -> PlaceMap:
        """Of photos by the seeds from `first` on."""
        photos = [self.photo(name, seed) for seed in range(first, first + images)]
        kept = BuildOptions(head="second-order", rerank=False)
        return PlaceMap.build(photos, encoder=ENCODER, options=self.options, spec=HeadSpec(words=16), map_spec=kept)

    def tokens(self, photo: Path) -> Tokens:
        """In memory, so that another process can be given them."""
        encoder = load_encoder(ENCODER, weights=self.weights)
        read = TokenCache(self.folder / "cache").encode([photo], encoder).tokens
        return Tokens([np.array(read.patches[0])], None if read.cls is None else np.array(read.cls), grid=read.grid)

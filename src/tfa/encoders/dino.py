"""Base class of DINO encoders for all runtimes. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from tfa.encoders.catalogue import EncoderId, names_by_fingerprint
from tfa.photos.images import resize, to_array


class DinoEncoder:
    """Attributes and preprocessing of a vision transformer encoder; see `tfa.encoders`."""

    def __init__(self, identity: EncoderId, weights_sha256: str, device: str) -> None:
        self.identity, self._card = identity, identity.card
        self.device, self.precision = device, "float32"
        self.id = str(identity)
        self.notes = identity.notes
        self.grid = identity.grid
        self.depths = identity.depths
        self.channels: int = self._card.width * self.depths
        self.global_channels: int | None = self._card.width
        self.names = names_by_fingerprint(identity, weights_sha256)
        self.fingerprint = self.model = next(iter(self.names))

    def prepare(self, image: Image.Image) -> Image.Image:
        """Resize an image to the encoder's input size, before any crop."""
        width, height, resample = self.reads
        return resize(image, (width, height), resample)

    @property
    def reads(self) -> tuple[int, int, str]:
        return *(self.identity.resized or (self.identity.width, self.identity.height)), self._card.resample

    def _pixels(self, image: Image.Image) -> np.ndarray:
        card, size = self._card, (self.identity.width, self.identity.height)
        if self.identity.resized is not None:
            image = self.prepare(image)
            # Half of the margin, rounded as torchvision's CenterCrop does.
            left, top = (round((have - want) / 2) for have, want in zip(image.size, size, strict=True))
            image = image.crop((left, top, left + size[0], top + size[1]))
        return to_array(image, size, card.mean, card.std, card.resample)

    def _patches_and_cls(self, tokens: np.ndarray | Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """Split float16 tokens `(prefix+n, d)` per image into patches and CLS, None for a model without CLS.

        CLS is that of the last block that is read.
        """
        shape = (len(tokens), self._card.prefix + self.grid[0] * self.grid[1], self.channels)
        whole = np.asarray(tokens, np.float16).reshape(shape)
        cls = np.ascontiguousarray(whole[:, 0, -self._card.width :]) if self._card.has_cls else None
        return np.ascontiguousarray(whole[:, self._card.prefix :]), cls

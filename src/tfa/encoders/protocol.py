"""What an encoder is to the rest of the package. Anything with these attributes will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


@runtime_checkable
class Encoder(Protocol):
    """A frozen function from images to tokens.

    An encoder may also have `prepare(image) -> image`, which shrinks a picture to what `encode` will read
    without changing its answer; the token cache then calls it from several threads while the encoder is busy
    with other images. If that is `tfa.photos.images.resize`, `reads` may say how: width, height and kind of resampling;
    the service then shrinks photos where it decodes them, in another process.
    """

    id: str  # canonical name, such as dinov2-b14@322
    fingerprint: str  # sha256 over all that shapes the tokens, arithmetic too: the key of tokens, never mixed
    model: str  # the fingerprint of the model in its usual arithmetic: what a map remembers and compares
    channels: int  # d
    global_channels: int | None  # d_g, None for an encoder without a global token
    grid: tuple[int, int]  # rows, columns of patches
    notes: tuple[str, ...]  # what the user should know, such as a size that was changed
    device: str

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        """float16 patches `b n d` in row-major order, and float16 global tokens `b d_g` or None."""
        ...

"""One encoder for all who need it, in the order they came."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from tfa.encoders import Encoder


class SharedEncoder:
    """An `Encoder` that threads may share. A model runs one batch at a time, in a thread of its own; batches of queries
    and the single photos of edits take turns, so a query waits for one photo of an edit at most."""

    # Declared for type checkers alone: every attribute is the shared encoder's own, see `__getattr__`.
    id: str
    fingerprint: str
    model: str
    channels: int
    global_channels: int | None
    grid: tuple[int, int]
    notes: tuple[str, ...]
    device: str

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._thread = encoder, ThreadPoolExecutor(1, thread_name_prefix="tfa-encode")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # ours, or Python's own: an encoder shares its public attributes
            raise AttributeError(name)
        return getattr(self._encoder, name)

    @property
    def reads(self) -> tuple[int, int, str] | None:
        """Width, height and resampling of its input, where the encoder can say it."""
        return getattr(self._encoder, "reads", None)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture at the encoder's input size, where the encoder can say it."""
        prepare = getattr(self._encoder, "prepare", None)
        return image if prepare is None else prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        return self._thread.submit(self._encoder.encode, images).result()

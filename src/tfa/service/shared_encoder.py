"""One encoder for all who need it, in the order they came."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

from tfa.encoders import Encoder


class FairLock:
    """A lock that is given in the order of its requests: who needs it in a row lets others in between."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._next = self._now = 0

    def __enter__(self) -> None:
        with self._turn:
            ticket, self._next = self._next, self._next + 1
            while ticket != self._now:
                self._turn.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            self._now += 1
            self._turn.notify_all()


class SharedEncoder:
    """An `Encoder` that threads may share. A model runs one batch at a time; batches of queries and the single
    photos of edits take turns, so a query waits for one photo of an edit at most."""

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
        self._encoder, self._turn = encoder, FairLock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # ours, or Python's own: an encoder shares its public attributes
            raise AttributeError(name)
        return getattr(self._encoder, name)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture at the encoder's input size, where the encoder can say it."""
        prepare = getattr(self._encoder, "prepare", None)
        return image if prepare is None else prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        with self._turn:
            return self._encoder.encode(images)

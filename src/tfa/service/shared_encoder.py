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
    """A lock that is given in the order it was asked for: who needs it in a row lets others in between."""

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

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._turn = encoder, FairLock()
        self.id, self.fingerprint = encoder.id, encoder.fingerprint
        self.channels, self.global_channels = encoder.channels, encoder.global_channels
        self.grid, self.notes, self.device = encoder.grid, encoder.notes, encoder.device
        self._prepare: Any = getattr(encoder, "prepare", None)

    def prepare(self, image: Image.Image) -> Image.Image:
        """The picture at the encoder's input size, where the encoder can say it."""
        return image if self._prepare is None else self._prepare(image)

    def encode(self, images: Sequence[Image.Image]) -> tuple[np.ndarray, np.ndarray | None]:
        with self._turn:
            return self._encoder.encode(images)

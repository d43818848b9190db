"""Clients that query and edit at once, and what they saw."""

from __future__ import annotations

import io
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tfa.client import Client
from tfa.errors import TfaError

FIRST_NEW = 1_000_000  # seeds of photos that are added start here


def synthetic_photo(seed: int, light: float = 1.0, size: tuple[int, int] = (320, 240)) -> bytes:
    """A JPEG of coloured blocks: the seed decides the blocks, the light how bright they are."""
    from PIL import Image

    blocks = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)) * light
    picture = Image.fromarray(blocks.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=90)
    return written.getvalue()


@dataclass
class Edits:
    """Edits that the service said were done. What was requested and not answered may be there or not."""

    added: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)
    removal_requested: set[int] = field(default_factory=set)


class Load:
    """Queriers and editors, a thread and a client each."""

    def __init__(self, url: str, photos: Sequence[bytes], clients: int, editors: int) -> None:
        self._url, self._photos = url, photos
        self.edits = Edits()
        self.errors: list[str] = []
        self.query_seconds: list[float] = []
        self.edit_seconds: list[float] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        works: list[Callable[[int], None]] = [*[self._query] * clients, *[self._edit] * editors]
        self._threads = [
            threading.Thread(target=work, args=(number,), name=f"load-{number}", daemon=True)
            for number, work in enumerate(works)
        ]

    def run(self, seconds: float, advance: Callable[[], None], last: Callable[[], None]) -> float:
        """Let all of them work, then call `last` in the midst of it (the kill); how long they worked."""
        started = time.monotonic()
        for thread in self._threads:
            thread.start()
        while time.monotonic() - started < seconds:
            time.sleep(min(1.0, max(seconds - (time.monotonic() - started), 0.0)))
            advance()
        spent = time.monotonic() - started
        self._over.set()  # from here on an error is the kill's
        last()
        for thread in self._threads:
            thread.join()
        return spent

    def _timed(self, call: Callable[[], object], into: list[float]) -> bool:
        """Did it succeed? What fails after the kill is nobody's error, and not counted."""
        started = time.perf_counter()
        try:
            call()
        except TfaError as error:
            if not self._over.is_set():
                with self._lock:
                    self.errors.append(str(error))
            return False
        if not self._over.is_set():
            with self._lock:
                into.append(time.perf_counter() - started)
        return True

    def _query(self, number: int) -> None:
        client, choose = Client(self._url), random.Random(number)
        while not self._over.is_set():
            photo = choose.choice(self._photos)
            self._timed(lambda: client.query(photo), self.query_seconds)  # noqa: B023

    def _edit(self, number: int) -> None:
        """Add a photo, or remove one of those it added, in turn by chance."""
        client, choose, seed = Client(self._url), random.Random(number), FIRST_NEW * (number + 1)
        mine: list[int] = []
        while not self._over.is_set():
            if mine and choose.random() < 0.4:
                image_id = mine.pop(choose.randrange(len(mine)))
                with self._lock:
                    self.edits.removal_requested.add(image_id)
                if self._timed(lambda: client.remove([image_id]), self.edit_seconds):  # noqa: B023
                    with self._lock:
                        self.edits.removed.add(image_id)
                continue
            seed += 1
            photo, added = synthetic_photo(seed), list[int]()
            if self._timed(lambda: added.extend(client.add([photo]).added), self.edit_seconds):  # noqa: B023
                mine += added
                with self._lock:
                    self.edits.added.update(added)
